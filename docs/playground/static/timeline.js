// The arrivals over time: marks that are dragged, or moved with the arrow keys.

import { makeSvg } from "../shared/dom.js";

const ROW = 18;
const TOP = 6;
const AXIS = 18;
const GUTTER = 84;
const RIGHT = 14;
const MOST_ROWS = 12;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000];

// Each sequence has a row; other requests are stacked where they arrive close together.
/** @param {ArrivalRequest[]} requests @param {number} width @param {number} end */
function placeRows(requests, width, end) {
  const sequences = [...new Set(requests.map(({ sequence }) => sequence ?? ""))];
  if (sequences.length > 1 || (sequences.length && sequences[0])) {
    const rows = requests.map(({ sequence }) => sequences.indexOf(sequence ?? "") % MOST_ROWS);
    return { rows, names: sequences.slice(0, MOST_ROWS) };
  }
  const last = [];
  const gap = (end / Math.max(1, width)) * 22;
  const rows = requests.map(({ ms }) => {
    const free = last.findIndex((time) => ms - time >= gap);
    const row = free < 0 ? Math.min(last.length, MOST_ROWS - 1) : free;
    last[row] = ms;
    return row;
  });
  return { rows, names: [] };
}

// `onMove(index, ms)` is called while a mark is moved.
/** @param {(index: number, ms: number) => void} onMove */
function createTimeline(onMove) {
  const svg = makeSvg("svg", { class: "tnb-arrivals-picture" });
  let state = { requests: [], movable: false, end: 1 };
  let focused = 0;
  let dragged = null;

  const widthOf = () => Math.max(200, (svg.parentElement?.clientWidth ?? 640) - 2);
  const scale = () => (widthOf() - GUTTER - RIGHT) / state.end;
  const x = (ms) => GUTTER + ms * scale();

  function axis(height) {
    const step = STEPS.find((candidate) => candidate * scale() >= 60) ?? STEPS.at(-1);
    const marks = [];
    for (let ms = 0; ms <= state.end; ms += step) {
      marks.push(makeSvg("line", { class: "tnb-tick", x1: x(ms), x2: x(ms), y1: TOP, y2: height - AXIS }));
      marks.push(makeSvg("text", { x: x(ms), y: height - 5, "text-anchor": "middle" }, `${ms}`));
    }
    marks.push(makeSvg("text", { x: 4, y: height - 5 }, "ms"));
    return marks;
  }

  /** @param {ArrivalRequest} request @param {number} index */
  function describe(request, index) {
    const parts = [`request ${index + 1}`, `${request.ms.toFixed(1)} ms`, `${request.rows ?? 1} rows`];
    if (request.priority) parts.push(`priority ${request.priority}`);
    if (request.sequence) parts.push(`sequence ${request.sequence}`);
    if (request.start) parts.push("START");
    if (request.end) parts.push("END");
    return parts.join(", ");
  }

  /** @param {ArrivalRequest} request @param {number} index @param {number} row */
  function mark(request, index, row) {
    const rows = request.rows ?? 1;
    const [left, top] = [x(request.ms), TOP + row * ROW];
    const box = makeSvg("rect", { x: left, y: top + 2, width: 16, height: ROW - 4, rx: 2, class: "tnb-mark" });
    const place = { x: left + 8, y: top + ROW - 6, "text-anchor": "middle", class: "tnb-mark-text" };
    const text = makeSvg("text", place, `${rows}`);
    const flag = (at) => makeSvg("line", { x1: at, x2: at, y1: top + 1, y2: top + ROW - 1, class: "tnb-flag" });
    const flags = [request.start && flag(left), request.end && flag(left + 16)].filter(Boolean);
    const label = describe(request, index);
    const attributes = { "data-index": index };
    if (state.movable) {
      Object.assign(attributes, {
        role: "slider", tabindex: index === focused ? 0 : -1, "aria-label": label, "aria-valuemin": 0,
        "aria-valuemax": Math.ceil(state.end), "aria-valuenow": request.ms, "aria-valuetext": `${request.ms} ms`,
      });
    }
    return makeSvg("g", attributes, makeSvg("title", {}, label), box, text, ...flags);
  }

  function draw() {
    const { rows, names } = placeRows(state.requests, widthOf(), state.end);
    const height = TOP + (Math.max(0, ...rows) + 1) * ROW + AXIS;
    const active = svg.contains(document.activeElement);
    svg.setAttribute("width", String(widthOf()));
    svg.setAttribute("height", String(height));
    svg.setAttribute("role", state.movable ? "group" : "img");
    svg.setAttribute("aria-label", `${state.requests.length} arrivals in ${state.end.toFixed(0)} ms` +
      (state.movable ? "; arrow left and right move a request, up and down select another one" : ""));
    const labels = names.length
      ? names.map((name, row) => makeSvg("text", { x: 4, y: TOP + row * ROW + ROW - 6 }, name ? `seq. ${name}` : "–"))
      : [makeSvg("text", { x: 4, y: TOP + ROW - 6 }, "rows")];
    const marks = state.requests.map((request, index) => mark(request, index, rows[index]));
    svg.replaceChildren(...axis(height), ...labels, ...marks);
    if (active) svg.querySelector('[tabindex="0"]')?.focus();
  }

  const indexOf = (event) => Number(event.target.closest("[data-index]")?.dataset.index ?? -1);

  /** @param {number} index @param {number} ms */
  function moveTo(index, ms) {
    const rounded = Math.max(0, Math.round(ms * 10) / 10);
    state.requests = state.requests.map((request, at) => (at === index ? { ...request, ms: rounded } : request));
    draw();
    onMove(index, rounded);
  }

  svg.addEventListener("pointerdown", (event) => {
    const index = indexOf(event);
    if (!state.movable || index < 0) return;
    event.preventDefault();
    focused = index;
    dragged = { index, from: event.clientX, ms: state.requests[index].ms, perPx: 1 / scale() };
    svg.setPointerCapture(event.pointerId);
    draw();
    svg.querySelector('[tabindex="0"]')?.focus();
  });
  svg.addEventListener("pointermove", (event) => {
    if (dragged) moveTo(dragged.index, dragged.ms + (event.clientX - dragged.from) * dragged.perPx);
  });
  for (const type of ["pointerup", "pointercancel"]) {
    svg.addEventListener(type, () => {
      if (!dragged) return;
      dragged = null;
      fit();
    });
  }
  svg.addEventListener("keydown", (event) => {
    const index = indexOf(event);
    if (index < 0) return;
    const step = event.shiftKey ? 10 : 1;
    const moves = { ArrowLeft: -step, ArrowRight: step };
    const others = { ArrowUp: -1, ArrowDown: 1 };
    if (event.key in moves) moveTo(index, state.requests[index].ms + moves[event.key]);
    else if (event.key in others) {
      focused = Math.min(state.requests.length - 1, Math.max(0, index + others[event.key]));
      draw();
    } else return;
    event.preventDefault();
  });

  function fit() {
    const last = Math.max(0, ...state.requests.map(({ ms }) => ms));
    state.end = Math.max(1, last * 1.1 + 1);
    draw();
  }

  return {
    element: svg,
    draw,
    /** @param {ArrivalRequest[]} requests @param {boolean} movable */
    show(requests, movable) {
      state.requests = requests;
      state.movable = movable;
      focused = Math.min(focused, Math.max(0, requests.length - 1));
      if (!dragged) fit();
    },
  };
}

export { createTimeline };
