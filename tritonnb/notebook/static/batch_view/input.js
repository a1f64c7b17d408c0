// Keys, wheel and pointer over the picture. All of it works without the kernel.

const KEYS = {
  " ": "pause", ArrowLeft: "back", ArrowRight: "forward", "-": "out", "+": "in", "=": "in", 0: "all", Escape: "none",
  w: "in", s: "out", a: "left", d: "right", p: "pin", c: "columns", r: "range", m: "slow",
};
const WHEEL_STEP = 1.25;

/** @param {HTMLElement} canvas @param {(action: string) => void} perform */
function listenToKeys(canvas, perform) {
  canvas.addEventListener("keydown", (event) => {
    const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    perform(action);
  });
}

// The wheel zooms with Ctrl, and without it once the picture has the focus; else the page scrolls. Shift pans.
/**
 * @param {HTMLElement} canvas
 * @param {{ zoom: (factor: number, x: number) => void, pan: (share: number) => void }} actions
 */
function listenToWheel(canvas, { zoom, pan }) {
  canvas.addEventListener("wheel", (event) => {
    const isFocused = document.activeElement === canvas;
    if (!isFocused && !event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const delta = event.deltaY || event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(Math.sign(delta) * 0.1);
    else zoom(delta > 0 ? WHEEL_STEP : 1 / WHEEL_STEP, event.offsetX);
  }, { passive: false });
}

// Dragging pans, and selects a time range with Shift; a click selects; the position of the pointer goes to `point`.
/**
 * @param {HTMLElement} canvas
 * @param {PointerActions} actions
 */
function listenToPointer(canvas, { drag, range, click, point }) {
  let start = null;
  canvas.addEventListener("pointerdown", (event) => {
    start = { x: event.offsetX, moved: false, selects: event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!start) {
      point({ x: event.offsetX, y: event.offsetY });
      return;
    }
    if (!start.moved && Math.abs(event.offsetX - start.x) < 4) return;
    if (start.selects) range(start.x, event.offsetX);
    else drag(event.offsetX - start.x, !start.moved);
    start.moved = true;
  });
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("pointercancel", () => { start = null; }); // the page scrolls instead
  canvas.addEventListener("pointerup", (event) => {
    if (start && !start.moved) click({ x: event.offsetX, y: event.offsetY });
    start = null;
  });
}

export { listenToKeys, listenToPointer, listenToWheel };
