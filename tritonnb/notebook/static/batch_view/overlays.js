// What lies over the picture without moving anything: the card of the selected batch, and the tip at the pointer.

import { batchDetails, describeTarget, tip } from "./cards.js";
import { layoutOf } from "./layout.js";

// Show a batch in a card, below the lanes and on the side where the batch is not.
/** @param {HTMLElement} card @param {Batch | undefined} batch @param {View} view */
function showDetails(card, batch, { timeline, canvas, frame, window }) {
  card.hidden = !batch;
  card.replaceChildren(...(batch ? batchDetails(timeline, batch) : []));
  if (!batch) return;
  const top = Math.min(layoutOf(timeline, !window.batches).queueTop, canvas.clientHeight / 2);
  const isRight = frame.scale.x(batch.start ?? batch.sent) > canvas.clientWidth / 2;
  Object.assign(card.style, {
    top: `${top}px`, maxHeight: `${canvas.clientHeight - top - 8}px`,
    left: isRight ? `${timeline.gutter + 4}px` : "auto", right: isRight ? "auto" : "8px",
  });
}

// Describe what is pointed at, beside the pointer.
/** @param {HTMLElement} card @param {Target | null | undefined} target @param {View} view */
function showTip(card, target, view) {
  card.hidden = !target;
  if (!target) return;
  const { timeline, frame, pointer: { x, y }, canvas: { clientWidth: width, clientHeight: height } } = view;
  card.replaceChildren(...tip(describeTarget(timeline, frame, target, view.timeAt(x))));
  const isRight = x > width / 2;
  const isLow = y > height / 2;
  Object.assign(card.style, {
    left: isRight ? "auto" : `${x + 14}px`, right: isRight ? `${width - x + 14}px` : "auto",
    top: isLow ? "auto" : `${y + 14}px`, bottom: isLow ? `${height - y + 10}px` : "auto",
  });
}

export { showDetails, showTip };
