// Draws the lanes of instances with their batches, and below them the requests in the queue.

import { drawGhosts } from "./ghosts.js";
import { LABELS, TOP, formatMs, maximum, outline, requestColour } from "./layout.js";

function drawBatches(frame, queueTop) {
  const { surface, timeline, scale, sizes, batches } = frame;
  const members = batches.reduce((sum, batch) => sum + batch.members.length, 0);
  timeline.instances.forEach((instance, index) => {
    const top = TOP + index * (sizes.lane + LABELS) + LABELS;
    surface.rect(scale.left, top, scale.width, sizes.lane, { fill: surface.theme.panel, alpha: 0.6 });
    drawPreferredSizes(frame, top + sizes.lane);
    drawGhosts(frame, instance, top);
    for (const batch of batches) {
      if (batch.instance === instance) drawBatch(frame, batch, top, members < 150 ? queueTop : null);
    }
  });
}

const maxRows = (timeline) => Math.max(1, timeline.meta.max_batch_size || 1);

function drawPreferredSizes({ surface, timeline, scale, sizes }, bottom) {
  const full = maxRows(timeline);
  const right = scale.left + scale.width;
  for (const size of timeline.meta.preferred) {
    const y = bottom - (size / full) * sizes.lane;
    if (size < full) surface.line(scale.left, y, right, y, { stroke: surface.theme.faint, dash: [4, 4], alpha: 0.7 });
  }
  surface.line(scale.left, bottom, right, bottom, { stroke: surface.theme.line });
}

function drawBatch(frame, batch, top, queueTop) {
  const { surface, timeline, scale, sizes, targets, end, selected } = frame;
  const bottom = top + sizes.lane;
  const full = maxRows(timeline);
  const left = scale.clamp(batch.start ?? batch.sent);
  const width = Math.max(scale.clamp(batch.end ?? end) - left, 1);
  const height = Math.max(2, (Math.min(batch.rows, full) / full) * sizes.lane);
  const box = { left, width, bottom, height };
  drawSlices(frame, batch, box, queueTop);
  const isSelected = batch.n === selected;
  surface.rect(left, bottom - height, width, height, {
    stroke: isSelected ? surface.theme.accent : outline(timeline, batch, timeline.meta.colours.blue),
    line: isSelected ? 3 : batch.failed ? 2 : 1,
  });
  drawPhases(frame, batch, box);
  drawBatchLabel(surface, batch, box);
  if (batch.differs && width > 16 && height > 14) {
    surface.text("≠", left + width - 4, bottom - height + 9, { size: 15, align: "right", bold: true });
  }
  targets.push([left - 2, top - LABELS, width + 4, sizes.lane + LABELS, batch.n]);
}

// A batch's box in slices, one for each request, as high as its rows, with lines from where those waited.
function drawSlices(frame, batch, { left, width, bottom, height }, queueTop) {
  const { surface, timeline, scale, sizes, targets } = frame;
  const step = queueStep(sizes, frame.lastQueueRow);
  let y = bottom;
  for (const [member, part, colour, label] of slicesOf(timeline, batch, height, width)) {
    surface.rect(left, y - part, width, part, { fill: colour ?? surface.theme.faint, alpha: 0.55 });
    if (label && part >= 12 && width > surface.measure(label, 10) + 6) {
      surface.text(label, left + 4, y - part / 2, { size: 10 });
    }
    if (part >= 3) surface.line(left, y, left + width, y, { stroke: surface.theme.paper, line: 1 });
    if (member) targets.push([left, y - part, width, part, batch.n, member.label]);
    if (member && queueTop !== null) {
      const waitY = queueTop + 6 + member.queue_row * step;
      surface.line(scale.clamp(batch.sent), waitY, left, y - part / 2, { stroke: colour, alpha: 0.5 });
    }
    y -= part;
  }
}

// [member, height, colour, label] from below; one slice for each colour if single requests are too small to see.
function slicesOf(timeline, batch, height, width) {
  const rows = batch.members.reduce((sum, member) => sum + (member ? member.rows : 1), 0);
  const slices = batch.members.map((member) =>
    member
      ? [member, (height * member.rows) / rows, requestColour(timeline, member), member.label]
      : [null, height / rows, null, ""]);
  if ((height / rows >= 3 && width >= 5) || slices.length <= 1) return slices;
  const heights = new Map();
  for (const [, part, colour] of slices) heights.set(colour, (heights.get(colour) ?? 0) + part);
  return [...heights].map(([colour, part]) => [null, part, colour, ""]);
}

