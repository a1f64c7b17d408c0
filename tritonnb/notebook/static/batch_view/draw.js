// Draws a timeline on a surface: lanes of instances or of slots, the waiting requests, queue depth, delay budget.

import { drawBatches } from "./batches.js";
import { columnLevel, drawColumnDepth, drawColumnLanes, drawColumnWaits } from "./columns.js";
import { AXIS, BAND, Scale, TOP, gutterWidth, laneTop, lanesOf, layoutOf, maximum, niceRows } from "./layout.js";
import { drawQueue } from "./queue.js";
import { drawBacklog, drawSlots } from "./slots.js";
import { formatDuration, formatLength, pluralize, usesSeconds } from "./words.js";

const WIDE = 4; // px: a batch that is so wide is drawn, narrower ones are columns
const STILL_WIDE = 3; // px: if batches were drawn before
const FEW_SHARE = 0.06; // of the width: what a few batches cover at most if each is drawn at least LEAST_WIDTH wide
const LEAST_WIDTH = 2; // px

const SMALLEST_SCALE = 4; // rows

// Whether single batches are drawn: they must all be known, and wide enough, or few.
/**
 * @param {Timeline} timeline @param {number} from @param {number} span @param {number} width @param {boolean} before
 */
function showsBatches(timeline, from, span, width, before) {
  if (!timeline.counters) return true;
  if (!timeline.isExact(from, from + span)) return false;
  const batches = timeline.batchesBetween(from, from + span);
  if (!batches.length) return before;
  if (areFew(timeline, batches, width)) return true;
  return (medianLength(batches, timeline.now) / span) * width >= (before ? STILL_WIDE : WIDE);
}

/** @param {Timeline} timeline @param {Batch[]} batches @param {number} width */
function areFew(timeline, batches, width) {
  return batches.length * LEAST_WIDTH <= FEW_SHARE * width * Math.max(1, timeline.instances.length);
}

// How long batches are executed, in ms.
/** @param {Batch[]} batches @param {number} [now] */
function medianLength(batches, now) {
  const lengths = batches.map(({ start, end, sent }) => (end ?? now) - (start ?? sent));
  lengths.sort((one, other) => one - other);
  return lengths[lengths.length >> 1];
}

// The number of rows at the top of a lane: the maximum batch size, unless batches are much smaller.
/** @param {Timeline} timeline @param {number} largest */
function rowScale(timeline, largest) {
  const most = timeline.meta.max_batch_size || 1;
  const nice = Math.max(niceRows(largest), SMALLEST_SCALE);
  return most <= 2 * nice ? most : nice;
}

// Draws what `shown` has: from, span, end, cursor, selected batch, focused request, batches (or columns), rows.
// Returns the frame: its `targets` are what can be pointed at, the topmost last.
/** @param {Surface} surface @param {Timeline} timeline @param {Shown} shown */
function drawTimeline(surface, timeline, shown) {
  timeline.gutter = gutterWidth(surface, timeline);
  const scale = new Scale(surface, shown.from, shown.span, timeline.gutter);
  const layout = layoutOf(timeline, !shown.batches);
  const batches = shown.batches ? timeline.batchesBetween(scale.from, scale.to) : [];
  const leastWidth = areFew(timeline, batches, scale.width) ? LEAST_WIDTH : 0.5;
  const columns = shown.batches ? null : columnLevel(timeline, scale);
  /** @type {Frame} */
  const frame = {
    ...shown, surface, timeline, scale, layout, batches, leastWidth, columns, targets: [], focusLines: [],
    maxDepth: 1, maxWait: 0, queueStep: 0, queueRow: (row) => row, linksWaits: false,
  };
  frame.rows ??= rowScale(timeline, maximum(timeline.batches.values(), (batch) => batch.rows, 1));
  frame.maxDepth = maxDepth(frame);
  frame.maxWait = maxWait(frame);
  drawLabels(frame);
  surface.clip(scale.left, 0, scale.width, surface.height - AXIS + 2, () => {
    if (timeline.sequences) {
      drawSlots(frame);
      drawBacklog(frame, layout.queueTop);
    } else if (frame.columns) {
      drawColumnLanes(frame);
    } else {
      drawQueue(frame, layout.queueTop);
      drawBatches(frame);
    }
    drawDepth(frame);
    if (!timeline.sequences && timeline.meta.delay) drawDelayBudget(frame);
    drawUnknown(frame);
    for (const [points, style] of frame.focusLines) surface.path(points, style);
    const style = { stroke: surface.theme.selection, line: 1.5 };
    for (const time of shown.range ?? (shown.cursor === null ? [] : [shown.cursor])) {
      surface.line(scale.x(time), 0, scale.x(time), surface.height - AXIS, style);
    }
    if (shown.range) {
      const [left, right] = shown.range.map((time) => scale.clamp(time));
      surface.rect(left, 0, right - left, surface.height - AXIS, { fill: surface.theme.selection, alpha: 0.12 });
    }
  });
  drawAxis(frame);
  return frame;
}

