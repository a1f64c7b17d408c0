// The picture of the latest latencies: a histogram on a logarithmic axis, with p50 and p99.

import { makeSvg } from "../shared/dom.js";

const WIDTH = 220;
const HEIGHT = 20;
const AXIS = 13;

/** @param {number} ms */
function formatMs(ms) {
  if (ms >= 1000) return `${(ms / 1000).toPrecision(3)} s`;
  return ms >= 100 ? `${ms.toFixed(0)} ms` : `${ms.toPrecision(3)} ms`;
}

/** @param {Latencies} latencies */
function drawLatencies({ edges_ms: edges, counts, p50_ms: p50, p99_ms: p99, n }) {
  const [first, last] = [edges[0], edges.at(-1)];
  const at = (ms) => (WIDTH * Math.log(ms / first)) / Math.log(last / first);
  const largest = Math.max(...counts);
  const bars = counts.map((count, index) => {
    const height = ((HEIGHT - 2) * count) / largest;
    const left = at(edges[index]);
    const width = Math.max(1, at(edges[index + 1]) - left - 0.5);
    return makeSvg("rect", { class: "tnb-bar", x: left, y: HEIGHT - height, width, height });
  });
  const lines = [["tnb-p50", p50], ["tnb-p99", p99]].map(([name, ms]) =>
    makeSvg("line", { class: `tnb-percentile ${name}`, x1: at(ms), x2: at(ms), y1: 0, y2: HEIGHT }));
  /** @type {[ms: number, x: number, anchor: string][]} */
  const places = [[first, 0, "start"], [last, WIDTH, "end"]];
  const ends = places.map(([ms, x, anchor]) =>
    makeSvg("text", { x, y: HEIGHT + AXIS - 2, "text-anchor": anchor }, formatMs(ms)));
  const middle = makeSvg("text", { x: WIDTH / 2, y: HEIGHT + AXIS - 2, "text-anchor": "middle" }, "latency (log)");
  const label = `Latency of ${n} responses from ${formatMs(first)} to ${formatMs(last)}, ` +
    `p50 ${formatMs(p50)}, p99 ${formatMs(p99)}`;
  return makeSvg(
    "svg",
    { width: WIDTH, height: HEIGHT + AXIS, viewBox: `0 0 ${WIDTH} ${HEIGHT + AXIS}`, role: "img", "aria-label": label },
    ...bars, ...lines, ...ends, middle,
  );
}

export { drawLatencies, formatMs };
