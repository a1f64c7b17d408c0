// The text around the picture: headline, legend, slots, what is at the cursor, and the controls.

import { describeMoment } from "./cards.js";
import { describeRange } from "./range.js";
import { headline, legend, slotGrid } from "./panels.js";
import { HINT } from "./template.js";
import { formatTime, pluralize } from "./words.js";

const DESCRIPTION_INTERVAL = 10_000; // ms
const contents = new WeakMap(); // what is in each element: the page is laid out again only if it changes

/** @param {HTMLElement} element @param {HTMLElement[]} nodes */
function fill(element, nodes) {
  const content = nodes.map((node) => node.outerHTML).join("");
  if (contents.get(element) === content) return;
  contents.set(element, content);
  element.replaceChildren(...nodes);
}

/** @param {View} view */
function showText(view) {
  const { timeline, frame, theme, received, window, pace, cursor, part } = view;
  const live = view.model.get("live");
  const time = cursor ?? Math.min(view.end, window.to);
  showControls(view, live);
  showEmpty(view, live);
  const following = live && window.follow;
  describePicture(view, following);
  const held = following && window.holds ? { ...window.held, at: window.heldAt } : null;
  fill(part("head"), headline(timeline, { live, following, notice: view.model.get("notice"), frame, received, held }));
  fill(part("legend"), legend(timeline, theme, frame));
  const isAtEnd = window.follow || window.to >= timeline.now - pace.lag;
  const isNewest = live && cursor === null && isAtEnd;
  fill(part("slots"), timeline.sequences ? [slotGrid(timeline, theme, time, isNewest)] : []);
}

// The name of the picture changes rarely while it follows: a screen reader reads every change.
/** @param {View} view @param {boolean} following */
function describePicture(view, following) {
  const now = performance.now();
  if (following && now - (view.describedAt) < DESCRIPTION_INTERVAL) return;
  view.describedAt = now;
  view.canvas.setAttribute("aria-label", `${view.timeline.describe()} ${HINT}`);
}

/** @param {View} view @param {boolean} live */
function showControls(view, live) {
  const { root, window: { follow, pinned, columns }, part } = view;
  /** @type {HTMLElement} */
  const pause = root.querySelector('[data-do="pause"]');
  const action = follow && live ? "❚❚ pause" : live ? "● live" : "reset";
  if (pause.textContent !== action) pause.textContent = action;
  pause.title = `${live ? "pause, or follow again" : "show everything again"} (space)`;
  root.querySelector('[data-do="pin"]').setAttribute("aria-pressed", String(pinned));
  /** @type {HTMLElement} */
  const sums = root.querySelector('[data-do="columns"]');
  sums.setAttribute("aria-pressed", String(columns));
  sums.hidden = !live;
  /** @type {HTMLElement} */
  const slow = root.querySelector('[data-do="slow"]');
  slow.setAttribute("aria-pressed", String(view.replay !== null));
  slow.hidden = view.frame.columns !== null;
  const text = describeSelection(view);
  if (part("event").textContent !== text) Object.assign(part("event"), { textContent: text, title: text });
}

// Without a request, what can be done about it.
/** @param {View} view @param {boolean} live */
function showEmpty({ received, model, part }, live) {
  const empty = part("empty");
  empty.hidden = received.counts.requests > 0 || received.batches.size > 0 || Boolean(received.meta.note);
  if (empty.hidden) return;
  const [text, button] = /** @type {HTMLCollectionOf<HTMLElement>} */ (empty.children);
  const call = `server["${received.meta.model}"](…)`;
  const remedy = `No request yet. Call ${call} in a cell, or send a few with random data:`;
  text.textContent = model.get("notice") || (live ? remedy : "No request was recorded.");
  button.hidden = !live;
}

// While it is replayed: the last batch that was sent, and why.
/** @param {Timeline} timeline */
function describeReplay(timeline) {
  const newer = (one, other) => (one === null || other.sent > one.sent ? other : one);
  const sent = [...timeline.batches.values()].reduce(newer, /** @type {Batch | null} */ (null));
  const text = sent ? `batch of ${pluralize(sent.rows, "row")} sent to ${sent.instance}: ${sent.why}` : "";
  return `${formatTime(timeline.now, timeline)}: ${text}`;
}

/** @param {View} view */
function describeSelection({ timeline, cursor, range, eventIndex, frame, replay }) {
  if (replay) return describeReplay(timeline);
  if (range) return describeRange(timeline, ...range);
  if (cursor === null) return "";
  const event = timeline.events[eventIndex];
  const text = event?.time === cursor ? event.text : describeMoment(timeline, cursor, frame?.columns);
  return `${formatTime(cursor, timeline)}: ${text}`;
}

export { showText };
