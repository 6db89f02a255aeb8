"use strict";
// The parts of the page and of the report, from what the view of a run tells.

P.fact = (name, value, more, kind = "") =>
  P.el("div", { class: `fact ${kind}`, id: `fact-${name.toLowerCase().replace(/ /g, "-")}` },
    P.el("dt", {}, name), P.el("dd", {}, value), P.el("p", {}, more || " "));

P.facts = (now, details) => {
  const live = now.live_nodes, at_start = details.num_nodes_at_start;
  const last = details.recoveries[details.recoveries.length - 1];
  const evaluated = details.evaluations[details.evaluations.length - 1];
  const share = now.expected_step_s && now.step_s ? now.expected_step_s / now.step_s : null;
  const left = now.step && now.step < now.steps && now.step_s ? (now.steps - now.step) * now.step_s : null;
  return [
    P.fact("Step", P.whole(now.step), `of ${P.whole(now.steps)}` + (left && details.phase === "training" ? ` · about ${P.duration(left)} left` : "")),
    P.fact("Loss", P.loss(now.loss), evaluated ? `evaluated ${P.loss(evaluated[1])} after step ${P.whole(evaluated[0])}` : "mean of the last step"),
    P.fact("Throughput", now.tokens_per_s === null ? "–" : `${P.number(now.tokens_per_s)} tok/s`,
      share === null ? "" : `${P.duration(now.step_s)} a step, ${P.duration(now.expected_step_s)} planned`),
    P.fact("Nodes", String(live), at_start ? `of ${at_start} at the start` : "", live < at_start ? "warn" : ""),
    P.fact("Last recovery", last ? P.duration(last.resume_ms / 1000) : "none",
      last ? `step ${P.whole(last.step)}, ${P.lost(last)} · ${P.whole(details.num_recoveries)} in all` : "no node was lost"),
    ...(now.cost ? [P.fact("Cost", P.dollars(now.cost), details.costs?.samples_per_dollar ? `${P.number(details.costs.samples_per_dollar)} samples a dollar` : "so far")] : []),
  ];
};

P.gone = (details) => new Set(details.nodes.filter((node) => ["lost", "hung", "released"].includes(node.state)).map((node) => node.node));

P.planPart = (details) => {
  if (!details.plan) return [P.el("p", { class: "quiet" }, "No plan yet: nodes join.")];
  const options = { layers: details.layers, perNode: details.devices_per_node, gone: P.gone(details), moved: details.moved };
  return [P.worms(details.plan, options), P.el("p", { class: "reason" }, details.plan.reason)];
};

P.states = ["works", "slow", "hung", "lost", "joining", "leaving", "spare", "released"];

P.nodesPart = (details) => {
  const zones = new Map();
  for (const node of details.nodes) zones.set(node.zone, [...(zones.get(node.zone) || []), node]);
  const found = new Set(details.nodes.map((node) => node.state));
  const chips = (nodes) => P.el("div", { class: "chips" }, nodes.map((node) =>
    P.el("span", { class: `chip ${node.state}`, title: `node ${node.node}: ${node.state}${node.detail ? `, ${node.detail}` : ""}` }, String(node.node))));
  return [
    ...[...zones].map(([zone, nodes]) => P.el("div", { class: "zone" }, zones.size > 1 || zone ? P.el("h3", {}, zone || "no zone") : null, chips(nodes))),
    P.el("p", { class: "legend" }, P.states.filter((state) => found.has(state)).map((state) => P.el("span", { class: `key chipkey ${state}` }, state))),
  ];
};

P.recovery = (one, details, isOpen) => {
  const options = { layers: details.layers, perNode: details.devices_per_node, narrow: true };
  const state = (title, plan, gone) => plan && P.el("div", {}, P.el("h3", {}, title), P.worms(plan, { ...options, gone }));
  return P.el("details", { class: "recovery", open: isOpen ? "" : null, "data-step": one.step },
    P.el("summary", {}, P.el("span", { class: "when" }, `step ${P.whole(one.step)}`),
      P.el("span", { class: "what" }, `${P.lost(one)} lost`), P.el("span", { class: "cost" }, `${P.duration(one.resume_ms / 1000)} to the next step`)),
    P.el("ul", { class: "figures" },
      P.el("li", {}, one.cause), one.detect_ms === null ? null : P.el("li", {}, `seen after ${P.duration(one.detect_ms / 1000)}`),
      P.el("li", {}, `decided in ${P.duration(one.decide_ms / 1000)}`),
      P.el("li", {}, `${P.whole(one.microbatches_rerun)} of ${P.whole(one.microbatches_per_step)} microbatches ran again`),
      P.el("li", {}, one.transfer_bytes ? `${P.bytes(one.transfer_bytes)} moved` : "no state moved"),
      one.steps_redone ? P.el("li", {}, `${P.count(one.steps_redone, "step")} trained again`) : null),
    P.el("div", { class: "pair" }, state("before", one.before, new Set(one.lost_nodes)), state("after", one.after, new Set())),
    P.el("p", { class: "reason" }, one.reason), one.why === one.reason ? null : P.el("p", { class: "reason" }, one.why),
    P.candidates(P.decisionOf(details, one.generation) || one));
};

P.recoveriesPart = (details, open = null) => {
  if (!details.recoveries.length) return [P.el("p", { class: "quiet" }, "None. No node was lost.")];
  const last = details.recoveries.length - 1;
  return details.recoveries.map((one, at) => P.recovery(one, details, open ? open.has(`${one.step}`) : at === last)).reverse();
};

P.splitPart = (split) => P.shares([["useful", split.useful, "useful"], ["redone", split.redone, "redone"],
  ["recovering", split.recovering, "recovering"], ["waiting", split.waiting, "waiting"], ["start, end, other", split.other, "other"]],
  "where the time went");

P.marks = (details, at) => details.marks.map((mark) => ({ x: mark[at], kind: mark.kind,
  text: `step ${P.whole(mark.step)}: ${mark.node === null ? "" : `node ${mark.node} `}${mark.kind}` }));

P.lossChart = (rows, details, more = {}) => P.chart({ label: "Loss", lines: [
  { name: "training", kind: "loss", points: rows.map((row) => [row[0], row[2]]),
    band: rows.some((row) => row[3] !== row[4]) ? rows.filter((row) => row[3] !== null).map((row) => [row[0], row[3], row[4]]) : null },
  ...(details.evaluations.length ? [P.evaluationLine(details, 1, "evaluation")] : []),
], marks: P.marks(details, "step"), ...more });

P.throughputChart = (rows, details, byTime = false, more = {}) => P.chart({ label: "Throughput, tokens/s", fromZero: true, lines: [
  { name: "measured", kind: "speed", points: rows.map((row) => [row[byTime ? 1 : 0], row[5]]) },
  { name: "planned", kind: "planned", points: rows.map((row) => [row[byTime ? 1 : 0], row[6] || null]) },
], marks: P.marks(details, byTime ? "time_s" : "step"), formatX: byTime ? P.duration : P.whole, wordX: byTime ? "after" : "step", ...more });

P.clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
P.date = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";
P.logPart = (details) => P.el("ol", { class: "log" }, details.sentences.map(([time, text]) =>
  P.el("li", {}, P.el("time", {}, P.clock(time)), P.el("span", {}, text))).reverse());