/** @param {Frame} frame */
function maxDepth({ timeline, scale, columns }) {
  if (columns) {
    const { counters } = timeline;
    const [first, last] = [scale.from, scale.to].map((time) => counters.indexAt(Math.max(0, time), columns.level));
    return Math.max(1, counters.queue.total(columns.level, first, last)?.depth ?? 1);
  }
  const depths = timeline.depthsBetween(scale.from, scale.to);
  return maximum(depths, ([, depth]) => depth, Math.max(1, timeline.depthAt(scale.from)));
}

// The longest wait in sight, in ms, and at least the limit.
/** @param {Frame} frame */
function maxWait({ timeline, scale, columns, batches, end }) {
  const { delay } = timeline.meta;
  if (columns) {
    const { counters } = timeline;
    const [first, last] = [scale.from, scale.to].map((time) => counters.indexAt(Math.max(0, time), columns.level));
    return Math.max(delay, (counters.queue.total(columns.level, first, last)?.wait ?? 0) / 1e6);
  }
  const waits = timeline.pending.filter(({ queued }) => queued <= scale.to).map(({ queued }) => end - queued);
  return maximum([...waits, ...batches.map(({ sent, oldest }) => sent - oldest)], (wait) => wait, delay);
}

// As much of the end of a name as fits: the end distinguishes instances.
/** @param {Surface} surface @param {string} name @param {number} width */
function endOf(surface, name, width) {
  let text = name;
  while (text.length > 2 && surface.measure(text, 11) > width) text = `…${text.slice(2)}`;
  return text;
}

/** @param {Frame} frame */
function drawLabels(frame) {
  const { surface, timeline, scale, layout, columns } = frame;
  const label = (name, y, faint) => {
    const fill = faint ? surface.theme.faint : surface.theme.ink;
    surface.text(endOf(surface, name, scale.left - 12), scale.left - 8, y, { align: "right", size: 11, fill });
  };
  if (timeline.sequences) {
    const every = Math.ceil(11 / layout.lane); // if there are many, every n-th has room for its name
    lanesOf(timeline).forEach(([instance, slot], index) => {
      if (index % every === 0) label(`${instance} · ${slot}`, TOP + (index + 0.5) * layout.lane);
    });
    label("backlog", layout.queueTop + 8);
  } else {
    timeline.instances.forEach((instance, index) => {
      drawLaneLabels(frame, label, instance, laneTop(layout, index));
    });
    if (!columns) label("waiting", layout.queueTop + 8);
  }
  const { depthTop, budgetTop } = layout;
  label("queue depth", depthTop + BAND / 2);
  label(String(frame.maxDepth), depthTop + 5, true);
  label("0", depthTop + BAND - 3, true);
  if (!timeline.sequences && timeline.meta.delay) {
    const { delay } = timeline.meta;
    const limitTop = budgetTop + BAND - (delay / frame.maxWait) * (BAND - 6);
    const hasRoom = limitTop - budgetTop > 16 && Math.abs(limitTop - budgetTop - BAND / 2) > 12;
    label("longest wait", budgetTop + BAND / 2);
    label(formatDuration(frame.maxWait), budgetTop + 5, true);
    if (hasRoom) label(`limit ${formatDuration(delay)}`, Math.min(limitTop, budgetTop + BAND - 3), true);
  }
}

/**
 * @param {Frame} frame @param {(name: string, y: number, faint?: boolean) => void} label @param {string} instance
 * @param {number} top
 */
function drawLaneLabels({ timeline, layout, rows, columns }, label, instance, top) {
  if (layout.isThin) {
    label(instance, top + layout.lane / 2);
    return;
  }
  const most = timeline.meta.max_batch_size || 1;
  label(most > rows ? `${rows} of ${most} rows` : pluralize(rows, "row"), top + 4, true);
  label(instance, top + layout.lane * (columns ? 0.32 : 0.5));
  if (columns) {
    label("100 %", top + layout.lane * 0.64 + 5, true);
    label("busy", top + layout.lane * 0.82 + 3);
  }
  label("0", top + layout.lane - 3, true);
}

