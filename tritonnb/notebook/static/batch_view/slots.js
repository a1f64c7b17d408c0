// Draws the lanes of batch slots of a stateful model, and below them the sequences in the backlog.

import { drawColumnSlots } from "./columns.js";
import { BACKLOG, LEAST_TEXT, TOP, isFocus, lanesOf, sequenceColour } from "./layout.js";
import { cellAlpha, cellLabel, drawRelease, stepOf } from "./iterative.js";

const LEAST_DOTTED = 8; // px: on narrower boxes, dots would be all that is seen
const FEW_SLOTS = 15; // px: among lower lanes, the legend names null requests once
const NARROW_BAND = 8; // px: among columns, bands that are so narrow would be a bar code

/** @param {Frame} frame */
function drawSlots(frame) {
  const { surface, timeline, scale, layout, batches, columns } = frame;
  const { line, panel, paper } = surface.theme;
  const tops = new Map();
  lanesOf(timeline).forEach(([instance, slot], index) => {
    const top = TOP + index * layout.lane;
    tops.set(`${instance} ${slot}`, top);
    const fill = timeline.instances.indexOf(instance) % 2 ? panel : paper;
    surface.rect(scale.left, top, scale.width, layout.lane, { fill });
    if (layout.lane >= LEAST_TEXT) surface.line(scale.left, top, scale.right, top, { stroke: line });
  });
  const names = drawOccupancy(frame, tops);
  if (columns) drawColumnSlots(frame, tops);
  for (const batch of batches) {
    if (batch.slots) drawSlotBatch(frame, batch, tops);
  }
  drawNames(frame, names);
}

// The names of sequences, each in the first place of its band that no box covers; without such a place there is none.
/** @param {Frame} frame @param {Name[]} names */
function drawNames({ surface, layout, targets }, names) {
  for (const { text, left, right, y } of names) {
    const width = surface.measure(text, 10) + 8;
    const boxes = targets.filter((target) => target.kind !== "occupancy" && target.kind !== "batch" &&
      target.y < y && target.y + target.height > y && target.x < right && target.x + target.width > left);
    boxes.sort((one, other) => one.x - other.x);
    let x = left;
    for (const box of boxes) {
      if (box.x - x >= width) break;
      x = Math.max(x, box.x + box.width);
    }
    if (right - x >= width && layout.lane >= LEAST_TEXT) surface.text(text, x + 5, y, { size: 10, bold: true });
  }
}

// Draws the bands of the sequences; returns the names of those without a box that is large enough for one.
/** @param {Frame} frame @param {Map<string, number>} tops @returns {Name[]} */
function drawOccupancy(frame, tops) {
  /** @type {Name[]} */
  const names = [];
  const { surface, timeline, scale, layout, end } = frame;
  const labelled = labelledOccupancy(frame);
  for (const held of timeline.occupancyBetween(scale.from, scale.to)) {
    const { sequence, instance, slot, assigned, released } = held;
    const y = tops.get(`${instance} ${slot}`);
    if (y === undefined) continue;
    const middle = y + layout.lane / 2;
    const left = scale.clamp(assigned);
    const right = scale.clamp(released ?? end);
    if (frame.columns && right - left < NARROW_BAND) continue;
    const band = sequenceColour(surface.theme, timeline, sequence);
    surface.rect(left, y, right - left, layout.lane, { fill: band, alpha: 0.2 });
    frame.targets.push({ kind: "occupancy", held, x: left, y, width: right - left, height: layout.lane });
    drawRelease(frame, held, y);
    if (released === null) drawIdleTime(frame, y, held.last, right);
    if (!labelled.has(`${instance} ${slot} ${sequence}`)) {
      names.push({ text: String(sequence), left: Math.max(left, scale.left), right, y: middle });
    }
    if (held.ended_by === "idle" && layout.lane >= LEAST_TEXT) {
      const fill = surface.theme.refusal;
      surface.text("idle ✕", right - 3, middle, { size: 10, align: "right", fill, halo: true });
    }
  }
  return names;
}

// The occupancies in which some request's box is large enough for the sequence's name.
/** @param {Frame} frame */
function labelledOccupancy({ scale, batches, end }) {
  const labelled = new Set();
  for (const batch of batches) {
    if (scale.clamp(batch.end ?? end) - scale.clamp(batch.start ?? batch.sent) < 20) continue;
    batch.slots?.forEach((slot, index) =>
      labelled.add(`${batch.instance} ${slot} ${batch.members[index]?.sequence}`));
  }
  return labelled;
}

/** @param {Frame} frame @param {Batch} batch @param {Map<string, number>} tops */
function drawSlotBatch(frame, batch, tops) {
  const { surface, timeline, scale, layout, targets, end, selected } = frame;
  const { ink, refusal, selection } = surface.theme;
  const left = scale.clamp(batch.start ?? batch.sent);
  const right = Math.max(scale.clamp(batch.end ?? end), left + 2);
  const ys = batch.slots.map((slot) => tops.get(`${batch.instance} ${slot}`));
  const shown = { left, right };
  targets.push({ kind: "batch", batch, x: left - 1, y: Math.min(...ys), width: right - left + 2,
    height: Math.max(...ys) + layout.lane - Math.min(...ys) });
  batch.members.forEach((_, index) => drawMember(frame, batch, index, { ...shown, y: ys[index] }));
  const top = Math.min(...ys);
  const bottom = Math.max(...ys) + layout.lane;
  const isSelected = batch.n === selected;
  if (timeline.meta.strategy === "direct" || isSelected) {
    const stroke = isSelected ? selection : batch.failed ? refusal : ink;
    const line = isSelected ? 3 : batch.failed ? 2 : 1;
    surface.rect(left, top + 1, right - left, bottom - top - 2, { stroke, line });
  } else if (ys.length > 1 && !timeline.meta.iterative) { // a step is that of all slots
    surface.line(left, top + layout.lane / 2, left, bottom - layout.lane / 2, { stroke: ink, line: 1.5 });
    if (right - left >= LEAST_DOTTED) ys.forEach((y) => surface.dot(left, y + layout.lane / 2, 3, ink));
  }
}

