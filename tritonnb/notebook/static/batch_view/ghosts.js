// The batches that a draft of the configuration would have formed, drawn behind those that ran.

import { maximum } from "./layout.js";

// The trait `ghost`: a string, and boxes of [instance, begin, end, rows] with times in ticks.
class Ghost {
  /** @param {GhostBoxes} ghost @param {number} ticks */
  constructor(ghost, ticks) {
    this.text = ghost.text ?? "";
    this.boxes = (ghost.boxes ?? []).map(([instance, begin, end, rows]) =>
      ({ instance, begin: begin / ticks, end: end / ticks, rows }));
    this.end = maximum(this.boxes, (box) => box.end, 0) || Infinity;
  }

  // The rows of its largest batch in a time.
  /** @param {number} from @param {number} to */
  largestBetween(from, to) {
    const shown = this.boxes.filter(({ begin, end }) => end >= from && begin <= to);
    return maximum(shown, ({ rows }) => rows, 1);
  }
}

/** @param {Frame} frame @param {string} instance @param {number} top */
function drawGhosts({ surface, scale, layout, rows, ghost }, instance, top) {
  const bottom = top + layout.lane;
  for (const box of ghost?.boxes ?? []) {
    if (box.instance !== instance || box.end < scale.from || box.begin > scale.to) continue;
    const left = scale.clamp(box.begin);
    const right = scale.clamp(box.end);
    const y = bottom - Math.max(2, (Math.min(box.rows, rows) / rows) * layout.lane);
    /** @type {Point[]} */
    const outline = [[left, bottom], [left, y], [right, y], [right, bottom]];
    surface.path(outline, { fill: surface.theme.faint, alpha: 0.18 });
    surface.path(outline, { stroke: surface.theme.faint, dash: [3, 2] });
  }
}

export { Ghost, drawGhosts };
