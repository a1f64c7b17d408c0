// Columns: what is drawn where single batches are too narrow to be seen, or are not known one by one.
// A column shows the counters of its interval: busy share, mean and largest batch of an instance, and the queue.

import { BAND, laneTop } from "./layout.js";
import { formatLength, formatMs, formatTime, percent, pluralize } from "./words.js";

const COLUMN = 3; // px, at least
const BUSY_HEIGHT = 0.36; // of a lane; the rest are the batch sizes

// The length of the intervals that are drawn, and from when on they are known.
/** @param {Timeline} timeline @param {{ from: number, span: number, width: number }} scale @returns {Columns} */
function columnLevel(timeline, scale) {
  const { counters } = timeline;
  const level = counters.levelFor((scale.span / scale.width) * COLUMN, scale.from);
  return { level, width: counters.widthOf(level), begin: counters.beginOf(level) };
}

// The intervals in sight that have begun: [left, right, begin, end, index].
/** @param {Frame} frame @returns {VisibleInterval[]} */
function visibleIntervals({ timeline, scale, end, columns }) {
  const until = Math.min(scale.to, end);
  const from = Math.max(0, scale.from, columns.begin);
  return timeline.counters.intervals(from, until, columns.level).map(([begin, stop, index]) => {
    const left = Math.max(scale.left, Math.round(scale.x(begin)));
    const last = Math.min(stop, until);
    return [left, Math.min(scale.right, Math.round(scale.x(last))), begin, last, index];
  });
}

// The ms that an instance was busy in an interval, with the batch that it runs now, which is not counted yet.
/**
 * @param {Timeline} timeline @param {string} instance @param {CounterValues | null | undefined} values
 * @param {number} begin @param {number} end
 */
function busyTime(timeline, instance, values, begin, end) {
  let busy = (values?.busy ?? 0) / 1e6;
  for (const batch of timeline.running) {
    if (batch.instance === instance) busy += Math.max(0, Math.min(end, timeline.now) - Math.max(begin, batch.sent));
  }
  return Math.min(busy, end - begin);
}

/** @param {Frame} frame */
function drawColumnLanes(frame) {
  const { surface, timeline, scale, layout, rows, targets } = frame;
  const intervals = visibleIntervals(frame);
  timeline.instances.forEach((instance, index) => {
    const top = laneTop(layout, index);
    const bottom = top + layout.lane;
    const busyTop = layout.isThin ? top : bottom - layout.lane * BUSY_HEIGHT;
    surface.rect(scale.left, top, scale.width, layout.lane, { fill: surface.theme.panel });
    const series = timeline.counters.lanes.get(instance);
    if (busyTop > top) drawSizes(frame, intervals, series, top, busyTop - 6, rows);
    drawBusy(frame, intervals, instance, series, busyTop, bottom);
    targets.push({ kind: "column", instance, x: scale.left, y: top, width: scale.width, height: layout.lane });
  });
}

// The mean batch as a filled bar, the largest as a line. Batches are counted where they began: in an interval in which
// none began, an instance ran the largest only.
/**
 * @param {Frame} frame @param {VisibleInterval[]} intervals @param {Series | undefined} series @param {number} top
 * @param {number} bottom @param {number} rows
 */
function drawSizes({ surface, scale, columns }, intervals, series, top, bottom, rows) {
  const { compute } = surface.theme;
  const height = (count) => Math.min(1, count / rows) * (bottom - top);
  /** @type {Line[]} */
  const largest = [];
  for (const [left, right, , , index] of intervals) {
    const values = series?.total(columns.level, index, index);
    if (!values) continue;
    const mean = height(values.batches ? values.rows / values.batches : values.largest);
    surface.rect(left, bottom - mean, Math.max(1, right - left), mean, { fill: compute, alpha: 0.35 });
    const y = bottom - height(values.largest);
    largest.push([left, y, Math.max(left + 1, right), y]);
  }
  surface.lines(largest, { stroke: compute, line: 1.5 });
  surface.line(scale.left, bottom, scale.right, bottom, { stroke: surface.theme.line });
}

