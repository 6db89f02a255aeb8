"use strict";
// Lines over steps or time, a bar of shares, and the lives of nodes: SVG, one path a line.

P.ticks = (low, high, most) => {
  const span = high - low || Math.abs(high) || 1;
  let size = 10 ** Math.floor(Math.log10(span / most));
  for (const factor of [1, 2, 5, 10]) if (span / (size * factor) <= most) { size *= factor; break; }
  const found = [];
  for (let at = Math.ceil(low / size - 1e-9); at * size <= high + size * 1e-9; at += 1) found.push(at * size);
  return found;
};

P.SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].reverse();
P.timeTicks = (low, high, most) => {
  const size = P.SPANS.filter((span) => (high - low) / span <= most).pop();
  if (!size || high - low < most) return P.ticks(low, high, most);
  return Array.from({ length: Math.floor(high / size) - Math.ceil(low / size) + 1 }, (_, at) => (Math.ceil(low / size) + at) * size);
};
P.timeTick = (seconds) => P.duration(seconds).replace(/(\D) 0 (s|min)$/, "$1");

P.extent = (values) => {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : [low, high];
};

// lines: [{name, points: [[x, y]...], kind, band: [[x, low, high]...]}], marks: [{x, kind, text}]
P.chart = ({ label, lines, marks = [], fromZero = false, format = P.number, formatX = P.whole, wordX = "step", height = 190, width = 520 }) => {
  const margin = { left: 46, right: 16, top: 10, bottom: 24 };
  const xs = P.extent(lines.flatMap((line) => [line.points[0]?.[0], line.points[line.points.length - 1]?.[0]]));
  const values = lines.flatMap((line) => line.points.map((point) => point[1]));
  let [low, high] = P.extent(values);
  if (fromZero) low = 0;
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  [low, high] = [fromZero ? 0 : low - room, high + room];
  const inner = [width - margin.left - margin.right, height - margin.top - margin.bottom];
  const x = (value) => margin.left + ((value - xs[0]) / (xs[1] - xs[0] || 1)) * inner[0];
  const y = (value) => margin.top + (1 - (Math.min(Math.max(value, low), high) - low) / (high - low)) * inner[1];
  const picture = P.svg("svg", { viewBox: `0 0 ${width} ${height}`, class: marks.length > 24 ? "chart dense" : "chart", role: "img", "aria-label": label });
  for (const tick of P.ticks(low, high, 4))
    picture.append(P.svg("path", { d: `M${margin.left} ${y(tick)}H${width - margin.right}`, class: "grid" }),
      P.svg("text", { x: margin.left - 7, y: y(tick) + 4, class: "axis end" }, format(tick)));
  const isTime = formatX === P.duration;
  for (const tick of (isTime ? P.timeTicks : P.ticks)(xs[0], xs[1], 5))
    picture.append(P.svg("text", { x: x(tick), y: height - 7, class: "axis middle" }, isTime ? P.timeTick(tick) : formatX(tick)));
  for (const mark of marks.filter((one) => one.x >= xs[0] && one.x <= xs[1]))
    picture.append(P.svg("path", { d: `M${x(mark.x)} ${margin.top}V${height - margin.bottom}`, class: `mark ${mark.kind}` },
      P.svg("title", {}, mark.text)));
  for (const line of lines) {
    if (line.band && line.band.length > 1) {
      const upper = line.band.map(([at, , top]) => `${x(at).toFixed(1)} ${y(top).toFixed(1)}`);
      const lower = line.band.map(([at, bottom]) => `${x(at).toFixed(1)} ${y(bottom).toFixed(1)}`).reverse();
      picture.append(P.svg("path", { d: `M${upper.join("L")}L${lower.join("L")}Z`, class: `band ${line.kind}` }));
    }
    if (line.dots)
      for (const point of line.points) picture.append(P.svg("circle", { cx: x(point[0]), cy: y(point[1]), r: 3, class: `dot ${line.kind}` }));
    else picture.append(P.svg("path", { d: P.path(line.points, x, y), class: `line ${line.kind}` }));
    for (const [at, value] of line.points.filter((point) => point[0] === line.best))
      picture.append(P.svg("circle", { cx: x(at), cy: y(value), r: 6.5, class: `best ${line.kind}` }, P.svg("title", {}, `best: step ${P.whole(at)}`)));
  }
  P.cursor(picture, { lines, x, xs, width, margin, height, format, formatX, wordX });
  return P.el("figure", { class: "chartbox" },
    P.el("figcaption", {}, P.el("h3", {}, label),
      lines.length > 1 || lines[0]?.name ? P.el("span", { class: "legend" },
        lines.map((line) => P.el("span", { class: `key ${line.kind}${line.dots ? " dots" : ""}` }, line.name))) : null),
    picture);
};

