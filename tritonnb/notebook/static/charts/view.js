// Three charts over the same time: throughput, latency percentiles on a logarithmic axis, and utilization.
// A dashed line marks each applied configuration, which a table below compares. The pointer, or the arrow keys, read
// the values of a moment.

import { formatNumber, niceCeiling, pathOf } from "../shared/curves.js";
import { connect, isDisconnected, make, makeSvg } from "../shared/dom.js";

const WIDTH = 300;
const HEIGHT = 96;
const LEFT = 36;
const TOP = 6;
const BOTTOM = 16;
const PLOT = { width: WIDTH - LEFT - 4, height: HEIGHT - TOP - BOTTOM };

/** @type {Chart[]} */
const CHARTS = [
  {
    title: "requests/s",
    curves: [["rate", "tnb-line-1", "answered"], ["errors", "tnb-line-3", "lost"]],
    range: ({ rate, errors }) => [0, niceCeiling(Math.max(...rate, ...errors, 1))],
  },
  {
    title: "latency, ms, log",
    curves: [["p50_ms", "tnb-line-1", "p50"], ["p99_ms", "tnb-line-2", "p99"]],
    isLog: true,
    range: ({ p50_ms: p50, p99_ms: p99 }) => {
      const known = [...p50, ...p99].filter((value) => value !== null && value > 0);
      if (!known.length) return [1, 10];
      const low = 10 ** Math.floor(Math.log10(Math.min(...known)));
      return [low, Math.max(10 * low, 10 ** Math.ceil(Math.log10(Math.max(...known))))];
    },
  },
  {
    title: "utilization, %", ofInstances: true, curves: [["busy", "tnb-line-1", ""]], scale: 100, range: () => [0, 100],
  },
];

/** @param {number} time */
function clock(time) {
  return new Date(time * 1000).toLocaleTimeString([], { hour12: false });
}

/** @param {[low: number, high: number]} range @param {boolean | undefined} isLog */
function ticksOf([low, high], isLog) {
  if (!isLog) return [low, high / 2, high];
  const decades = Math.round(Math.log10(high / low));
  return Array.from({ length: decades + 1 }, (_, power) => low * 10 ** power);
}

/** @type {(number: number) => string} */
const tickLabel = (number) => (number >= 10_000 ? `${formatNumber(number / 1000)}k` : formatNumber(number));

/** @param {Chart} chart */
function createChart(chart) {
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const names = chart.curves.filter(([, , name]) => name).map(([, style, name]) =>
    make("span", { class: `tnb-key ${style}` }, name));
  const value = make("span", { class: "tnb-reading" });
  const node = make("figure", { class: "tnb-chart" },
    make("figcaption", {}, chart.title, " ", ...names, value), svg);

  const scaledNumber = (number) => (number ?? null) === null ? null : number * (chart.scale ?? 1);

  /** @param {ChartSeries} series @param {Measures} recent @param {Period[]} marks @param {number | null} cursor */
  function draw(series, recent, marks, cursor) {
    const { time } = series;
    const scaled = (name) => series[name].map(scaledNumber);
    // The steps of an ensemble are busy, not the ensemble.
    node.hidden = Boolean(chart.ofInstances) && series.busy.every((share) => share === null);
    const range = chart.range(series);
    const x = (index) => LEFT + (PLOT.width * index) / Math.max(1, time.length - 1);
    const share = (number) => (chart.isLog
      ? Math.log(Math.max(number, range[0]) / range[0]) / Math.log(range[1] / range[0])
      : (number - range[0]) / (range[1] - range[0]));
    const y = (number) => TOP + PLOT.height * (1 - share(number));
    const grid = ticksOf(range, chart.isLog).flatMap((number) => [
      makeSvg("line", { class: "tnb-grid", x1: LEFT, x2: LEFT + PLOT.width, y1: y(number), y2: y(number) }),
      makeSvg("text", { x: LEFT - 4, y: y(number) + 4, "text-anchor": "end" }, tickLabel(number)),
    ]);
    const curves = chart.curves.map(([name, style]) =>
      makeSvg("path", { class: `tnb-curve ${style}`, d: pathOf(scaled(name), x, y) }));
    const lines = marks.map(({ time: at, number }) => {
      const left = x(Math.max(0, at - time[0]));
      return makeSvg("g", { class: "tnb-mark" },
        makeSvg("line", { x1: left, x2: left, y1: TOP, y2: TOP + PLOT.height }),
        makeSvg("text", { x: left + 2, y: TOP + 9 }, String(number)));
    });
    const ends = time.length ? [[0, "start"], [time.length - 1, "end"]].map(([index, anchor]) =>
      makeSvg("text", { x: x(index), y: HEIGHT - 3, "text-anchor": anchor }, clock(time[index]))) : [];
    const at = cursor ?? time.length - 1;
    const pointer = cursor === null ? []
      : [makeSvg("line", { class: "tnb-pointer", x1: x(at), x2: x(at), y1: TOP, y2: TOP + PLOT.height })];
    svg.replaceChildren(...grid, ...lines, ...curves, ...ends, ...pointer);
    const numberOf = (name) => (cursor === null ? scaledNumber(recent[name]) : scaled(name)[at] ?? null);
    const values = chart.curves.map(([name, , label]) => [label, formatNumber(numberOf(name))]);
    value.textContent = values.map(([, number]) => number).join(" / ");
    const words = values.map((pair) => pair.join(" ").trim()).join(", ");
    const when = cursor === null ? "in the last 5 seconds" : `at ${clock(time[at])}`;
    svg.setAttribute("aria-label", `${chart.title}: ${words} ${when}`);
  }

  return { node, svg, draw, indexAt: (left, count) => {
    const width = svg.getBoundingClientRect().width / WIDTH;
    const share = (left / width - LEFT) / PLOT.width;
    return Math.max(0, Math.min(count - 1, Math.round(share * (count - 1))));
  } };
}

