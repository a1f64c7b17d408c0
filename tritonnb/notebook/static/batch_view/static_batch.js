// Static batches of generations: a batch runs until the longest of its generations has ended. The row of one that ended
// earlier is idle from its last token on.

import { cellAlpha } from "./iterative.js";
import { formatMs, pluralize } from "./words.js";

const HATCH_LEGEND = "hatched: the generation has ended, its row is idle until the longest of the batch ends";
const CELL_LEGEND = "solid: the prompt is read; thick edge: the last token";

// How long the row of a request was idle, in ms; 0 for a request that generated nothing.
/** @type {(batch: Batch, generation: Generation | null | undefined) => number} */
const idleTime = (batch, generation) => (generation ? Math.max(0, batch.end - generation.last) : 0);

// Where the first and the last token are, in whole pixels as the edges of batches.
/** @param {Scale} scale @param {Generation} generation */
function edgesOf(scale, { first, last }) {
  return { first: Math.round(scale.clamp(first)), last: Math.round(scale.clamp(last)) };
}

// Draws the row of a generation: the step that reads the prompt, the other steps, and the time when it is idle.
/** @param {Frame} frame @param {Batch} batch @param {number} index @param {Row} row @param {string} fill */
function drawGeneration({ surface, scale }, batch, index, { left, width, y, part }, fill) {
  const generation = batch.generated[index];
  const { ink, paper, null: idle } = surface.theme;
  const { first, last } = edgesOf(scale, generation);
  surface.rect(left, y - part, first - left, part, { fill, alpha: cellAlpha(1) });
  surface.rect(first, y - part, last - first, part, { fill, alpha: cellAlpha(2) });
  if (!idleTime(batch, generation)) return;
  surface.rect(last, y - part, left + width - last, part, { fill: paper, stroke: idle, hatch: true });
  surface.line(last, y - part, last, y, { stroke: ink, line: 3 });
}

// What can be pointed at in the time in which the row is idle.
/** @param {Frame} frame @param {Batch} batch @param {number} index @param {Row} row @returns {Target[]} */
function idleTargets({ scale }, batch, index, { left, width, y, part }) {
  const generation = batch.generated[index];
  if (!idleTime(batch, generation)) return [];
  const { last } = edgesOf(scale, generation);
  const box = { x: last, y: y - part, width: left + width - last, height: part };
  return [{ kind: "idle", batch, request: batch.members[index], generation, ...box }];
}

// What is said of the row of a generation that has ended.
/** @param {{ batch: Batch, request: Member, generation: Generation }} target */
function describeIdle({ batch, request, generation }) {
  return [
    `idle: request ${request.label} ended after ${pluralize(generation.tokens, "token")}`,
    `its row of batch ${batch.n} is idle for ${formatMs(idleTime(batch, generation))} ms, until the longest ` +
      "generation of the batch ends",
  ];
}

export { CELL_LEGEND, HATCH_LEGEND, describeIdle, drawGeneration, idleTargets, idleTime };
