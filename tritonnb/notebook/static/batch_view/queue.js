// Draws the waiting requests: a line for each, from its arrival until it is sent or refused.

import { isFocus, maximum, requestColour, requestLabel } from "./layout.js";

const DEPTH_ALPHA = 0.14;
const MOST_ROWS = 40; // of which each has its place, whether a request in it is drawn or not

/** @param {Frame} frame @param {number} top */
function drawQueue(frame, top) {
  const { timeline, scale, layout, batches, end } = frame;
  const waitsOf = (batch) => batch.members.filter(Boolean).map((member) => [member, batch.sent, batch]);
  const waits = batches.flatMap(waitsOf);
  for (const member of timeline.pending) {
    if (member.queued <= scale.to) waits.push([member, Math.max(end, member.queued), null]);
  }
  const refusals = [...timeline.refused.values()].filter(
    ({ queued, refused }) => refused >= scale.from && queued <= scale.to,
  );
  if (frame.maxDepth > MOST_ROWS) drawDepthBehind(frame, top);
  const used = [...waits.map(([member]) => member.queue_row), ...refusals.map((refusal) => refusal.queue_row)];
  frame.queueRow = placesOf(used.filter((row) => row >= 0));
  const lastOfWaits = maximum(waits, ([member]) => frame.queueRow(member.queue_row), 5);
  // Requests that never waited have a row for themselves, below the others.
  const rowOf = (refusal) => (refusal.queue_row < 0 ? lastOfWaits + 1 : frame.queueRow(refusal.queue_row));
  const lastRow = maximum(refusals, rowOf, lastOfWaits);
  frame.queueStep = Math.min(13, (layout.queue - 12) / (lastRow + 1));
  drawWaits(frame, waits, top);
  drawRefusals(frame, refusals.map((refusal) => ({ ...refusal, queue_row: rowOf(refusal) })), top);
}

// The depth of the queue fills the band: where thousands wait, only some are drawn as lines.
/** @param {Frame} frame @param {number} top */
function drawDepthBehind({ surface, timeline, scale, layout, end, maxDepth }, top) {
  const bottom = top + layout.queue;
  const height = (depth) => bottom - (depth / maxDepth) * layout.queue;
  /** @type {Point[]} */
  const points = [[scale.left, height(timeline.depthAt(scale.from))]];
  for (const [time, depth] of timeline.depthsBetween(scale.from, scale.to)) {
    points.push([scale.x(time), points[points.length - 1][1]], [scale.x(time), height(depth)]);
  }
  const right = Math.min(scale.right, scale.x(end));
  points.push([right, points[points.length - 1][1]], [right, bottom], [scale.left, bottom]);
  if (right > scale.left) surface.path(points, { fill: surface.theme.queue, alpha: DEPTH_ALPHA });
}

// The place of each row of the queue. The kernel gives each waiting request a row: among thousands, the rows without a
// drawn request are left out.
/** @param {number[]} used @returns {(row: number) => number} */
function placesOf(used) {
  const rows = [...new Set(used)].sort((one, other) => one - other);
  if (!rows.length || rows[rows.length - 1] < MOST_ROWS) return (row) => row;
  const places = new Map(rows.map((row, place) => [row, place]));
  return (row) => places.get(row) ?? row;
}

/** @param {Frame} frame @param {[Member, number, Batch | null][]} waits @param {number} top */
function drawWaits(frame, waits, top) {
  const { surface, timeline, scale, selected, focus, targets, queueStep: step } = frame;
  const byColour = new Map(); // colour -> [lines, begins]
  const rows = new Map(); // queue row -> [begin, end, label]
  for (const [member, until, batch] of waits) {
    const row = frame.queueRow(member.queue_row);
    const y = top + 6 + row * step;
    const colour = requestColour(frame, member, batch);
    const begin = scale.clamp(member.queued);
    const end = scale.clamp(until);
    if (!byColour.has(colour)) byColour.set(colour, [[], []]);
    const [lines, begins] = byColour.get(colour);
    lines.push([begin, y, end, y]);
    begins.push([begin, y]);
    const height = Math.max(4, step);
    targets.push({
      kind: "request", request: member, batch, x: begin - 3, y: y - height / 2, width: end - begin + 6, height,
    });
    if (batch !== null && batch.n === selected) surface.line(begin, y, end, y, { stroke: colour, line: 4 });
    if (isFocus(focus, member)) {
      frame.focusLines.push([[[begin, y], [end, y]], { stroke: surface.theme.selection, line: 4 }]);
    }
    if (!rows.has(row)) rows.set(row, []);
    rows.get(row).push([begin, end, requestLabel(timeline, member), y]);
  }
  const lengths = waits.map(([member, until]) => scale.clamp(until) - scale.clamp(member.queued));
  const median = lengths.sort((one, other) => one - other)[lengths.length >> 1] ?? 0;
  const radius = Math.min(waits.length > 150 ? 1.8 : 3.5, Math.max(1.2, step * 0.36), median / 3);
  for (const [colour, [lines, begins]] of byColour) {
    surface.lines(lines, { stroke: colour, line: Math.min(2, Math.max(0.5, step * 0.6)) });
    if (radius > 1) surface.dots(begins, radius, colour);
    else surface.lines(begins.map(([x, y]) => [x, y - 3, x, y + 3]), { stroke: colour, line: 1 }); // waits hardly seen
  }
  if (step >= 10 && waits.length < 200) [...rows.values()].forEach((row) => labelRow(frame, row));
}

// A label stands left of its line, where no other line of the row is; without such a place there is none.
/** @param {Frame} frame @param {[begin: number, end: number, label: string, y: number][]} row */
function labelRow({ surface, scale }, row) {
  row.sort(([one], [other]) => one - other);
  let free = scale.left;
  row.forEach(([begin, end, label, y], index) => {
    const isNear = (other) => other !== undefined && Math.abs(other[0] - begin) <= 1;
    const isAlone = !isNear(row[index - 1]) && !isNear(row[index + 1]); // else it may be read as that of the other
    if (isAlone && begin - 5 - surface.measure(label, 10) >= free) {
      surface.text(label, begin - 5, y, { size: 10, align: "right", halo: true });
    }
    free = Math.max(free, end + 4);
  });
}

/** @param {Frame} frame @param {Refusal[]} refusals @param {number} top */
function drawRefusals({ surface, scale, targets, queueStep: step }, refusals, top) {
  const cross = { stroke: surface.theme.refusal, line: 2 };
  for (const refusal of refusals) {
    const x = scale.clamp(refusal.refused);
    const y = top + 6 + refusal.queue_row * step;
    surface.line(scale.clamp(refusal.queued), y, x, y, { stroke: surface.theme.faint });
    surface.line(x - 4, y - 4, x + 4, y + 4, cross);
    surface.line(x - 4, y + 4, x + 4, y - 4, cross);
    targets.push({ kind: "refusal", refusal, x: x - 5, y: y - 5, width: 10, height: 10 });
  }
}

export { drawQueue };
