"use strict";
// The report: the page's parts, one after the other, from the data in this file.

(() => {
  const found = JSON.parse(document.getElementById("data").textContent);
  const { now, details, run } = found;
  const rows = found.series.rows;
  const part = (title, ...children) => P.el("section", {}, P.el("h2", {}, title), ...children);
  const name = run.run.split("/").pop();
  document.title = `${name}: report`;
  P.show(document.getElementById("report"),
    P.el("div", { class: "title" }, P.el("h1", {}, name), P.el("span", { class: `pill ${run.state}` }, run.state), P.el("span", { class: "quiet" }, `policy ${details.policy}`)),
    P.el("p", { class: "quiet" }, `${now.began_s ? `${P.date(now.began_s)}, ` : ""}${P.duration(now.elapsed_s)}. ${details.message}`),
    P.el("dl", { id: "facts" }, P.facts(now, details)),
    part("Throughput over time", P.throughputChart(rows, details, true, { width: 1060, height: 260 }),
      P.el("p", { class: "quiet" }, "Red lines: nodes lost. Green: nodes joined.")),
    now.split ? part("Where the time went", P.splitPart(now.split)) : null,
    part("The last plan", ...P.planPart(details)),
    part("Loss", P.lossChart(rows, details, { width: 1060, height: 260 })),
    details.evaluations.length ? part("Evaluations", ...P.evaluationsPart(details)) : null,
    details.costs ? part("Cost, and what it bought", ...P.costPart(rows, details)) : null,
    part("Lives of nodes", P.lives(details.nodes, now.elapsed_s)),
    part("Recoveries", ...P.recoveriesPart(details, new Set(details.recoveries.map((one) => `${one.step}`)))),
    part("Decisions, and what the others would have given", ...P.decisionsPart(details), ...P.otherDecisions(details)),
    part("What happened", P.logPart(details)));
})();