// How much of the idle time has passed: a dotted line at the slot's lower edge.
/** @param {Frame} frame @param {number} y @param {number} last @param {number} right */
function drawIdleTime({ surface, timeline, scale, layout, end }, y, last, right) {
  const { idle } = timeline.meta;
  if (!idle) return;
  const share = Math.min(1, Math.max(0, (end - last) / idle));
  const stroke = share > 0.8 ? surface.theme.limit : surface.theme.faint;
  const lineY = y + layout.lane - 2;
  surface.line(scale.clamp(last), lineY, right, lineY, { stroke, line: 2, dash: [2, 2] });
}

/**
 * @param {Frame} frame @param {Batch} batch @param {number} index
 * @param {{ left: number, right: number, y: number }} place
 */
function drawMember({ surface, timeline, layout, targets, focus }, batch, index, { left, right, y }) {
  if (y === undefined) return;
  const member = batch.members[index];
  const { ink, paper, selection } = surface.theme;
  const margin = Math.min(3, layout.lane / 4);
  const top = y + margin;
  const height = layout.lane - 2 * margin;
  const width = right - left;
  /** @type {Point} */
  const middle = [left + width / 2, y + layout.lane / 2];
  const target = { batch, slot: batch.slots[index], x: left, y: top, width, height };
  if (!member) {
    targets.push({ kind: "null", ...target });
    surface.rect(left, top, width, height, { fill: paper, stroke: surface.theme.null, hatch: true });
    if (width <= 26 || layout.lane <= FEW_SLOTS) return;
    surface.text("null", ...middle, { size: 10, align: "center", halo: true });
    return;
  }
  const { sequence_start: start, sequence_end: end } = timeline.meta.encoding;
  targets.push({ kind: "request", request: member, ...target });
  const fill = sequenceColour(surface.theme, timeline, member.sequence);
  const step = stepOf(timeline, member);
  const stroke = step && width > 4 ? fill : undefined;
  surface.rect(left, top, width, height, { fill, alpha: cellAlpha(step), stroke });
  if (isFocus(focus, member)) surface.rect(left, top, width, height, { stroke: selection, line: 3 });
  if (member.flags & start && !step) surface.line(left, top, left, top + height, { stroke: ink, line: 4 });
  if (member.flags & end) surface.line(right, top, right, top + height, { stroke: ink, line: 4 });
  const label = layout.lane >= LEAST_TEXT && cellLabel(surface, member, step, width);
  if (label) surface.text(label, ...middle, { size: 10, align: "center", bold: true, halo: step === 1 });
}

/** @param {Frame} frame @param {number} top */
function drawBacklog(frame, top) {
  const { surface, timeline, scale } = frame;
  const [waits, rowCount] = backlogWaits(frame);
  const step = Math.min(13, (BACKLOG - 20) / Math.max(1, rowCount - 1));
  const every = Math.ceil(10 / step); // if there are many, every n-th has room for its name
  for (const { sequence, arrived, assigned, row } of waits) {
    const y = top + 10 + row * step;
    const label = row % every ? "" : String(sequence);
    const begin = Math.max(scale.clamp(arrived), scale.left + surface.measure(label, 10) + 6);
    const stroke = sequenceColour(surface.theme, timeline, sequence);
    const line = Math.max(1, Math.min(4, step - 2));
    surface.line(begin, y, Math.max(begin, scale.clamp(assigned)), y, { stroke, line });
    if (label) surface.text(label, begin - 4, y, { size: 10, align: "right", halo: true });
  }
  const fill = surface.theme.refusal;
  for (const { queued, refused, sequence } of timeline.refused.values()) {
    if (refused < scale.from || queued > scale.to) continue;
    const x = scale.clamp(refused);
    surface.text(`✕ ${sequence || ""}`, x, top + 10, { size: 11, fill, halo: true, align: "center" });
  }
}

// The sequences that waited or wait in the backlog, each in the first row that is free, and how many rows there are.
/** @param {Frame} frame @returns {[waits: (Wait & { row: number })[], rowCount: number]} */
function backlogWaits({ timeline, scale, end }) {
  const freeFrom = []; // when each row is free
  const waits = timeline.backlogBetween(scale.from, scale.to).map(({ sequence, arrived, assigned: until }) => {
    const assigned = Math.min(until, Math.max(end, arrived));
    let row = freeFrom.findIndex((time) => time <= arrived);
    if (row < 0) row = freeFrom.length;
    freeFrom[row] = assigned + (40 / scale.width) * scale.span;
    return { sequence, arrived, assigned, row };
  });
  return [waits, freeFrom.length];
}

export { drawBacklog, drawSlots };
