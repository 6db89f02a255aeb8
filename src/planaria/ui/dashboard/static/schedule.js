"use strict";
// A step as planned beside as it ran: a row a stage, a box an instruction, coloured by its layers as worms are.

P.STEP = { row: 24, head: 22, top: 6, left: 128, letter: 6.4, right: 6, foot: 20, tall: 17, low: 11, sum: 4 };
P.numSteps = 0;

// found: of /api/schedule; options: {details, width, choose: (step or null) => ..., isNewest}
P.schedulePart = (found, { details, width, choose, isNewest }) => {
  const recovered = details.recoveries.filter((one) => one.step === found.step);
  const gone = new Set(recovered.flatMap((one) => one.lost_nodes));
  const seconds = Math.max(...[found.planned, found.measured].filter(Boolean).map((one) => one.step_s), 0);
  const both = found.planned && found.measured && width > 720;
  const options = { seconds, width: both ? width / 2 - 20 : width, layers: details.layers, perNode: details.devices_per_node };
  const struck = new Set(details.recoveries.map((one) => one.step));
  const told = [...recovered.map((one) => P.el("p", { class: "bad" }, one.text)), ...found.notes.map((note) => P.el("p", { class: "quiet" }, note))];
  return [
    found.steps.length ? P.el("p", {}, P.el("label", {}, "Step ", P.el("select", { id: "schedule-step", change: (event) => choose(event.target.value) },
      P.el("option", { value: "", selected: isNewest ? "" : null }, `the newest${isNewest && found.step !== null ? `: ${found.step}` : ""}`),
      [...found.steps].reverse().map((step) => P.el("option", { value: step, selected: !isNewest && step === found.step ? "" : null },
        `${step}${struck.has(step) ? " (nodes were lost)" : ""}`))))) : null,
    P.el("div", { class: both ? "pair" : "" },
      found.planned ? P.stepPicture(`Plan ${found.generation}: ${P.duration(found.planned.step_s)} planned`, "planned", found.planned, { ...options, gone: new Set() }) : null,
      found.measured ? P.stepPicture(`Step ${P.whole(found.step)}: ${P.duration(found.measured.step_s)} measured`, "measured", found.measured, { ...options, gone }) : null),
    ...told,
    found.planned || found.measured ? P.el("p", { class: "legend" }, ["forward", "backward", "weight", "shadow", "sync"]
      .filter((kind) => [found.planned, found.measured].some((one) => one && one.pipelines.some((p) => p.rows.some((row) => row.cells.some((cell) => cell[0] === kind)))))
      .map((kind) => P.el("span", { class: `key boxkey ${kind}` }, P.STEP_WORDS[kind])), P.el("span", {}, "numbers are microbatches, colours are layers")) : null,
  ];
};

P.STEP_WORDS = { forward: "forward", backward: "backward", weight: "gradients of weights", shadow: "of a shadowed stage", sync: "sum of gradients" };

P.stepPicture = (title, kind, picture, { seconds, width, layers, perNode, gone }) => {
  const { row, head, top, letter, right, foot } = P.STEP;
  const names = picture.pipelines.flatMap((one) => one.rows.map((worker) => worker.name.length + 2));
  const left = Math.max(P.STEP.left, 8 + letter * Math.max(...names, 0));
  const height = top + foot + picture.pipelines.reduce((sum, one) => sum + head + row * one.rows.length, 0);
  const each = (width - left - right) / (seconds || 1);
  const drawn = P.svg("svg", { viewBox: `0 0 ${width} ${height}`, class: `steps ${kind}`, role: "img", "aria-label": title });
  const fills = P.layerFills(drawn, layers);
  for (const tick of P.ticks(0, seconds, 5))
    drawn.append(P.svg("path", { d: `M${left + tick * each} ${top}V${height - foot}`, class: "grid" }),
      P.svg("text", { x: left + tick * each, y: height - 5, class: "axis middle" }, P.duration(tick)));
  drawn.append(P.svg("path", { d: `M${left + picture.step_s * each} ${top}V${height - foot}`, class: "end" },
    P.svg("title", {}, `end of the step: ${P.duration(picture.step_s)}`)));
  let y = top;
  for (const pipeline of picture.pipelines) {
    const name = pipeline.number === null ? "not in the plan" : `pipeline ${pipeline.number}: ${P.count(pipeline.microbatches, "microbatch")}`;
    drawn.append(P.svg("text", { x: 0, y: y + 15, class: "heading" }, name));
    y += head;
    for (const worker of pipeline.rows) {
      const isGone = gone.has(Math.floor(worker.worker / perNode));
      drawn.append(P.svg("text", { x: left - 8, y: y + 13, class: `name${isGone ? " dead" : ""}` }, worker.name + (isGone ? " ✕" : "")),
        P.svg("rect", { x: left, y, width: width - left - right, height: P.STEP.tall, rx: 3, class: "lane" }));
      for (const cell of worker.cells) P.stepBox(drawn, cell, { y, x: left, each, layers, fills });
      y += row;
    }
  }
  return P.el("figure", { class: "chartbox" }, P.el("figcaption", {}, P.el("h3", {}, title)), drawn,
    picture.num_left_out ? P.el("p", { class: "quiet" }, `${P.count(picture.num_left_out, "more pipeline")} not drawn`) : null);
};

P.stepBox = (drawn, [kind, number, first, end, start_s, end_s], { y, x, each, layers, fills }) => {
  const { tall, low, sum } = P.STEP;
  const wide = Math.max(0.6, (end_s - start_s) * each);
  const size = kind === "sync" ? [y + tall + 1, sum] : kind === "forward" ? [y + (tall - low) / 2, low] : [y, tall];
  const held = end - first === 1 ? `layer ${first}` : `layers ${first}–${end - 1}`;
  const what = `${P.STEP_WORDS[kind]}${number < 0 ? "" : ` ${kind === "sync" ? "group " : ""}${number}`}, ${held}`;
  const box = { x: x + start_s * each, y: size[0], width: wide, height: size[1], rx: Math.min(2.5, wide / 3), fill: fills(first, end, kind !== "forward") };
  drawn.append(P.svg("rect", { ...box, class: `box ${kind}` }, P.svg("title", {}, `${what}: ${P.duration(start_s)} to ${P.duration(end_s)}`)));
  const text = String(number);
  if (kind !== "sync" && wide >= 6 * text.length + 3)
    drawn.append(P.svg("text", { x: box.x + wide / 2, y: y + 12, class: P.isDark((first + end - 1) / 2, layers) ? "layer pale" : "layer" }, text));
};

// Returns what paints layers: from the lowest to the highest as a forward goes, or back.
P.layerFills = (drawn, layers) => {
  const id = `step${(P.numSteps += 1)}`;
  const places = P.svg("defs");
  drawn.append(places);
  const known = new Set();
  return (first, end, isBack) => {
    if (end - first < 2) return P.layerColour(first, layers);
    const name = `${id}-${first}-${end}-${isBack}`;
    if (!known.has(name)) {
      known.add(name);
      const colours = Array.from({ length: end - first }, (_, at) => P.layerColour(first + at, layers));
      if (isBack) colours.reverse();
      places.append(P.svg("linearGradient", { id: name }, colours.map((colour, at) =>
        P.svg("stop", { offset: at / (colours.length - 1), "stop-color": colour }))));
    }
    return `url(#${name})`;
  };
};