/**
 * @param {Frame} frame @param {VisibleInterval[]} intervals @param {string} instance @param {Series | undefined} series
 * @param {number} top @param {number} bottom
 */
function drawBusy({ surface, timeline, scale, columns }, intervals, instance, series, top, bottom) {
  for (const [left, right, begin, end, index] of intervals) {
    const busy = busyTime(timeline, instance, series?.total(columns.level, index, index), begin, end);
    const height = (busy / Math.max(1e-9, end - begin)) * (bottom - top);
    if (right > left && height > 0) {
      surface.rect(left, bottom - height, right - left, height, { fill: surface.theme.compute });
    }
  }
  surface.line(scale.left, top, scale.right, top, { stroke: surface.theme.line, dash: [2, 3] });
  surface.line(scale.left, bottom, scale.right, bottom, { stroke: surface.theme.line });
}

// Of each slot: the share of time with a request, and above it that with null requests.
/** @param {Frame} frame @param {Map<string, number>} tops */
function drawColumnSlots(frame, tops) {
  const { surface, timeline, layout, columns, scale, targets } = frame;
  const intervals = visibleIntervals(frame);
  for (const [lane, top] of tops) {
    const series = timeline.counters.slots.get(lane);
    const bottom = top + layout.lane - 2;
    targets.push({ kind: "column", slot: lane, x: scale.left, y: top, width: scale.width, height: layout.lane });
    if (!series) continue;
    for (const [left, right, begin, end, index] of intervals) {
      const values = series.total(columns.level, index, index);
      if (!values || right <= left) continue;
      const height = (ns) => (ns / 1e6 / (end - begin)) * (layout.lane - 4);
      const busy = height(values.busy);
      const nulls = height(values.nulls);
      surface.rect(left, bottom - busy, right - left, busy, { fill: surface.theme.compute });
      surface.rect(left, bottom - busy - nulls, right - left, nulls, { fill: surface.theme.null, alpha: 0.45 });
    }
  }
}

// The mean queue depth as a filled bar, the deepest as a line, and a red mark where requests were refused.
/** @param {Frame} frame @param {number} top @param {number} maxDepth */
function drawColumnDepth(frame, top, maxDepth) {
  const { surface, timeline, columns } = frame;
  const { queue, refusal } = surface.theme;
  const height = (depth) => (depth / maxDepth) * (BAND - 4);
  /** @type {Line[]} */
  const deepest = [];
  for (const [left, right, begin, end, index] of visibleIntervals(frame)) {
    const values = timeline.counters.queue.total(columns.level, index, index);
    if (!values) continue;
    const width = Math.max(1, right - left);
    const mean = height(Math.min(values.depth, values.waited / 1e6 / Math.max(1e-9, end - begin)));
    surface.rect(left, top + BAND - mean, width, mean, { fill: queue, alpha: 0.4 });
    const y = top + BAND - height(values.depth);
    deepest.push([left, y, left + width, y]);
    if (values.refused) surface.rect(left, top - 4, Math.max(2, width), 4, { fill: refusal });
  }
  surface.lines(deepest, { stroke: queue, line: 1.5 });
}

// The longest wait of the requests that were sent in each interval, beside the limit.
/** @param {Frame} frame @param {number} bottom @param {(waited: number) => number} used */
function drawColumnWaits(frame, bottom, used) {
  const { surface, timeline, columns } = frame;
  /** @type {Line[]} */
  const longest = [];
  for (const [left, right, , , index] of visibleIntervals(frame)) {
    const values = timeline.counters.queue.total(columns.level, index, index);
    if (!values?.wait) continue;
    const y = used(values.wait / 1e6);
    surface.rect(left, y, Math.max(1, right - left), bottom - y, { fill: surface.theme.queue, alpha: 0.4 });
    longest.push([left, y, Math.max(left + 1, right), y]);
  }
  surface.lines(longest, { stroke: surface.theme.queue, line: 1.5 });
}