// The applied configurations, each with the numbers of the time until the next one.
/** @param {Period[]} periods */
function periodRows(periods) {
  if (!periods.length) return [];
  const row = (tag, cells) => make("tr", {}, ...cells.map((cell) => make(tag, {}, cell)));
  const head = ["", "since", "configuration", "requests/s", "lost/s", "p50 ms", "p99 ms", "n"];
  const rows = periods.map(({ number, time, text, rate, errors, p50_ms: p50, p99_ms: p99, n }) =>
    row("td", [String(number), clock(time), text, ...[rate, errors, p50, p99, n].map((value) => formatNumber(value))]));
  return [make("thead", {}, row("th", head)), make("tbody", {}, ...rows)];
}

/** @param {WidgetContext<ChartsState>} context */
function render({ model, el }) {
  const charts = CHARTS.map(createChart);
  const note = make("p", { class: "tnb-note" });
  const list = make("table", { class: "tnb-marks", aria: { label: "Applied configurations" } });
  const row = make("div", { class: "tnb-chart-row", tabIndex: 0, role: "group",
    aria: { label: "Charts over time; arrow keys read the values of a moment" } }, ...charts.map(({ node }) => node));
  let cursor = null;

  function draw() {
    const series = model.get("series");
    if (!series.time?.length) {
      note.textContent = "Throughput, latency and utilization appear here after the first second.";
      return;
    }
    if (cursor !== null && cursor >= series.time.length) cursor = null;
    const periods = model.get("periods").map((period, number) => ({ ...period, number }));
    const shown = periods.filter(({ time, number }) => number && time >= series.time[0]);
    const recent = isDisconnected(el) && model.get("kept").n ? model.get("kept") : model.get("recent");
    for (const chart of charts) chart.draw(series, recent, shown, cursor);
    note.textContent = cursor === null
      ? `Numbers: last 5 s, n = ${(recent.n ?? 0).toLocaleString()}; curves: single seconds. Point at one to read it.`
      : `${clock(series.time[cursor])}: n = ${series.n[cursor].toLocaleString()} requests in this second.`;
    list.replaceChildren(...periodRows(periods));
  }

  /** @param {number | null} to */
  function move(to) {
    cursor = to;
    draw();
  }

  for (const chart of charts) {
    chart.svg.addEventListener("pointermove", (event) => {
      const { left } = chart.svg.getBoundingClientRect();
      move(chart.indexAt(event.clientX - left, model.get("series").time?.length ?? 0));
    });
    chart.svg.addEventListener("pointerleave", () => move(null));
  }
  row.addEventListener("keydown", (event) => {
    const last = (model.get("series").time?.length ?? 0) - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    move(step ? Math.max(0, Math.min(last, (cursor ?? last) + step)) : null);
  });

  el.append(make("section", { class: "tnb-charts tnb-controls",
    aria: { label: "Throughput, latency and utilization over time" } }, row, note, list));
  return connect(model, { "change:series": draw, "change:periods": draw }, el);
}

export default { render };
