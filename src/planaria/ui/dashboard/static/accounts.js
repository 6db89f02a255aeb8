"use strict";
// Decisions with their regret, cost and what a dollar bought, evaluations: parts of the page and of the report.

P.dollars = (value) => (value === null || value === undefined ? "–" : `$${value < 1 ? Number(value.toPrecision(3)) : value.toFixed(2)}`);
P.samples = (value) => `${P.whole(Math.round(value))} sample${Math.round(value) === 1 ? "" : "s"}`;
P.table = (heads, rows, more = {}) => P.el("div", { class: "scroll" }, P.el("table", more,
  P.el("thead", {}, P.el("tr", {}, heads.map((word) => P.el("th", {}, word)))), P.el("tbody", {}, rows)));

// Decisions

P.decisionOf = (details, generation) => details.decisions.find((one) => one.generation === generation);

// decision: {candidates, the one taken first; what was trained under it}, or a recovery whose decision is not kept
P.candidates = (decision) => {
  const { candidates, regret } = decision;
  if (!candidates.length) return null;
  const most = Math.max(...candidates.map((one) => one.samples_per_s));
  const heads = ["candidate", "samples/s", "", "a step", "transition", "moves", "memory", ...(regret ? ["would have given"] : [])];
  const rows = candidates.map((one, at) => P.el("tr", { class: at ? "" : "chosen" },
    P.el("td", {}, one.name, one.is_degraded ? " (degraded)" : "", at ? "" : " ✓"),
    P.el("td", {}, P.number(one.samples_per_s, 4)),
    P.el("td", { class: "bar" }, P.svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none" },
      P.svg("rect", { width: (100 * one.samples_per_s) / (most || 1), height: 8, rx: 2 }))),
    P.el("td", {}, P.duration(one.step_time_s)), P.el("td", {}, P.duration(one.transition_s)),
    P.el("td", {}, one.transfer_bytes ? P.bytes(one.transfer_bytes) : "nothing"), P.el("td", {}, P.bytes(one.memory_bytes)),
    regret ? P.el("td", {}, at ? `about ${P.samples(one.would_give)}` : `${P.samples(one.would_give)}, as measured`) : null));
  const left = (decision.num_candidates || 0) - candidates.length;
  return P.el("div", {}, P.table(heads, rows),
    left > 0 ? P.el("p", { class: "quiet" }, `${P.count(left, "other candidate")} not shown.`) : null,
    regret ? P.el("p", { class: "reason" }, P.hindsight(decision)) : null);
};

P.hindsight = ({ candidates, regret, steps, seconds, samples }) =>
  `Measured: the plan trained ${P.samples(samples)} in ${P.count(steps, "step")} of ${P.duration(seconds)} in all, ${P.number(samples / seconds, 4)} a second, ` +
  `${P.number(regret.factor)} times its estimate. Estimated: what the others would have given in that time, by their steps and transitions, ` +
  `times the same ${P.number(regret.factor)}. ` + (regret.lost > 0
    ? `In hindsight ${regret.best} would have given about ${P.number(regret.lost)} samples more (${P.percent(regret.lost / samples)}).`
    : `In hindsight ${candidates[0].name} was the best.`);

P.regret = (regret) => {
  if (!regret.weighed) return "No decision had candidates to choose from.";
  const unknown = regret.weighed - regret.judged;
  return `${P.count(regret.num, "decision")}, ${P.whole(regret.weighed)} with several candidates. Regret in all: about ` +
    `${P.number(regret.lost)} samples, ${regret.trained ? P.percent(regret.lost / regret.trained) : "0%"} of the ${P.whole(regret.trained)} trained under ` +
    `${P.count(regret.judged, "judged decision")}. What was trained is measured; what the other candidates would have given is estimated.` +
    (unknown ? ` ${P.count(unknown, "decision")} could not be judged: no step under the plan, or its transition took all of its time.` : "");
};

P.decisionsPart = (details) => [
  P.el("p", { class: "quiet", id: "regret" }, P.regret(details.regret)),
  P.table(["plan", "from step", "why", "policy", "planned", "measured", "moves", "trained", "regret"], details.decisions.map((one) =>
    P.el("tr", { title: one.reason },
      P.el("td", {}, String(one.generation)), P.el("td", {}, P.whole(one.step)), P.el("td", {}, one.purpose), P.el("td", {}, one.policy),
      P.el("td", {}, P.duration(one.estimated_step_s)), P.el("td", {}, P.duration(one.measured_step_s)),
      P.el("td", {}, one.transfer_bytes ? P.bytes(one.transfer_bytes) : "nothing"),
      P.el("td", {}, P.samples(one.samples)), P.el("td", {}, one.regret ? P.number(one.regret.lost) : "–"))).reverse(), { class: "decisions" }),
];