// What the columns from one time to another have counted, in words; of one instance or slot, or of all instances.
/**
 * @param {Timeline} timeline @param {number} level @param {number} time
 * @param {{ instance?: string, slot?: string }} lane
 */
function describeInterval(timeline, level, time, lane = {}, until = time) {
  const { counters } = timeline;
  const [index, last] = [time, until].map((at) => counters.indexAt(at, level));
  const begin = index * counters.widthOf(level);
  const end = Math.min((last + 1) * counters.widthOf(level), Math.max(timeline.now, begin));
  const title = `${formatLength((last + 1 - index) * counters.widthOf(level))} from ${formatTime(begin, timeline)}`;
  if (timeline.isUnknown(time)) return [title, "these deliveries were not received"];
  if (counters.beginOf(level) > time) return [title, "no longer kept"];
  const length = Math.max(1e-9, end - begin);
  const lines = lane.slot
    ? [describeSlot(counters.slots.get(lane.slot)?.total(level, index, last), length)]
    : describeLanes(timeline, { level, index, last, begin, end }, lane.instance ? [lane.instance] : timeline.instances);
  const queue = counters.queue.total(level, index, last);
  if (!queue) return [title, ...lines, "nothing waited"];
  const waited = Math.min(queue.depth, queue.waited / 1e6 / length);
  lines.push(`${waited.toFixed(1)} waiting on average, at most ${queue.depth}`);
  if (queue.wait) lines.push(`longest wait ${formatMs(queue.wait / 1e6)} ms`);
  if (queue.refused) lines.push(`${pluralize(queue.refused, "request")} refused`);
  return [title, ...lines];
}

/**
 * @param {Timeline} timeline
 * @param {{ level: number, index: number, last: number, begin: number, end: number }} interval
 * @param {string[]} instances
 */
function describeLanes(timeline, { level, index, last, begin, end }, instances) {
  const totals = instances.map((name) => timeline.counters.lanes.get(name)?.total(level, index, last));
  const busy = instances.reduce((sum, name, at) => sum + busyTime(timeline, name, totals[at], begin, end), 0);
  const known = totals.filter(Boolean);
  const add = (name) => known.reduce((sum, values) => sum + values[name], 0);
  const [batches, rows] = [add("batches"), add("rows")];
  const largest = Math.max(0, ...known.map((values) => values.largest));
  const share = `busy ${percent(busy / Math.max(1e-9, end - begin) / Math.max(1, instances.length))}`;
  if (!batches) return [share, largest ? `a batch of ${pluralize(largest, "row")} runs` : "no batch"];
  const sizes = `${pluralize(batches, "batch", "batches")}, ${(rows / batches).toFixed(1)} rows on average`;
  return [share, `${sizes}, largest ${largest}`];
}

/** @param {CounterValues | null | undefined} values @param {number} length */
function describeSlot(values, length) {
  if (!values) return "not executed";
  const share = (ns) => percent(Math.min(1, ns / 1e6 / length));
  return `requests ${share(values.busy)}, null requests ${share(values.nulls)} of the time`;
}

// The busy share of all instances in a period.
/** @param {Timeline} timeline @param {number} from @param {number} to */
function busyShare(timeline, from, to) {
  const { counters, instances } = timeline;
  if (!counters || !instances.length) return null;
  const level = counters.levelFor(0, from);
  const first = counters.indexAt(Math.max(0, from), level);
  const last = counters.indexAt(Math.max(0, to), level) - 1;
  if (last < first) return null;
  const width = counters.widthOf(level);
  const [begin, end] = [first * width, (last + 1) * width];
  const busyOf = (name) => busyTime(timeline, name, counters.lanes.get(name)?.total(level, first, last), begin, end);
  return instances.reduce((sum, name) => sum + busyOf(name), 0) / (end - begin) / instances.length;
}

export { busyShare, columnLevel, describeInterval };
export { drawColumnDepth, drawColumnLanes, drawColumnSlots, drawColumnWaits };
