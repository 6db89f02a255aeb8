"use strict";
// What all drawing needs: elements, numbers as text, colours of layers. Text goes in as text, never as markup.

const P = {};

P.el = (tag, attributes = {}, ...children) => P.fill(document.createElement(tag), attributes, children);
P.svg = (tag, attributes = {}, ...children) =>
  P.fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

P.fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
};

P.show = (place, ...children) => place.replaceChildren(...children.flat().filter((child) => child !== null));

// Numbers

P.number = (value, digits = 3) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toPrecision(digits)}G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(digits)}M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(digits)}k`;
  if (size >= 100) return value.toFixed(0);
  return size === 0 ? "0" : String(Number(value.toPrecision(digits)));
};
P.count = (value, word) => `${value.toLocaleString("en")} ${word}${value === 1 ? "" : word.endsWith("ch") ? "es" : "s"}`;
P.whole = (value) => value.toLocaleString("en");
P.percent = (value) => `${(100 * value).toFixed(value < 0.1 && value > 0 ? 1 : 0)}%`;
P.loss = (value) => (value === null || value === undefined ? "–" : value.toFixed(4));

P.duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) return `${(seconds * 1000).toPrecision(3) * 1} ms`;
  if (seconds < 60) return `${seconds.toPrecision(3) * 1} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${(seconds / 86400).toFixed(1)} days`;
};

P.bytes = (value) => {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${Number(value.toPrecision(3))} ${unit}`;
    value /= 1000;
  }
  return `${Number(value.toPrecision(3))} TB`;
};

P.list = (numbers) => {
  const parts = [];
  for (let at = 0; at < numbers.length; ) {
    let end = at;
    while (end + 1 < numbers.length && numbers[end + 1] === numbers[end] + 1) end += 1;
    parts.push(...(end - at > 1 ? [`${numbers[at]}–${numbers[end]}`] : numbers.slice(at, end + 1)));
    at = end + 1;
  }
  return parts.join(", ");
};

P.lost = (recovery) => {
  const nodes = recovery.lost_nodes.length ? [`node ${P.list(recovery.lost_nodes)}`] : [];
  const named = (device) => `device ${device.split(":")[1]} of node ${device.split(":")[0]}`;
  return [...nodes, ...recovery.lost_devices.map(named)].join(", ");
};

// Colours: of layers from the first to the last, as in the pictures of the documentation

P.PALETTE = ["#ffd6a5", "#ffc78f", "#f9b384", "#f19c79", "#e3877a", "#cf7580", "#b36a8a", "#935f8f"];

P.layerColour = (layer, layers) => {
  const at = layers > 1 ? (layer / (layers - 1)) * (P.PALETTE.length - 1) : 0;
  const [low, high] = [P.PALETTE[Math.floor(at)], P.PALETTE[Math.min(Math.ceil(at), P.PALETTE.length - 1)]];
  const mix = [1, 3, 5].map((byte) => {
    const [a, b] = [low, high].map((colour) => parseInt(colour.slice(byte, byte + 2), 16));
    return Math.round(a + (b - a) * (at % 1));
  });
  return `rgb(${mix.join(",")})`;
};
P.isDark = (layer, layers) => layers > 1 && layer / (layers - 1) > 0.68;
