"use strict";
// A pipeline is a worm of layers: gaps between stages, hatched where state has to come, red where a node is gone.

P.WORM = { width: 300, height: 26, top: 4, foot: 20 };
P.numWorms = 0;

// plan: {pipelines, microbatches, devices, shared}; options: {layers, perNode, gone: Set of nodes, moved: {worker: layers}, narrow}
P.worms = (plan, options) => {
  const many = plan.pipelines.length;
  const place = P.el("div", { class: `worms${options.narrow ? " narrow" : ""}${many > 12 ? " many" : ""}` });
  plan.pipelines.forEach((stages, number) => place.append(P.worm(number, stages, plan.microbatches[number], { ...options, devices: plan.devices, shared: plan.shared })));
  return place;
};

P.worm = (number, stages, share, options) => {
  const { width, height, top, foot } = P.WORM;
  const { layers, perNode, gone } = options;
  const id = `worm${(P.numWorms += 1)}`;
  const each = width / Math.max(1, layers);
  const picture = P.svg("svg", {
    viewBox: `0 0 ${width} ${height + top + foot}`, class: "worm", role: "img",
    "aria-label": `pipeline ${number}: ${P.count(share || 0, "microbatch")}, ${P.count(stages.length, "stage")}`,
  });
  picture.append(
    P.svg("defs", {},
      P.svg("clipPath", { id }, P.svg("rect", { x: 0, y: top, width, height, rx: height / 2 })),
      P.svg("pattern", { id: `${id}h`, width: 6, height: 6, patternUnits: "userSpaceOnUse",
        patternTransform: "rotate(45)" }, P.svg("path", { d: "M0 0V6", class: "hatch" }))));
  for (const [start, end] of P.holes(stages, layers))
    picture.append(P.svg("rect", { x: start * each + 2, y: top + 1, width: Math.max(2, (end - start) * each - 4), height: height - 2, rx: 11,
      class: "hole" }, P.svg("title", {}, `layers ${start}–${end - 1}: run by other pipelines`)));
  const body = P.svg("g", { "clip-path": `url(#${id})` });
  const over = P.svg("g");
  const living = stages.filter(([worker]) => !gone.has(Math.floor(worker / perNode)));
  for (const stage of stages) P.stage(body, over, stage, { ...options, each, id, wide: stages.length });
  const first = living.find(([, start]) => start === 0);
  if (first) {
    const eye = Math.min(9, each / 2 + 1);
    for (const y of [top + height * 0.37, top + height * 0.63])
      over.append(P.svg("circle", { cx: eye, cy: y, r: 1.9, class: "eye" }));
  }
  picture.append(body, over);
  const told = [P.el("b", {}, P.whole(share || 0)), P.el("span", {}, share === 1 ? "microbatch" : "microbatches")];
  if (options.devices > 1)
    told.push(P.el("span", { class: "devices" }, `${options.shared ? "shared by" : "in turn on"} ${options.devices} devices`));
  return P.el("figure", { class: "pipeline" }, picture, P.el("figcaption", {}, ...told));
};

P.holes = (stages, layers) => {
  const found = [];
  let at = 0;
  for (const [, start, end] of [...stages].sort((a, b) => a[1] - b[1])) {
    if (start > at) found.push([at, start]);
    at = Math.max(at, end);
  }
  if (at < layers) found.push([at, layers]);
  return found;
};

P.stage = (body, over, [worker, start, end], options) => {
  const { height, top } = P.WORM;
  const { layers, perNode, gone, each, id, wide } = options;
  const node = Math.floor(worker / perNode);
  const isGone = gone.has(node);
  const [x, right] = [start * each, end * each];
  const held = end - start === 1 ? `layer ${start}` : `layers ${start}–${end - 1}`;
  const title = `node ${node}, ${held}${isGone ? ": gone" : ""}`;
  if (isGone) {
    const [middle, centre] = [(x + right) / 2, top + height / 2];
    over.append(
      P.svg("rect", { x: x + 2, y: top + 1, width: Math.max(2, right - x - 4), height: height - 2, rx: 11, class: "ghost" },
        P.svg("title", {}, title)),
      P.svg("path", { class: "cross", d: `M${middle - 7} ${centre - 7}L${middle + 7} ${centre + 7}` +
        `M${middle + 7} ${centre - 7}L${middle - 7} ${centre + 7}` }));
  } else {
    const moved = new Set((options.moved || {})[worker] || []);
    for (let layer = start; layer < end; layer += 1) {
      const box = { x: layer * each, y: top, width: each + 0.4, height };
      body.append(P.svg("rect", { ...box, fill: P.layerColour(layer, layers) }, P.svg("title", {}, title)));
      if (moved.has(layer)) body.append(P.svg("rect", { ...box, fill: `url(#${id}h)` }));
      if (each >= 15)
        body.append(P.svg("text", { x: (layer + 0.5) * each + (layer === 0 ? 4 : 0), y: top + height / 2 + 3.7,
          class: P.isDark(layer, layers) ? "layer pale" : "layer" }, String(layer)));
    }
  }
  if (end < layers) over.append(P.svg("path", { d: `M${right} 0V${height + 2 * top}`, class: "cut" }));
  const name = (wide <= 5 ? "node " : "") + node;
  if ((right - x) > name.length * 5.4)
    over.append(P.svg("text", { x: (x + right) / 2, y: height + top + 14, class: isGone ? "node dead" : "node" }, name));
};