P.otherDecisions = (details) => {
  const told = new Set(details.recoveries.map((one) => one.generation));
  return details.decisions.filter((one) => one.candidates.length > 1 && !told.has(one.generation)).map((one) =>
    P.el("div", { class: "decision" }, P.el("h3", {}, `plan ${one.generation}, from step ${P.whole(one.step)}: ${one.purpose}`),
      P.el("p", { class: "reason" }, one.reason), P.candidates(one)));
};

// Cost

P.costPart = (rows, { costs, marks }) => {
  const chart = (label, points, format = P.dollars, more = {}) => P.chart({ label, fromZero: true, format, formatX: P.duration, wordX: "after", height: 170, width: 340,
    lines: [{ name: "", kind: "speed", points }], marks: marks.map((mark) => ({ x: mark.time_s, kind: mark.kind, text: mark.kind })), ...more });
  const hourly = P.slopes(rows, 1, 8, 3600), bought = P.slopes(rows, 8, 9, 1);
  const zones = costs.zones.map(([zone, price, hours]) => P.el("tr", {}, [zone || "no zone", P.dollars(price), P.number(hours), P.dollars(price * hours)]
    .map((cell) => P.el("td", {}, cell))));
  return [
    P.el("p", { id: "cost" }, `${P.dollars(costs.dollars)} for ${P.count(costs.steps, "step")}, ${P.samples(costs.samples)}: ` +
      `${P.number(costs.samples_per_dollar)} samples and ${P.number(costs.steps_per_dollar)} steps a dollar` +
      (costs.total ? `; the budget is ${P.dollars(costs.total)}.` : ".")),
    P.el("div", { class: "charts" },
      chart("Dollars so far", rows.map((row) => [row[1], row[8]])),
      chart("Dollars an hour", hourly),
      chart("Samples a dollar", bought, P.number, { lines: [
        { name: "at the time", kind: "speed", points: bought },
        { name: "of the run so far", kind: "planned", points: rows.map((row) => [row[1], row[8] ? row[9] / row[8] : null]) }] })),
    P.table(["zone", "a node and an hour", "hours of nodes", "about"], zones),
  ];
};

// By how much column `y` grows for each unit of column `x`, over a twentieth of the time around each row
P.slopes = (rows, x, y, factor) => {
  if (!rows.length) return [];
  const span = (rows[rows.length - 1][1] - rows[0][1]) / 40;
  let low = 0, high = 0;
  return rows.map((row) => {
    while (rows[low][1] < row[1] - span) low += 1;
    while (high < rows.length - 1 && (rows[high][1] < row[1] + span || high === low)) high += 1;
    const grown = rows[high][x] - rows[low][x];
    return [row[1], grown > 0 ? (factor * (rows[high][y] - rows[low][y])) / grown : null];
  });
};

// Evaluations: [step, loss, accuracy, is best so far, perplexity]

P.evaluationLine = (details, column, name) => ({
  name, kind: "evaluation", dots: details.evaluations.length < 60, best: details.best && details.best.step,
  points: details.evaluations.filter((found) => found[column] !== null).map((found) => [found[0], found[column]]),
});

P.bestText = ({ metric, step, saved }) =>
  `Ringed: the best by ${metric}, after step ${P.whole(step)}` + (saved === step ? "; its checkpoint is kept."
    : saved === null ? "; no checkpoint of an evaluated step is kept." : `; of the kept checkpoints step ${P.whole(saved)}'s is the best.`);

P.evaluationsPart = (details) => [
  P.el("div", { class: "charts" }, [["Held-out loss", 1, P.number], ["Perplexity", 4, P.number], ["Accuracy", 2, P.percent]]
    .filter(([, column]) => details.evaluations.some((found) => found[column] !== null))
    .map(([label, column, format]) => P.chart({ label, format, height: 170, width: 340, lines: [P.evaluationLine(details, column, "")], marks: P.marks(details, "step") }))),
  details.best ? P.el("p", { class: "quiet", id: "best" }, P.bestText(details.best)) : null,
];
