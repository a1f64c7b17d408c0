// Draws the lanes of instances with their batches.

import { drawGhosts } from "./ghosts.js";
import { isFocus, laneTop, requestColour, requestLabel } from "./layout.js";
import { drawGeneration, idleTargets } from "./static_batch.js";
import { formatMs, markOf, pluralize } from "./words.js";

/** @param {Frame} frame */
function drawBatches(frame) {
  const { surface, timeline, scale, layout, batches } = frame;
  const members = batches.reduce((sum, batch) => sum + batch.members.length, 0);
  frame.linksWaits = members < 150 && !layout.isThin; // links to thin lanes would cover the others
  timeline.instances.forEach((instance, index) => {
    const top = laneTop(layout, index);
    surface.rect(scale.left, top, scale.width, layout.lane, { fill: surface.theme.panel });
    drawSizeLines(frame, top);
    drawGhosts(frame, instance, top);
    for (const batch of batches) {
      if (batch.instance === instance) drawBatch(frame, batch, top);
    }
  });
}

// The preferred sizes, and the maximum if batches are drawn up to it.
/** @param {Frame} frame @param {number} top */
function drawSizeLines({ surface, timeline, scale, layout, rows }, top) {
  const bottom = top + layout.lane;
  const { faint, limit, line } = surface.theme;
  for (const size of timeline.meta.preferred) {
    const y = bottom - (size / rows) * layout.lane;
    if (size < rows) surface.line(scale.left, y, scale.right, y, { stroke: faint, dash: [4, 4], alpha: 0.7 });
  }
  const most = timeline.meta.max_batch_size || 1;
  if (most === rows) surface.line(scale.left, top, scale.right, top, { stroke: limit, dash: [4, 4] });
  surface.line(scale.left, bottom, scale.right, bottom, { stroke: line });
}

/** @param {Frame} frame @param {Batch} batch @param {number} top */
function drawBatch(frame, batch, top) {
  const { surface, scale, layout, targets, end, selected, rows } = frame;
  const bottom = top + layout.lane;
  // Whole pixels: sharp edges, and a width that does not change while the picture moves.
  const begin = scale.clamp(batch.start ?? batch.sent);
  const left = Math.round(begin);
  const width = Math.max(frame.leastWidth, Math.round(scale.clamp(batch.end ?? Math.min(end, scale.to)) - begin));
  const height = Math.max(2, (Math.min(batch.rows, rows) / rows) * layout.lane);
  const box = { left, width, bottom, height };
  const { lane, labels } = layout;
  targets.push({ kind: "batch", batch, x: left - 1, y: top - labels, width: width + 2, height: lane + labels });
  if (batch.limited !== null) drawLimited(frame, batch, top, left);
  drawSlices(frame, batch, box);
  const { selection, refusal, compute } = surface.theme;
  const isSelected = batch.n === selected;
  const line = isSelected ? 3 : batch.failed ? 2 : 1;
  const stroke = isSelected ? selection : batch.failed ? refusal : compute;
  // The edge is inside the box: a batch is as wide as its execution took.
  const inset = Math.min(line, width) / 2;
  surface.rect(left + inset, bottom - height + inset, width - 2 * inset, height - 2 * inset,
    { stroke, line: 2 * inset });
  drawPhases(frame, batch, box);
  if (batch.responses) drawResponses(frame, batch, box);
  drawBatchLabel(frame, batch, box);
  if (batch.differs && width > 16 && height > 14) {
    surface.text("≠", left + width - 4, bottom - height + 9, { size: 15, align: "right", bold: true });
  }
}

// Hatch the time in which the instance was free and the batch waited for the rate limiter.
/** @param {Frame} frame @param {Batch} batch @param {number} top @param {number} right */
function drawLimited({ surface, scale, layout, targets }, batch, top, right) {
  const x = Math.round(scale.clamp(batch.limited));
  const box = { x, y: top, width: right - x, height: layout.lane };
  if (box.width < 2) return;
  surface.rect(box.x, box.y, box.width, box.height, { stroke: surface.theme.faint, hatch: true });
  targets.push({ kind: "limited", batch, ...box });
}

