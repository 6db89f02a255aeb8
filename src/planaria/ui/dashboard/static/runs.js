"use strict";
// The table of runs, and the curves of those that are marked over each other.

(() => {
  const place = (id) => document.getElementById(id);
  const marked = new Set();
  const KINDS = 8;

  const nameOf = (run) => run.run.split("/").pop();
  const age = (run) => P.duration(Math.max(0, Date.now() / 1000 - run.changed_s)).replace(/ \d+(\.\d+)? (ms|s)$/, "");

  const table = (runs) => {
    if (!runs.length) { P.show(place("runs"), P.el("p", { class: "quiet" }, "There are no runs yet. planaria train JOB makes one.")); return; }
    const box = (run) => P.el("input", { type: "checkbox", "aria-label": `compare ${nameOf(run)}`, checked: marked.has(nameOf(run)) ? "" : null,
      change: (event) => { if (event.target.checked) marked.add(nameOf(run)); else marked.delete(nameOf(run)); compare(); } });
    P.show(place("runs"), P.el("table", { class: "runs" },
      P.el("thead", {}, P.el("tr", {}, ["", "run", "state", "step", "loss", "nodes", "policy", "last written"].map((word) => P.el("th", {}, word)))),
      P.el("tbody", {}, runs.map((run) => P.el("tr", {},
        P.el("td", {}, box(run)), P.el("td", {}, P.el("a", { href: `/run?name=${encodeURIComponent(nameOf(run))}` }, nameOf(run))),
        P.el("td", {}, P.el("span", { class: `pill ${run.state}` }, run.state)), P.el("td", {}, `${P.whole(run.step)} of ${P.whole(run.steps)}`),
        P.el("td", {}, P.loss(run.loss)), P.el("td", {}, run.nodes === null ? "–" : String(run.nodes)),
        P.el("td", {}, run.policy), P.el("td", {}, `${age(run)} ago`))))));
  };

  const compare = async () => {
    place("compared").hidden = marked.size < 1;
    if (!marked.size) return;
    const query = [...marked].slice(0, KINDS).map((name) => `name=${encodeURIComponent(name)}`).join("&");
    const found = await (await fetch(`/api/compare?${query}`)).json();
    const lines = (column) => found.map((run, at) => ({ name: run.name, kind: `run${at}`, points: run.rows.map((row) => [row[0], row[column]]) }));
    P.show(place("charts"), P.chart({ label: "Loss", lines: lines(2) }), P.chart({ label: "Throughput, tokens/s", lines: lines(5), fromZero: true }));
  };

  const stream = new EventSource("/api/runs");
  stream.onmessage = (event) => { document.body.classList.remove("offline"); table(JSON.parse(event.data)); };
  stream.onerror = () => { document.body.classList.add("offline"); };
  setInterval(compare, 5000);
})();
