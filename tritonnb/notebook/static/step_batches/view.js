// The batches of all steps of an ensemble: a lane for each instance, one time axis. A selected request lights up in the
// batches that it was in, with its waits before them; meanwhile the picture is held.

import { connect, make, makeSvg } from "../shared/dom.js";

const LANE = 24; // px
const BAR = 16; // px: the height of a batch
const AXIS = 20; // px: the height of the time axis
const LETTER = 6.5; // px
const PADDING = 6; // px
const SLOWEST = 6; // requests that have buttons

/** @type {(request: PipelineShape) => number} */
const latencyOf = ({ begin, end }) => end - begin;

/** @type {(picture: StepsPicture) => number[]} */
const bySlowness = ({ requests }) =>
  requests.map((_, number) => number).sort((one, other) => latencyOf(requests[other]) - latencyOf(requests[one]));

/** @type {(ms: number) => string} */
const inMs = (ms) => `${ms < 100 ? ms.toFixed(1) : Math.round(ms)} ms`;

// The request of a batch that is shown next, if one is: the slowest first, then the others in turn.
/** @param {StepsPicture} picture @param {number[]} members @param {number} selected */
function nextOf(picture, members, selected) {
  const ordered = bySlowness(picture).filter((number) => members.includes(number));
  return ordered[(ordered.indexOf(selected) + 1) % ordered.length];
}

/** @param {StepsPicture} picture @param {number} selected @param {number} room */
function drawLanes(picture, selected, room) {
  const { lanes, batches, requests, span } = picture;
  const label = PADDING * 2 + LETTER * Math.max(...lanes.map(({ length }) => length));
  const width = Math.max(label + 200, room);
  const at = (ms) => label + (Math.max(0, Math.min(ms, span)) / (span || 1)) * (width - label - PADDING);
  const top = (lane) => lane * LANE + (LANE - BAR) / 2;
  const names = lanes.map((name, lane) => makeSvg("text", { x: PADDING, y: top(lane) + 12 }, name));
  const waits = (requests[selected]?.steps ?? []).map(({ begin, start, batch }) => makeSvg("rect", { class: "tnb-wait",
    x: at(begin), y: top(batches[batch].lane) + BAR / 2 - 2, width: at(start) - at(begin), height: 4 }));
  const bars = batches.map(({ lane, begin, end, rows, requests: members }, index) => {
    const [left, right] = [at(begin), at(end)];
    const isLit = members.includes(selected);
    const text = right - left > 14 ? [makeSvg("text", { x: (left + right) / 2, y: top(lane) + 12,
      "text-anchor": "middle" }, String(rows))] : [];
    const title = makeSvg("title", {}, `${rows} rows, ${inMs(end - begin)}`);
    return makeSvg("g", { class: `tnb-batch${isLit ? " tnb-lit" : ""}`, "data-batch": index },
      makeSvg("rect", { x: left, y: top(lane), width: Math.max(1, right - left), height: BAR, rx: 2 }), title, ...text);
  });
  const bottom = lanes.length * LANE;
  const axis = [0, span / 2, span].map((ms, place) => makeSvg("text", { x: at(ms), y: bottom + 14,
    "text-anchor": ["start", "middle", "end"][place] }, inMs(ms)));
  const description = `${batches.length} batches in ${lanes.length} lanes, ${inMs(span)}`;
  return makeSvg("svg", { width, height: bottom + AXIS, viewBox: `0 0 ${width} ${bottom + AXIS}`, role: "img",
    "aria-label": description }, ...names, ...waits, ...bars, ...axis);
}

/** @param {PipelineShape | undefined} request */
function describe(request) {
  if (!request) return "Select a request, or a batch, to see its way.";
  const steps = request.steps.map(({ name, text }) => `${name}: ${text}`);
  return `Request ${request.label}: ${inMs(latencyOf(request))}. ${steps.join(" → ")}`;
}

/** @param {WidgetContext<{ picture: StepsPicture, lit: LitSteps }>} context */
function render({ model, el }) {
  const lanes = make("div", { class: "tnb-lanes", tabIndex: 0, role: "region",
    aria: { label: "Batches of the steps" } });
  const buttons = make("div", { class: "tnb-requests", role: "group", aria: { label: "Slowest requests" } });
  const words = make("p", { class: "tnb-way", role: "status" });
  el.append(make("div", { class: "tnb-steps tnb-controls" }, buttons, lanes, words));
  let selected = -1;
  /** @type {StepsPicture | null} */
  let held = null;
  const shown = () => held ?? model.get("picture");
  const show = () => {
    const picture = shown();
    if (!picture.lanes) return;
    const focused = buttons.contains(document.activeElement) ? document.activeElement.dataset.request : null;
    lanes.replaceChildren(drawLanes(picture, selected, lanes.clientWidth - 2 * PADDING));
    buttons.replaceChildren("Slowest: ", ...bySlowness(picture).slice(0, SLOWEST).map((number) => make("button", {
      textContent: `${picture.requests[number].label}: ${inMs(latencyOf(picture.requests[number]))}`,
      data: { request: number }, aria: { pressed: String(number === selected) } })), held ? " held" : "");
    if (focused) buttons.querySelector(`[data-request="${focused}"]`)?.focus();
    words.textContent = describe(picture.requests[selected]);
  };
  /** @param {number} number */
  const select = (number) => {
    held = number === selected ? null : shown();
    selected = number === selected ? -1 : number;
    const steps = held ? held.requests[selected].steps : [];
    model.set("lit", { own: true, steps: Object.fromEntries(steps.map((step) => [step.model, step.text])) });
    model.save_changes();
    show();
  };
  const selectRequest = (event) => {
    const number = event.target.closest("[data-request]")?.dataset.request;
    if (number !== undefined) select(Number(number));
  };
  const selectFromBatch = (event) => {
    const batch = shown().batches?.[Number(event.target.closest("[data-batch]")?.dataset.batch)];
    if (batch?.requests.length) select(nextOf(shown(), batch.requests, selected));
  };
  buttons.addEventListener("click", selectRequest);
  lanes.addEventListener("click", selectFromBatch);
  let width = 0;
  const observer = new ResizeObserver(() => { // the height changes with what is drawn
    if (lanes.clientWidth !== width) show();
    width = lanes.clientWidth;
  });
  observer.observe(lanes);
  const disconnect = connect(model, { "change:picture": show }, el);
  return () => {
    observer.disconnect();
    disconnect();
  };
}

export default { render };
