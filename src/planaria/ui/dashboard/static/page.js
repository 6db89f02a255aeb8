"use strict";
// The page of a run: follows its stream, shows what is new, and asks for what the buttons say, once confirmed.

(() => {
  const name = new URLSearchParams(location.search).get("name") || "";
  const place = (id) => document.getElementById(id);
  const state = { rows: [], details: null, now: null, session: { may_command: false, policies: [] }, run: null };
  const isKnown = fetch("/api/session").then((answer) => answer.json()).then((session) => { state.session = session; });
  let isDue = false;

  const take = (found) => {
    state.now = found.now;
    state.run = found.run;
    state.rows.length = Math.min(state.rows.length, found.series.first);
    state.rows.push(...found.series.rows);
    const isNew = Boolean(found.details);
    if (isNew) state.details = found.details;
    state.read = found.read;
    if (!isDue) { isDue = true; requestAnimationFrame(() => { isDue = false; draw(); }); }
    state.isNew = state.isNew || isNew;
  };

  const draw = () => {
    const began = performance.now();
    const { now, details, run } = state;
    document.title = `${state.now.step}/${now.steps} · ${title()}`;
    P.show(place("name"), title());
    place("state").className = `pill ${run.state}`;
    P.show(place("state"), run.state === "gone" ? "process gone" : details.phase === "waiting" ? "waiting" : run.state);
    P.show(place("policy"), `policy ${details.policy}`);
    P.show(place("reading"), state.read < 1 ? `reading ${P.percent(state.read)}` : "");
    place("progress").value = now.steps ? now.step / now.steps : 0;
    P.show(place("facts"), P.facts(now, details));
    const all = place("charts").clientWidth;
    const size = { width: Math.max(280, innerWidth <= 720 ? all : all / 2 - 14) };
    if (state.rows.length > 1)
      P.show(place("charts"), P.lossChart(state.rows, details, size), P.throughputChart(state.rows, details, false, size));
    place("split-part").hidden = !now.split;
    if (now.split) P.show(place("split"), P.splitPart(now.split));
    if (state.isNew) drawDetails(details);
    followSchedule();
    state.isNew = false;
    place("commands").hidden = run.state !== "training";
    document.body.dataset.step = now.step;
    document.body.dataset.read = state.read;
    document.body.dataset.drawn = performance.now() - began;
  };

  const drawDetails = (details) => {
    P.show(place("message"), details.message);
    P.show(place("plan-title"), details.plan ? `Plan ${details.plan.generation}` : "Plan");
    P.show(place("plan"), P.planPart(details));
    P.show(place("nodes"), P.nodesPart(details));
    const open = [...document.querySelectorAll(".recovery")];
    const kept = open.length === details.recoveries.length ? new Set(open.filter((one) => one.open).map((one) => one.dataset.step)) : null;
    P.show(place("recoveries"), P.recoveriesPart(details, kept));
    P.show(place("decisions"), ...P.decisionsPart(details));
    P.show(place("log"), P.logPart(details));
  };

  // The schedule: of the step that was chosen, or of the newest one, looked at again now and then.

  const SCHEDULE_EVERY_MS = 5000;
  const schedule = { wanted: "", found: null, asked: -Infinity, key: "", turn: 0, isUnderWay: false };

  const followSchedule = () => {
    const key = `${schedule.wanted || state.now.step} ${state.details.plan ? state.details.plan.generation : 0} ${state.run.state}`;
    const isNew = key !== schedule.key && !schedule.isUnderWay && state.read === 1;
    if (isNew && performance.now() - schedule.asked > SCHEDULE_EVERY_MS) askSchedule(key);
  };

  const askSchedule = async (key) => {
    const turn = schedule.turn + 1;
    Object.assign(schedule, { key, turn, asked: performance.now(), isUnderWay: true });
    let found = null;
    try {
      const answer = await fetch(`/api/schedule?name=${encodeURIComponent(name)}&step=${schedule.wanted}`);
      if (answer.ok) found = await answer.json();
    } catch { /* the stream tells that nobody answers */ }
    if (turn !== schedule.turn) return;  // another step was chosen meanwhile
    schedule.isUnderWay = false;
    schedule.found = found || schedule.found;
    drawSchedule();
  };

  const drawSchedule = () => {
    if (!schedule.found || document.activeElement?.id === "schedule-step") return;
    const width = place("schedule").clientWidth;
    const choose = (step) => { schedule.wanted = step; document.activeElement.blur(); askSchedule(""); };
    P.show(place("schedule"), P.schedulePart(schedule.found, { details: state.details, width, choose, isNewest: schedule.wanted === "" }));
    document.body.dataset.schedule = schedule.found.step === null ? "planned" : schedule.found.step;
  };

  setInterval(() => { if (state.details) followSchedule(); }, SCHEDULE_EVERY_MS);

  const title = () => (state.run ? state.run.run.split("/").pop() : name);

  // Commands

  const wanted = {
    add: () => [P.el("label", {}, "Nodes to start ", P.el("input", { type: "number", name: "count", value: 1, min: 1, max: 64 }))],
    drain: () => [P.el("label", {}, "Node ", P.el("select", { name: "node" }, state.details.nodes
      .filter((node) => !["lost", "hung", "released", "leaving"].includes(node.state)).map((node) => P.el("option", {}, String(node.node))))),
      P.el("p", {}, "It hands over its work and ends. Nothing runs twice.")],
    policy: () => [P.el("label", {}, "Policy ", P.el("select", { name: "policy" }, state.session.policies.map((one) =>
      P.el("option", { selected: one === state.details.policy ? "" : null }, one)))), P.el("p", {}, "It makes the plans from now on.")],
    save: () => [P.el("p", {}, "Save the state after the next step.")],
    stop: () => [P.el("p", {}, "Finish the step, save, and end the run.")],
  };

  const confirm = async (action) => {
    await isKnown;
    if (!state.session.may_command) { location.assign("/login"); return; }
    P.show(place("dialog-title"), `${action[0].toUpperCase()}${action.slice(1)} ${title()}?`);
    P.show(place("dialog-body"), wanted[action]());
    place("dialog").dataset.action = action;
    place("dialog-ok").className = action === "stop" || action === "drain" ? "danger" : "main";
    P.show(place("dialog-ok"), action === "policy" ? "Switch" : action[0].toUpperCase() + action.slice(1));
    place("dialog").showModal();
  };

  const send = async () => {
    const action = place("dialog").dataset.action;
    const body = { action };
    for (const field of place("dialog-body").querySelectorAll("[name]"))
      body[field.name] = field.name === "policy" ? field.value : Number(field.value);
    say(`${action}: asked`);
    try {
      const answer = await fetch(`/api/command?name=${encodeURIComponent(name)}`,
        { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
      const text = answer.headers.get("content-type").includes("json") ? (await answer.json()).text : await answer.text();
      say(`${action}: ${text}`, answer.ok ? "" : "bad");
    } catch {
      say(`${action}: the page's server does not answer`, "bad");
    }
  };

  const say = (text, kind = "") => { place("said").className = kind; P.show(place("said"), text); };

  for (const button of document.querySelectorAll("[data-action]")) button.addEventListener("click", () => confirm(button.dataset.action));
  place("dialog").addEventListener("close", () => { if (place("dialog").returnValue === "ok") send(); place("dialog").returnValue = ""; });

  const stream = new EventSource(`/api/run?name=${encodeURIComponent(name)}`);
  stream.onmessage = (event) => { document.body.classList.remove("offline"); take(JSON.parse(event.data)); };
  stream.onerror = () => { document.body.classList.add("offline"); };
  addEventListener("resize", () => { if (state.details) requestAnimationFrame(() => { draw(); drawSchedule(); }); });
  place("home").hidden = !name;
})();
