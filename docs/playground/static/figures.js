// The statistics as figures: latencies, and the time of a request by the size of its batch.

import { make, makeSvg } from "../shared/dom.js";
import { formatNumber, niceCeiling } from "../shared/curves.js";

const WIDTH = 420;
const HEIGHT = 190;
const [LEFT, RIGHT, TOP, BOTTOM] = [46, 12, 10, 34];

/** @type {(ms: number) => string} */
const formatMs = (ms) => `${formatNumber(ms)} ms`;

/** @type {(row: SizeRow) => string} */
const describeSize = ([size, count, queue, compute]) =>
  `${size} rows, ${count} batches, ${formatMs(queue)} in the queue, ${formatMs(compute)} executed`;

/** @type {(content: string, x: number, y: number, anchor?: string) => SVGElement} */
const text = (content, x, y, anchor = "middle") => makeSvg("text", { x, y, "text-anchor": anchor }, content);

/** @param {string} label @param {SVGElement[]} parts */
function frame(label, ...parts) {
  const viewBox = `0 0 ${WIDTH} ${HEIGHT}`;
  return makeSvg("svg", { viewBox, role: "img", "aria-label": label, class: "tnb-figure" }, ...parts);
}

/**
 * @param {string} xLabel @param {string} yLabel @param {(value: number) => number} y @param {number} top
 * @param {string} unit
 */
function axes(xLabel, yLabel, y, top, unit) {
  const lines = [0, 0.5, 1].map((share) => {
    const value = share * top;
    return [
      makeSvg("line", { class: "tnb-tick", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      text(`${formatNumber(value)}${unit}`, LEFT - 4, y(value) + 4, "end"),
    ];
  });
  const transform = `translate(11 ${HEIGHT / 2 - 10}) rotate(-90)`;
  const turned = makeSvg("text", { x: 0, y: 0, "text-anchor": "middle", transform }, yLabel);
  return [...lines.flat(), text(xLabel, (WIDTH + LEFT) / 2, HEIGHT - 4), turned];
}

// The share of requests that had their response within a time.
/** @param {LatencyCurve} latencies */
function latencyFigure({ curve, p50, p99, count }) {
  const end = niceCeiling(curve.at(-1)[0]) || 1;
  const x = (ms) => LEFT + (ms / end) * (WIDTH - LEFT - RIGHT);
  const y = (share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  let path = `M${x(curve[0][0])},${y(0)}`;
  for (const [ms, share] of curve) path += `H${x(ms).toFixed(1)}V${y(share).toFixed(1)}`;
  path += `H${x(end)}`;
  /** @type {[name: string, ms: number, share: number][]} */
  const marks = [["p50", p50, 0.5], ["p99", p99, 0.99]];
  const percentiles = marks.map(([name, ms, share]) => makeSvg(
    "g", {},
    makeSvg("line", { class: "tnb-percentile", x1: x(ms), x2: x(ms), y1: y(0), y2: y(share) }),
    text(`${name} ${formatMs(ms)}`, Math.min(x(ms) + 4, WIDTH - 96), name === "p50" ? y(0.18) : y(0.06), "start"),
  ));
  const ticks = [0, 0.5, 1].map((share) => text(formatNumber(end * share), x(end * share), HEIGHT - BOTTOM + 14));
  const longest = formatMs(curve.at(-1)[0]);
  const label = `Latency of ${count} requests: p50 ${formatMs(p50)}, p99 ${formatMs(p99)}, longest ${longest}`;
  return frame(label, ...axes("latency (ms)", "share of requests", y, 1, ""), ...ticks,
    makeSvg("path", { d: path, class: "tnb-curve" }), ...percentiles);
}

// Where the bars of batch sizes are, on an axis of rows: the middle of each, their width, and whether it has a label.
/** @param {SizeRow[]} sizes */
function placesOf(sizes) {
  const numbers = sizes.map(([size]) => size);
  const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
  const step = (WIDTH - LEFT - RIGHT) / (most - least + 1);
  let labelled = -Infinity;
  return numbers.map((size) => {
    const middle = LEFT + step * (size - least + 0.5);
    const hasRoom = middle - labelled >= 14;
    if (hasRoom) labelled = middle;
    return { middle, width: Math.max(2, Math.min(46, step * 0.7)), hasRoom };
  });
}

// For each batch size: the mean time in the queue and in the execution, and the number of batches.
/** @param {SizeRow[]} sizes */
function sizeFigure(sizes) {
  const top = niceCeiling(Math.max(...sizes.map(([, , queue, compute]) => queue + compute))) || 1;
  const y = (ms) => HEIGHT - BOTTOM - (ms / top) * (HEIGHT - TOP - BOTTOM);
  const places = placesOf(sizes);
  const groups = sizes.flatMap(([size, count, queue, compute], index) => {
    const { middle, width, hasRoom } = places[index];
    const left = middle - width / 2;
    const bar = (name, from, to) =>
      makeSvg("rect", { class: `tnb-bar-${name}`, x: left, width, y: y(to), height: y(from) - y(to) });
    const bars = [bar("compute", 0, compute), bar("queue", compute, compute + queue)];
    const group = makeSvg("g", {}, makeSvg("title", {}, describeSize([size, count, queue, compute])), ...bars);
    return hasRoom ? [group, text(`${size}`, middle, HEIGHT - BOTTOM + 12)] : [group];
  });
  const label = `Mean time of a request by batch size: ${sizes.map(describeSize).join("; ")}`;
  return frame(label, ...axes("rows of the batch", "ms", y, top, ""), ...groups);
}

/** @param {SizeRow[]} sizes */
function countFigure(sizes) {
  const top = niceCeiling(Math.max(...sizes.map(([, count]) => count)));
  const y = (count) => HEIGHT - BOTTOM - (count / top) * (HEIGHT - TOP - BOTTOM);
  const places = placesOf(sizes);
  const bars = sizes.flatMap(([size, count], index) => {
    const { middle, width, hasRoom } = places[index];
    const box = { x: middle - width / 2, width, y: y(count), height: y(0) - y(count) };
    const bar = makeSvg("rect", { class: "tnb-bar-compute", ...box });
    return hasRoom ? [bar, text(`${size}`, middle, HEIGHT - BOTTOM + 12)] : [bar];
  });
  const label = `Batches by size: ${sizes.map(([size, count]) => `${count} of ${size} rows`).join(", ")}`;
  return frame(label, ...axes("rows of the batch", "batches", y, top, ""), ...bars);
}

/** @type {(caption: string, picture: SVGElement, ...more: Child[]) => HTMLElement} */
const figure = (caption, picture, ...more) => make("figure", {}, picture, make("figcaption", {}, caption, ...more));

/** @param {string} name @param {string} label */
function key(name, label) {
  return make("span", { class: "tnb-legend-key" }, make("span", { class: `tnb-swatch tnb-swatch-${name}` }), label);
}

/** @param {FigureData} figures */
function drawFigures({ latencies, sizes, statistics }) {
  if (!latencies.count) return [];
  const region = { tabIndex: 0, role: "region", aria: { label: "statistics extension" } };
  const numbers = make("pre", region, JSON.stringify(statistics, null, 2));
  return [
    figure("Latencies", latencyFigure(latencies)),
    figure("Mean time of a request ", sizeFigure(sizes), key("queue", "queue"), key("compute", "execution")),
    figure("Batch sizes", countFigure(sizes)),
    make("details", { class: "tnb-wide" }, make("summary", {}, "Statistics extension (JSON)"), numbers),
  ];
}

export { drawFigures };
