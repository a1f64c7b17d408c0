// Draws a timeline on a surface: lanes of instances or of slots, the waiting requests, queue depth, delay budget.

import { drawBatches, drawQueue } from "./batches.js";
import { AXIS, BAND, GAP, LABELS, Scale, TOP, gutterWidth, laneHeights, lanesOf, maximum } from "./layout.js";
import { drawBacklog, drawSlots } from "./slots.js";

// Returns what can be clicked: [x, y, width, height, batch number, label of the request if it is one].
function drawTimeline(surface, timeline, { from, span, end, cursor, selected }) {
  timeline.gutter = gutterWidth(surface, timeline);
  const scale = new Scale(surface, from, span, timeline.gutter);
  const sizes = laneHeights(timeline);
  const batches = timeline.batchesBetween(from, scale.to);
  const targets = [];
  const depthIn = ([time, depth]) => (time >= scale.from && time <= scale.to ? depth : 1);
  const maxDepth = maximum(timeline.depths, depthIn, Math.max(1, timeline.depthAt(scale.from)));
  const frame = { surface, timeline, scale, sizes, batches, targets, end, selected, maxDepth };
  const queueTop = TOP + sizes.lanes + GAP;
  drawLabels(frame, queueTop);
  surface.clip(scale.left - 4, 0, scale.width + 8, surface.height - AXIS + 2, () => {
    if (timeline.sequences) {
      drawSlots(frame);
      drawBacklog(frame, queueTop);
    } else {
      drawQueue(frame, queueTop);
      drawBatches(frame, queueTop);
    }
    drawBands(frame, queueTop + sizes.queue + GAP);
    if (cursor !== null) {
      const x = scale.x(cursor);
      surface.line(x, 0, x, surface.height - AXIS, { stroke: surface.theme.accent, line: 1.5 });
    }
  });
  drawAxis(frame);
  return targets;
}

// As much of the end of a name as fits: the end distinguishes instances.
function endOf(surface, name, width) {
  let text = name;
  while (text.length > 2 && surface.measure(text, 11) > width) text = `…${text.slice(2)}`;
  return text;
}

function drawLabels({ surface, timeline, scale, sizes, maxDepth }, queueTop) {
  const label = (name, y, faint) => {
    const fill = faint ? surface.theme.faint : surface.theme.ink;
    surface.text(endOf(surface, name, scale.left - 12), scale.left - 8, y, { align: "right", size: 11, fill });
  };
  if (timeline.sequences) {
    const every = Math.ceil(11 / sizes.lane); // if there are many, every n-th has room for its name
    lanesOf(timeline).forEach(([instance, slot], index) => {
      if (index % every === 0) label(`${instance} · ${slot}`, TOP + (index + 0.5) * sizes.lane);
    });
    label("backlog", queueTop + 8);
  } else {
    timeline.instances.forEach((instance, index) => {
      label(instance, TOP + index * (sizes.lane + LABELS) + LABELS + sizes.lane / 2);
    });
    label("waiting", queueTop + 8);
  }
  const bands = queueTop + sizes.queue + GAP;
  label("queue depth", bands + BAND / 2);
  label(String(maxDepth), bands + 5, true);
  label("0", bands + BAND - 3, true);
  if (!timeline.sequences && timeline.meta.delay) {
    label("delay budget", bands + BAND + GAP + BAND / 2);
    label(`${timeline.meta.delay} ms`, bands + BAND + GAP + 5, true);
  }
}

function drawBands(frame, top) {
  const { surface, timeline, scale, end, maxDepth } = frame;
  const { blue, sky } = timeline.meta.colours;
  const height = (depth) => top + BAND - (depth / maxDepth) * (BAND - 4);
  const points = [[scale.left, height(timeline.depthAt(scale.from))]];
  for (const [time, depth] of timeline.depths) {
    if (time < scale.from || time > scale.to) continue;
    const x = scale.x(time);
    points.push([x, points[points.length - 1][1]], [x, height(depth)]);
  }
  const right = scale.clamp(Math.min(end, scale.to));
  if (right > scale.left) {
    points.push([right, points[points.length - 1][1]]);
    surface.path([[scale.left, top + BAND], ...points, [right, top + BAND]], { fill: sky, alpha: 0.35 });
    surface.path(points, { stroke: blue });
  }
  surface.line(scale.left, top + BAND, scale.left + scale.width, top + BAND, { stroke: surface.theme.line });
  if (!timeline.sequences && timeline.meta.delay) drawDelayBudget(frame, top + BAND + GAP);
}

// How much of max_queue_delay the oldest request of each batch had used while the batch was formed.
function drawDelayBudget({ surface, timeline, scale, batches, end }, top) {
  const { delay, colours } = timeline.meta;
  const bottom = top + BAND;
  const used = (waited) => bottom - Math.min(1.15, waited / delay) * (BAND - 6);
  const right = scale.left + scale.width;
  surface.line(scale.left, used(delay), right, used(delay), { stroke: colours.vermilion, dash: [4, 4] });
  for (const { sent, oldest } of batches) {
    const full = Math.min(sent, oldest + 1.15 * delay);
    const shape = [
      [scale.x(oldest), bottom], [scale.x(full), used(full - oldest)],
      [scale.x(sent), used(sent - oldest)], [scale.x(sent), bottom],
    ];
    surface.path(shape, { fill: colours.orange, alpha: 0.35 });
    surface.path(shape.slice(0, 3), { stroke: colours.orange });
  }
  if (timeline.pending.length) {
    const oldest = Math.min(...timeline.pending.map(({ queued }) => queued));
    const wait = [[scale.x(oldest), bottom], [scale.clamp(end), used(Math.max(0, end - oldest))]];
    surface.path(wait, { stroke: colours.orange, line: 2 });
  }
  surface.line(scale.left, bottom, right, bottom, { stroke: surface.theme.line });
}

function drawAxis({ surface, scale }) {
  const y = surface.height - AXIS;
  const { line, faint } = surface.theme;
  surface.line(scale.left, y, scale.left + scale.width, y, { stroke: line });
  const minimum = scale.span / Math.max(2, scale.width / 110);
  const power = 10 ** Math.floor(Math.log10(minimum));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= minimum);
  const seconds = scale.to >= 10000;
  const digits = Math.max(0, -Math.floor(Math.log10(seconds ? step / 1000 : step)));
  for (let time = Math.max(0, Math.ceil(scale.from / step) * step); time <= scale.to; time += step) {
    const x = scale.x(time);
    surface.line(x, y, x, y + 4, { stroke: line });
    const text = seconds ? `${(time / 1000).toFixed(digits)} s` : `${time.toFixed(digits)} ms`;
    if (x < surface.width - 24) surface.text(text, x, y + 12, { size: 10, align: "center", fill: faint });
  }
}

export { drawTimeline };
