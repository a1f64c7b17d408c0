// Iterative sequences: a request that runs many times, such as a generation with a token for each step.

// The number of the step, from 1; 0 for a request that is not iterative.
/** @param {Timeline} timeline @param {Member} member */
function stepOf(timeline, member) {
  return timeline.meta.iterative ? Math.floor(member.flags / timeline.meta.encoding.step) : 0;
}

// The first step, in which a model reads the prompt, is nearly solid.
/** @param {number} step */
function cellAlpha(step) {
  if (!step) return 0.55;
  return step === 1 ? 0.95 : 0.35;
}

// What is written in a cell if it is wide enough: the sequence, or the number of its step after the first.
/** @param {Surface} surface @param {Member} member @param {number} step @param {number} width */
function cellLabel(surface, member, step, width) {
  const label = step > 1 ? String(step) : String(member.sequence);
  return surface.measure(label, 10) + 6 < width ? label : null;
}

// The moment when a finished generation frees its slot.
/** @param {Frame} frame @param {Occupancy} held @param {number} y */
function drawRelease({ surface, timeline, layout, scale }, held, y) {
  if (!timeline.meta.iterative || held.released === null || held.ended_by !== "END") return;
  if (held.released < scale.from || held.released > scale.to) return;
  const x = scale.clamp(held.released);
  surface.line(x, y + 1, x, y + layout.lane - 1, { stroke: surface.theme.ink, line: 3 });
}

const ITERATIVE_LEGEND = "box: a step of the generation in the slot, solid: its prompt is read, " +
  "then a token for each; thick edge: the last token frees the slot; pale: the sequence holds the slot";

export { ITERATIVE_LEGEND, cellAlpha, cellLabel, drawRelease, stepOf };