// Input, inference and output as a strip below the box.
function drawPhases({ surface, timeline, scale }, batch, { width, bottom }) {
  if (batch.end === null || batch.input === undefined || width < 12) return;
  const { sky, blue, orange } = timeline.meta.colours;
  const marks = [batch.start, batch.input, batch.output, batch.end].map((time) => scale.clamp(time));
  [sky, blue, orange].forEach((fill, index) => {
    surface.rect(marks[index], bottom, marks[index + 1] - marks[index], 3, { fill });
  });
}

function drawBatchLabel(surface, batch, { left, width, bottom, height }) {
  const rows = batch.rows === 1 ? "1 row" : `${batch.rows} rows`;
  const requests = batch.requests === 1 ? "1 request" : `${batch.requests} requests`;
  const waited = `waited ${formatMs(batch.sent - batch.oldest)}`;
  const ran = batch.end === null ? "runs" : `ran ${formatMs(batch.end - batch.start)} ms`;
  const labels = [`${requests}, ${rows} · ${waited}, ${ran}`, `${requests}, ${rows}`, rows, `${batch.rows}`];
  const label = labels.find((candidate) => surface.measure(candidate, 10) <= width - 3);
  if (label) surface.text(label, left + 1, bottom - height - 7, { size: 10, halo: true });
}

const queueStep = (sizes, lastRow) => Math.min(13, (sizes.queue - 12) / (lastRow + 1));

function drawQueue(frame, top) {
  const { timeline, scale, sizes, batches, end } = frame;
  const waitsOf = ({ members, sent, n }) => members.filter(Boolean).map((member) => [member, sent, n]);
  const waits = batches.flatMap(waitsOf);
  for (const member of timeline.pending) waits.push([member, Math.max(end, member.queued), null]);
  const refusals = [...timeline.refused.values()].filter(
    ({ queued, refused }) => refused >= scale.from && queued <= scale.to,
  );
  const lastOfWaits = maximum(waits, ([member]) => member.queue_row, 5);
  frame.lastQueueRow = maximum(refusals, (refusal) => refusal.queue_row, lastOfWaits);
  const step = queueStep(sizes, frame.lastQueueRow);
  drawWaits(frame, waits, top, step);
  drawRefusals(frame, refusals, top, step);
}

function drawWaits({ surface, timeline, scale, selected, targets }, waits, top, step) {
  const byColour = new Map(); // colour -> [lines, begins]
  const lastBegin = []; // in each row
  const labels = [];
  for (const [member, until, number] of waits) {
    const row = member.queue_row;
    const y = top + 6 + row * step;
    const colour = requestColour(timeline, member);
    const begin = scale.clamp(member.queued);
    const end = scale.clamp(until);
    if (!byColour.has(colour)) byColour.set(colour, [[], []]);
    const [lines, begins] = byColour.get(colour);
    lines.push([begin, y, end, y]);
    if (number !== null) targets.push([begin - 4, y - step / 2, end - begin + 8, step, number, member.label]);
    begins.push([begin, y]);
    if (number !== null && number === selected) surface.line(begin, y, end, y, { stroke: colour, line: 4 });
    const free = begin - (lastBegin[row] ?? -Infinity);
    const fits = step >= 10 && waits.length < 200 && free > surface.measure(member.label, 10) + 14;
    if (fits) labels.push([member.label, begin - 5, y]);
    lastBegin[row] = Math.max(begin, lastBegin[row] ?? -Infinity);
  }
  const radius = Math.min(waits.length > 150 ? 1.8 : 3.5, Math.max(1.2, step * 0.36));
  for (const [colour, [lines, begins]] of byColour) {
    surface.lines(lines, { stroke: colour, line: Math.min(2, Math.max(0.5, step * 0.6)) });
    surface.dots(begins, radius, colour);
  }
  for (const [label, x, y] of labels) surface.text(label, x, y, { size: 10, align: "right", halo: true });
}

function drawRefusals({ surface, timeline, scale }, refusals, top, step) {
  const cross = { stroke: timeline.meta.colours.vermilion, line: 2 };
  for (const { queued, refused, queue_row: row } of refusals) {
    const x = scale.clamp(refused);
    const y = top + 6 + row * step;
    surface.line(scale.clamp(queued), y, x, y, { stroke: surface.theme.faint });
    surface.line(x - 4, y - 4, x + 4, y + 4, cross);
    surface.line(x - 4, y + 4, x + 4, y - 4, cross);
  }
}

export { drawBatches, drawQueue };
