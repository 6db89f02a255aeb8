"use strict";
// The report, from the data in this file: a run by the page's parts, anything else by sections of charts and tables.

P.part = (title, ...children) => P.el("section", {}, P.el("h2", {}, title), ...children);

// chart: {label, lines, marks, word, height}; word "": over time
P.sheetChart = ({ label, lines, marks, word, height }) => P.chart({ label, lines, marks, height, width: 1060, fromZero: true,
  wordX: word || "after", formatX: word ? (value) => P.number(value) : P.duration });

P.sheetPart = ({ title, charts, shares, table, notes }) => P.part(title,
  ...charts.map(P.sheetChart),
  ...shares.map((one) => P.el("div", { class: "sharing" }, P.el("h3", {}, one.name), P.shares(one.parts, `where the time of ${one.name} went`))),
  table && P.table(table.heads, table.rows.map((row) => P.el("tr", {}, row.map((cell) => P.el("td", {}, cell))))),
  ...notes.map((note) => P.el("p", { class: "quiet" }, note)));

P.sheetReport = ({ title, subtitle, sections }) => {
  document.title = `${title}: report`;
  return [P.el("h1", {}, title), P.el("p", { class: "quiet" }, subtitle), ...sections.map(P.sheetPart)];
};

P.runReport = ({ now, details, run, series, sections }) => {
  const { part } = P, { rows } = series;
  const name = run.run.split("/").pop();
  document.title = `${name}: report`;
  return [
    P.el("div", { class: "title" }, P.el("h1", {}, name), P.el("span", { class: `pill ${run.state}` }, run.state), P.el("span", { class: "quiet" }, `policy ${details.policy}`)),
    P.el("p", { class: "quiet" }, `${now.began_s ? `${P.date(now.began_s)}, ` : ""}${P.duration(now.elapsed_s)}. ${details.message}`),
    P.el("dl", { id: "facts" }, P.facts(now, details)),
    ...(sections || []).map(P.sheetPart),
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
    part("What happened", P.logPart(details)),
  ];
};

(() => {
  const found = JSON.parse(document.getElementById("data").textContent);
  P.show(document.getElementById("report"), ...(found.run ? P.runReport(found) : P.sheetReport(found)));
})();