// A batch's box in slices, one for each request, as high as its rows, with lines from where those waited.
/** @param {Frame} frame @param {Batch} batch @param {Box} box */
function drawSlices(frame, batch, { left, width, bottom, height }) {
  const { surface, scale, layout, targets, focus } = frame;
  const { faint, paper } = surface.theme;
  let y = bottom;
  for (const [index, [member, part, colour, label]] of slicesOf(frame, batch, height, width).entries()) {
    const generates = member && batch.generated?.[index];
    if (generates) drawGeneration(frame, batch, index, { left, width, y, part }, colour);
    else surface.rect(left, y - part, width, part, { fill: colour ?? faint, alpha: 0.5 });
    const labelLeft = Math.max(left, scale.left) + 4;
    if (label && part >= 12 && left + width - labelLeft > surface.measure(label, 10) + 2) {
      surface.text(label, labelLeft, y - part / 2, { size: 10, halo: Boolean(generates) });
    }
    if (part >= 3) surface.line(left, y, left + width, y, { stroke: paper, line: 1 });
    if (member) {
      targets.push({ kind: "request", request: member, batch, x: left, y: y - part, width, height: part });
      if (generates) targets.push(...idleTargets(frame, batch, index, { left, width, y, part }));
      const waitY = layout.queueTop + 6 + frame.queueRow(member.queue_row) * frame.queueStep;
      // Half a pixel to the right: a vertical link is inside the box, which is as wide as its execution took.
      /** @type {Point[]} */
      const link = [[Math.round(scale.clamp(batch.sent)) + 0.5, waitY], [left + 0.5, y - part / 2]];
      if (frame.linksWaits) surface.path(link, { stroke: requestColour(frame, member, batch), alpha: 0.5 });
      if (isFocus(focus, member)) frame.focusLines.push(...focusOf(frame, link, left, y, width, part));
    }
    y -= part;
  }
}

/**
 * @param {Frame} frame @param {Point[]} link @param {number} left @param {number} y @param {number} width
 * @param {number} part @returns {[Point[], Style][]}
 */
function focusOf({ surface }, link, left, y, width, part) {
  const style = { stroke: surface.theme.selection, line: 2.5 };
  const [right, top] = [left + width, y - part];
  return [[link, style], [[[left, y], [left, top], [right, top], [right, y], [left, y]], style]];
}

// [member, height, colour, label] from below; one slice for each colour if single requests are too small to see.
/** @param {Frame} frame @param {Batch} batch @param {number} height @param {number} width @returns {Slice[]} */
function slicesOf(frame, batch, height, width) {
  const rows = batch.members.reduce((sum, member) => sum + (member ? member.rows : 1), 0);
  /** @type {Slice[]} */
  const slices = batch.members.map((member) =>
    member
      ? [member, (height * member.rows) / rows, requestColour(frame, member, batch),
        requestLabel(frame.timeline, member)]
      : [null, height / rows, null, ""]);
  if (((height / rows >= 3 || batch.generated) && width >= 5) || slices.length <= 1) return slices;
  const heights = new Map();
  for (const [, part, colour] of slices) heights.set(colour, (heights.get(colour) ?? 0) + part);
  return [...heights].map(([colour, part]) => [null, part, colour, ""]);
}

// Input, compute and output as a strip below the box.
/** @param {Frame} frame @param {Batch} batch @param {Box} box */
function drawPhases({ surface, scale }, batch, { width, bottom }) {
  if (batch.end === null || batch.input === undefined || width < 12) return;
  const { input, compute, output } = surface.theme;
  const marks = [batch.start, batch.input, batch.output, batch.end].map((time) => scale.clamp(time));
  [input, compute, output].forEach((fill, index) => {
    surface.rect(marks[index], bottom, marks[index + 1] - marks[index], 3, { fill });
  });
}

// Of each request a line from the end of the execution to its last response, and a tick for each response.
/** @param {Frame} frame @param {Batch} batch @param {Box} box */
function drawResponses({ surface, scale, targets }, batch, { left, width, bottom, height }) {
  const stroke = surface.theme.output;
  const step = height / batch.members.length;
  batch.members.forEach((member, place) => {
    const times = batch.responses.filter(([of]) => of === place).map(([, time]) => scale.clamp(time));
    if (!times.length) return;
    const y = bottom - (place + 0.5) * step;
    const reach = Math.min(4, Math.max(1.5, step / 2 - 1));
    const last = Math.max(...times);
    surface.line(left + width, y, last, y, { stroke });
    surface.lines(times.map((x) => [x, y - reach, x, y + reach]), { stroke, line: 2 });
    targets.push({ kind: "request", request: member, batch, x: left + width, y: y - 4, width: last - left - width + 2,
      height: 8 });
  });
}

// What a batch is, as much as fits above its box, after the mark of the rule that sent it.
/** @param {Frame} frame @param {Batch} batch @param {Box} box */
function drawBatchLabel({ surface, scale, timeline, layout }, batch, { left, width, bottom, height }) {
  if (layout.isThin) return;
  const [mark] = markOf(timeline.meta, batch.rule);
  const rows = pluralize(batch.rows, "row");
  const requests = pluralize(batch.requests, "request");
  const waited = `waited ${formatMs(batch.sent - batch.oldest)}`;
  const ran = batch.end === null ? "runs" : `ran ${formatMs(batch.end - batch.start)} ms`;
  // Bare numbers are requests.
  const labels = [`${requests}, ${rows} · ${waited}, ${ran}`, `${requests}, ${rows}`, rows];
  const begin = Math.max(left, scale.left) + 1;
  const candidates = [...labels.map((label) => `${mark} ${label}`), mark];
  const label = candidates.find((candidate) => surface.measure(candidate, 10) <= left + width - begin - 2);
  if (label) surface.text(label, begin, bottom - height - 7, { size: 10, halo: true });
}

export { drawBatches };