/** @param {Frame} frame */
function drawDepth(frame) {
  const { surface, timeline, scale, layout, end, maxDepth: most, columns, targets } = frame;
  const top = layout.depthTop;
  targets.push({ kind: "depth", x: scale.left, y: top, width: scale.width, height: BAND });
  if (columns) drawColumnDepth(frame, top, most);
  else {
    const height = (depth) => top + BAND - (depth / most) * (BAND - 4);
    /** @type {Point[]} */
    const points = [[scale.left, height(timeline.depthAt(scale.from))]];
    for (const [time, depth] of timeline.depthsBetween(scale.from, scale.to)) {
      const x = scale.x(time);
      points.push([x, points[points.length - 1][1]], [x, height(depth)]);
    }
    const right = Math.min(scale.right, scale.x(end));
    if (right > scale.left) {
      points.push([right, points[points.length - 1][1]]);
      const { queue } = surface.theme;
      surface.path([[scale.left, top + BAND], ...points, [right, top + BAND]], { fill: queue, alpha: 0.3 });
      surface.path(points, { stroke: queue });
    }
  }
  surface.line(scale.left, top + BAND, scale.right, top + BAND, { stroke: surface.theme.line });
}

// How long, beside max_queue_delay, the oldest request of each batch had waited while the batch was formed.
/** @param {Frame} frame */
function drawDelayBudget(frame) {
  const { surface, timeline, scale, batches, end, columns, layout, targets } = frame;
  const { queue, limit, line } = surface.theme;
  const { delay } = timeline.meta;
  const bottom = layout.budgetTop + BAND;
  const used = (waited) => bottom - Math.min(1, waited / frame.maxWait) * (BAND - 6);
  surface.line(scale.left, used(delay), scale.right, used(delay), { stroke: limit, dash: [4, 4] });
  if (columns) drawColumnWaits(frame, bottom, used);
  for (const batch of batches) {
    const { sent, oldest } = batch;
    /** @type {Point[]} */
    const shape = [[scale.x(oldest), bottom], [scale.x(sent), used(sent - oldest)], [scale.x(sent), bottom]];
    surface.path(shape, { fill: queue, alpha: 0.3 });
    surface.path(shape.slice(0, 2), { stroke: queue });
    const [x, width] = [scale.x(oldest), scale.x(sent) - scale.x(oldest)];
    targets.push({ kind: "budget", batch, x: x - 1, y: layout.budgetTop, width: width + 2, height: BAND });
  }
  if (timeline.pending.length && !columns) {
    const oldest = Math.min(...timeline.pending.map(({ queued }) => queued));
    surface.path([[scale.x(oldest), bottom], [scale.clamp(end), used(Math.max(0, end - oldest))]],
      { stroke: queue, line: 2 });
  }
  surface.line(scale.left, bottom, scale.right, bottom, { stroke: line });
}

// Hatch what is not known: what was not received, and what is no longer kept.
/** @param {Frame} frame */
function drawUnknown({ surface, timeline, scale, columns }) {
  /** @type {[from: number, to: number, label: string][]} */
  const unknown = timeline.gaps.map(([from, to]) => [from, to, "not received"]);
  if (columns && columns.begin > Math.max(0, scale.from)) unknown.push([0, columns.begin, "no longer kept"]);
  for (const [from, to, label] of unknown) {
    if (to <= scale.from || from >= scale.to) continue;
    const left = scale.clamp(from);
    const width = scale.clamp(to) - left;
    surface.rect(left, 0, width, surface.height - AXIS, { stroke: surface.theme.line, hatch: true });
    if (surface.measure(label, 11) + 8 < width) {
      surface.text(label, left + width / 2, TOP + 20, { align: "center", halo: true });
    }
  }
}

/** @param {Frame} frame */
function drawAxis({ surface, timeline, scale, columns }) {
  const y = surface.height - AXIS;
  const { line, faint } = surface.theme;
  surface.line(scale.left, y, scale.right, y, { stroke: line });
  const minimum = scale.span / Math.max(2, scale.width / 110);
  const power = 10 ** Math.floor(Math.log10(minimum));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= minimum);
  const seconds = usesSeconds(timeline);
  const digits = Math.max(0, -Math.floor(Math.log10(seconds ? step / 1000 : step)));
  for (let time = Math.max(0, Math.ceil(scale.from / step) * step); time <= scale.to; time += step) {
    const x = scale.x(time);
    surface.line(x, y, x, y + 4, { stroke: line });
    const text = seconds ? `${(time / 1000).toFixed(digits)} s` : `${time.toFixed(digits)} ms`;
    const half = surface.measure(text, 10) / 2;
    const align = x + half > surface.width ? "right" : "center";
    surface.text(text, align === "right" ? surface.width - 1 : x, y + 12, { size: 10, align, fill: faint });
  }
  if (columns) {
    const text = `column: ${formatLength(columns.width)}`;
    surface.text(text, scale.left - 8, y + 12, { size: 10, align: "right", fill: faint });
  }
}

export { WIDE, drawTimeline, medianLength, rowScale, showsBatches };