P.path = (points, x, y) => {
  let path = "", isNew = true;
  for (const [at, value] of points) {
    if (value === null || value === undefined) { isNew = true; continue; }
    path += `${isNew ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    isNew = false;
  }
  return path;
};

P.nearest = (points, at) => {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < at) low = middle; else high = middle;
  }
  return points[high] && points[low] && Math.abs(points[high][0] - at) < Math.abs(points[low][0] - at) ? points[high] : points[low];
};

P.cursor = (picture, { lines, x, xs, width, margin, height, format, formatX, wordX }) => {
  const rule = P.svg("path", { class: "cursor" });
  const told = P.svg("text", { class: "told", y: margin.top + 9 });
  picture.append(rule, told);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * width - margin.left) / (width - margin.left - margin.right);
    const point = lines[0] && P.nearest(lines[0].points, xs[0] + share * (xs[1] - xs[0]));
    if (!point || share < 0 || share > 1) return;
    const values = lines.map((line) => [line, P.nearest(line.points, point[0])]).filter(([, found]) => found && found[1] !== null);
    told.textContent = `${wordX} ${formatX(point[0])}:  ${values.map(([line, found]) => `${line.name || ""} ${format(found[1])}`).join("   ")}`;
    const isRight = x(point[0]) > width / 2;
    told.setAttribute("x", x(point[0]) + (isRight ? -6 : 6));
    told.setAttribute("text-anchor", isRight ? "end" : "start");
    rule.setAttribute("d", `M${x(point[0])} ${margin.top}V${height - margin.bottom}`);
  });
  picture.addEventListener("pointerleave", () => { told.textContent = ""; rule.removeAttribute("d"); });
};

// parts: [[name, seconds, kind]...]
P.shares = (parts, label) => {
  const all = parts.reduce((sum, [, value]) => sum + value, 0) || 1;
  const picture = P.svg("svg", { viewBox: "0 0 600 14", class: "shares", preserveAspectRatio: "none", role: "img", "aria-label": label });
  let at = 0;
  for (const [name, value, kind] of parts) {
    const wide = (value / all) * 600;
    picture.append(P.svg("rect", { x: at, y: 0, width: wide, height: 14, class: `share ${kind}` },
      P.svg("title", {}, `${name}: ${P.duration(value)}`)));
    at += wide;
  }
  const words = parts.filter(([, value]) => value > 0).map(([name, value, kind]) =>
    P.el("span", { class: `key block ${kind}` }, `${name} ${P.duration(value)} (${P.percent(value / all)})`));
  return P.el("div", {}, picture, P.el("p", { class: "legend" }, words));
};

P.lives = (nodes, end) => {
  const row = 14, left = 62, width = 900;
  const picture = P.svg("svg", { viewBox: `0 0 ${width} ${nodes.length * row + 20}`, class: "chart", role: "img", "aria-label": "lives of nodes" });
  const x = (seconds) => left + (seconds / (end || 1)) * (width - left - 10);
  nodes.forEach((node, at) => {
    const gone = node.gone_s === null ? end : node.gone_s;
    picture.append(P.svg("text", { x: left - 8, y: at * row + 11, class: "axis end" }, `node ${node.node}`),
      P.svg("rect", { x: x(node.joined_s), y: at * row + 3, width: Math.max(1, x(gone) - x(node.joined_s)), height: 9, rx: 4.5, class: "life" },
        P.svg("title", {}, `node ${node.node}: ${node.state}${node.detail ? `, ${node.detail}` : ""}`)));
    if (node.state === "lost" || node.state === "hung")
      picture.append(P.svg("path", { d: `M${x(gone) - 4} ${at * row + 3.5}l8 8m0 -8l-8 8`, class: "cross" }));
  });
  for (const tick of P.timeTicks(0, end, 6))
    picture.append(P.svg("text", { x: x(tick), y: nodes.length * row + 15, class: "axis middle" }, P.timeTick(tick)));
  return picture;
};
