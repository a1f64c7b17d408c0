// The view: what is shown and what the user can do. Everything here works without the kernel.

import { BlamePanel } from "./blame.js";
import { drawTimeline } from "./draw.js";
import { download, perfettoTrace } from "./export.js";
import { Ghost } from "./ghosts.js";
import { RIGHT, heightOf } from "./layout.js";
import { batchDetails, describeMoment, headline, legend, slotGrid } from "./panels.js";
import { CanvasSurface, SvgSurface } from "./surface.js";
import { Timeline } from "./timeline.js";

// All in ms, except for the number of batches shown when the view is paused.
const LIVE_SPAN = 2000;
const DELIVERY_INTERVAL = 100;
const LAG_MARGIN = 30;
const ANIMATION_TIME = 700; // after a delivery
const TEXT_INTERVAL = 200;
const SILENCE = 1000;
const PAUSED_BATCHES = 30;

const KEYS = {
  " ": "pause", ArrowLeft: "back", ArrowRight: "forward", "-": "out", "+": "in", "=": "in", 0: "all", Escape: "none",
};

const TEMPLATE = `
  <div class="tnb-head" aria-live="off"></div>
  <div class="tnb-tools" role="toolbar" aria-label="time">
    <button data-do="pause"></button>
    <button data-do="back" title="previous event (left arrow)" aria-label="previous event">◀</button>
    <button data-do="forward" title="next event (right arrow)" aria-label="next event">▶</button>
    <input type="range" class="tnb-scrub" min="0" max="1" step="any" value="1" aria-label="time shown">
    <button data-do="out" title="show more time (minus)" aria-label="show more time">−</button>
    <button data-do="in" title="show less time (plus)" aria-label="show less time">+</button>
    <button data-do="all" title="show the whole time (0)">all</button>
    <span class="tnb-space"></span>
    <button data-do="svg" title="save the picture as SVG">SVG</button>
    <button data-do="png" title="save the picture as PNG">PNG</button>
    <button data-do="trace" title="save the batches as a trace for ui.perfetto.dev">Perfetto</button>
  </div>
  <canvas tabindex="0" role="img"></canvas>
  <div class="tnb-legend tnb-note"></div>
  <div class="tnb-ghost" aria-live="polite"></div>
  <div class="tnb-event" aria-live="polite"></div>
  <div class="tnb-slots"></div>
  <div class="tnb-details" aria-live="polite"></div>
  <div class="tnb-blame"></div>`;

class View {
  constructor(model, root) {
    Object.assign(this, { model, root, timeline: new Timeline(), name: String(Math.random()) });
    Object.assign(this, { onScreen: true, inSight: null, closed: false }); // visibility
    Object.assign(this, { follow: model.get("live"), from: 0, span: LIVE_SPAN }); // the time that is shown
    Object.assign(this, { cursor: null, selected: null, targets: [] });
    Object.assign(this, { receivedAt: 0, lag: DELIVERY_INTERVAL + LAG_MARGIN, rate: null }); // deliveries
    root.classList.add("tnb-batch-view");
    root.dataset.lmSuppressShortcuts = "true"; // JupyterLab ignores keys that are pressed here
    root.innerHTML = TEMPLATE;
    this.canvas = root.querySelector("canvas");
    this.part = (name) => root.querySelector(`.tnb-${name}`);
    this.blamePanel = new BlamePanel(model, this.part("blame"));
    this.listenToControls();
    this.listenToPointer();
    this.observePage();
    this.receive(model.get("history"));
    root.style.setProperty("--tnb-accent", this.timeline.meta.colours.vermilion);
    if (!this.follow) this.showAll();
    this.showGhost(model.get("ghost"));
  }

  // --- deliveries -----------------------------------------------------------------------------

  receive(delivery) {
    if (delivery.reset) this.timeline = new Timeline(); // what was known before is not part of this history
    const before = { counts: this.timeline.counts, now: this.timeline.now };
    this.timeline.merge(delivery);
    this.receivedAt = performance.now();
    clearTimeout(this.silenceTimer);
    const passed = this.timeline.now - before.now;
    // The picture is this much behind, so that it moves steadily from one delivery to the next.
    if (passed > 50 && passed < 500) this.lag = passed + LAG_MARGIN;
    if (passed > 50 && passed < 1500) {
      const rate = ((this.timeline.counts.requests - before.counts.requests) / passed) * 1000;
      this.rate = this.rate === null ? rate : 0.7 * this.rate + 0.3 * rate;
    }
    this.requestFrame();
  }

  // The batches under a draft of the configuration, and what it changes.
  showGhost(ghost) {
    this.timeline.ghost = new Ghost(ghost ?? {}, this.timeline.meta.encoding?.ticks ?? 1);
    this.part("ghost").textContent = this.timeline.ghost.text && `Dashed: ${this.timeline.ghost.text}`;
    this.draw();
  }

  // The kernel sends less often to a view that cannot be seen.
  reportVisibility(inSight) {
    if (!this.model.get("live") || inSight === this.inSight) return;
    this.inSight = inSight;
    this.model.send({ view: this.name, in_sight: inSight });
  }

  // Keep the last batches in sight, not the silence after them.
  liveEnded() {
    this.follow = false;
    const { begin, end, batches } = this.timeline;
    const last = Math.max(begin, ...[...batches.values()].map((batch) => batch.end ?? batch.sent));
    this.from = Math.max(begin, Math.min(end, last + 0.02 * this.span) - this.span);
    this.draw();
  }

  // Frames are drawn only while something moves.
  requestFrame() {
    if (this.frame || this.closed) return;
    const drawFrame = () => {
      this.frame = null;
      if (this.closed) return;
      this.draw();
      const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
      if (this.follow && !reducedMotion && performance.now() - this.receivedAt < ANIMATION_TIME) {
        this.frame = requestAnimationFrame(drawFrame);
      } else if (this.follow && this.rate) {
        this.silenceTimer = setTimeout(() => {
          this.rate = 0;
          this.requestFrame();
        }, SILENCE);
      }
    };
    this.frame = requestAnimationFrame(drawFrame);
  }

  get end() {
    if (!this.follow) return this.timeline.now;
    const since = performance.now() - this.receivedAt;
    return this.timeline.now + Math.min(since, ANIMATION_TIME) - this.lag;
  }

  // --- user input -----------------------------------------------------------------------------

  listenToControls() {
    for (const button of this.root.querySelectorAll("button")) {
      button.addEventListener("click", () => this.perform(button.dataset.do));
    }
    this.part("scrub").addEventListener("input", (event) => this.scrub(Number(event.target.value)));
    this.canvas.addEventListener("keydown", (event) => {
      const action = KEYS[event.key];
      if (!action) return;
      event.preventDefault();
      event.stopPropagation();
      this.perform(action);
    });
  }

  listenToPointer() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      this.zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, this.timeAt(event));
      this.shareMoment();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.drag = { x: event.offsetX, from: this.from, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.dragTo(event.offsetX));
    canvas.addEventListener("pointercancel", () => { this.drag = null; }); // the page scrolls instead
    canvas.addEventListener("pointerup", (event) => {
      if (this.drag && !this.drag.moved) this.click(event);
      this.drag = null;
    });
  }

  observePage() {
    this.resizeObserver = new ResizeObserver(() => this.draw());
    this.resizeObserver.observe(this.root);
    this.checkVisibility = () => this.reportVisibility(this.onScreen && document.visibilityState === "visible");
    this.visibilityObserver = new IntersectionObserver(([entry]) => {
      this.onScreen = entry.isIntersecting;
      this.checkVisibility();
    });
    this.visibilityObserver.observe(this.root);
    document.addEventListener("visibilitychange", this.checkVisibility);
    this.themeObserver = new MutationObserver(() => this.requestFrame());
    this.themeObserver.observe(document.body, { attributes: true });
  }

  get drawnWidth() {
    return this.canvas.clientWidth - this.timeline.gutter - RIGHT;
  }

  timeAt(event) {
    const share = (event.offsetX - this.timeline.gutter) / this.drawnWidth;
    return this.from + Math.min(1, Math.max(0, share)) * this.span;
  }

  dragTo(x) {
    const { drag } = this;
    if (!drag || (Math.abs(x - drag.x) < 4 && !drag.moved)) return;
    if (!drag.moved) {
      this.stopFollowing();
      drag.from = this.from;
    }
    drag.moved = true;
    this.from = drag.from - ((x - drag.x) / this.drawnWidth) * this.span;
    this.draw();
    this.shareMoment();
  }

  perform(action) {
    const middle = this.cursor ?? this.from + this.span / 2;
    if (action === "pause" && this.follow && this.model.get("live")) this.pause();
    else if (action === "pause") this.resume();
    else if (action === "back") this.step(-1);
    else if (action === "forward") this.step(1);
    else if (action === "in" || action === "out") {
      this.zoom(action === "in" ? 0.6 : 1.6, middle);
      this.zoomed = true;
    } else if (action === "all") {
      this.stopFollowing();
      this.showAll();
    } else if (action === "none") {
      this.cursor = null;
      this.selected = null;
    } else this.save(action);
    this.draw();
    this.requestFrame();
    this.shareMoment();
  }

  // The views of a comparison show the same time: the trait `moment` is linked in the browser.
  shareMoment() {
    this.model.set("moment", { from: this.from, span: this.span, cursor: this.cursor });
  }

  showMoment({ from, span, cursor }) {
    if (from === undefined || (from === this.from && span === this.span && cursor === this.cursor)) return;
    this.stopFollowing();
    Object.assign(this, { from, span, cursor });
    this.draw();
  }

  stopFollowing() {
    if (!this.follow) return;
    this.from = this.end - this.span;
    this.follow = false;
  }

  // Show the newest batches large enough to read, unless the user has chosen a span.
  pause() {
    this.stopFollowing();
    const newest = sinceSilence([...this.timeline.batches.values()].slice(-PAUSED_BATCHES));
    if (this.zoomed || !newest.length) return;
    const end = Math.max(...newest.map((batch) => batch.end ?? this.timeline.now));
    this.span = Math.max(1, (end - Math.min(...newest.map((batch) => batch.oldest))) * 1.04);
    this.from = end + 0.02 * this.span - this.span;
  }

  resume() {
    if (!this.zoomed) this.span = LIVE_SPAN;
    this.cursor = null;
    this.selected = null;
    this.follow = this.model.get("live");
    if (!this.follow) this.showAll();
  }

  showAll() {
    const { begin, end } = this.timeline;
    this.span = Math.max(0.01, (end - begin) * 1.02);
    this.from = begin - 0.01 * (end - begin);
  }

  zoom(factor, around) {
    const share = this.follow ? 1 : (around - this.from) / this.span;
    const longest = Math.max(LIVE_SPAN, (this.timeline.end - this.timeline.begin) * 1.5);
    this.span = Math.min(Math.max(this.span * factor, 0.05), longest);
    this.from = around - share * this.span;
    this.draw();
  }

  scrub(share) {
    this.stopFollowing();
    const { begin, end } = this.timeline;
    this.moveCursor(begin + share * (end - begin));
    this.draw();
    this.shareMoment();
  }

  moveCursor(time) {
    this.cursor = time;
    if (time < this.from || time > this.from + this.span) this.from = time - this.span / 2;
  }

  step(direction) {
    this.stopFollowing();
    const events = this.timeline.events;
    if (!events.length) return;
    if (this.cursor === null) {
      this.eventIndex = direction > 0 ? events.findIndex(([time]) => time >= this.from) - 1 : events.length;
    } else if (events[this.eventIndex]?.[0] !== this.cursor) {
      const before = events.filter(([time]) => time <= this.cursor).length;
      this.eventIndex = direction > 0 ? before - 1 : before;
    }
    this.eventIndex = Math.min(events.length - 1, Math.max(0, this.eventIndex + direction));
    const [time, , number] = events[this.eventIndex];
    this.moveCursor(time);
    this.selected = number;
  }

  click({ offsetX, offsetY }) {
    const targets = this.targets.filter(([x, y, width, height]) =>
      offsetX >= x && offsetX <= x + width && offsetY >= y && offsetY <= y + height);
    const target = targets.at(-1);
    this.selected = target ? target[4] : null;
    const request = targets.findLast(([, , , , number, label]) => label !== undefined && number === this.selected);
    if (request) this.blamePanel.ask(this.selected, request[5]);
    if (target) this.stopFollowing();
    this.canvas.focus({ preventScroll: true });
    this.draw();
  }

  save(kind) {
    const name = this.timeline.meta.model ?? "batches";
    const save = (suffix, content, type) => download(`${name}.${suffix}`, new Blob([content], { type }));
    if (kind === "svg") save("svg", this.svg(), "image/svg+xml");
    if (kind === "png") this.canvas.toBlob((blob) => download(`${name}.png`, blob));
    if (kind === "trace") save("perfetto.json", perfettoTrace(this.timeline), "application/json");
  }

  // --- display --------------------------------------------------------------------------------

  theme() {
    const style = getComputedStyle(this.root);
    const colour = (name) => style.getPropertyValue(`--tnb-${name}`).trim();
    const names = ["ink", "faint", "paper", "panel", "line", "accent"];
    const dark = document.body.dataset.jpThemeLight === "false";
    return {
      ...Object.fromEntries(names.map((name) => [name, colour(name)])),
      font: style.fontFamily || "sans-serif",
      variants: dark ? this.timeline.meta.on_dark : {},
    };
  }

  shownTime() {
    if (this.follow) this.from = this.end - this.span;
    const end = this.follow ? this.end : this.timeline.now;
    return { from: this.from, span: this.span, end, cursor: this.cursor, selected: this.selected };
  }

  svg() {
    const { timeline } = this;
    const width = this.canvas.clientWidth || 900;
    const surface = new SvgSurface(width, heightOf(timeline), this.theme(), timeline.describe());
    drawTimeline(surface, timeline, this.shownTime());
    return surface.toString();
  }

  draw() {
    const width = this.root.clientWidth - 2;
    if (width < 50 || this.closed) return;
    const height = heightOf(this.timeline);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const surface = new CanvasSurface(this.canvas, width, height, this.theme());
    this.targets = drawTimeline(surface, this.timeline, this.shownTime());
    this.updateText();
  }

  // Text and numbers change no faster than they can be read.
  updateText() {
    const now = performance.now();
    if (this.follow && now - (this.textUpdatedAt ?? 0) < TEXT_INTERVAL) return;
    this.textUpdatedAt = now;
    const { timeline } = this;
    const live = this.model.get("live");
    const batch = timeline.batches.get(this.selected);
    const time = this.cursor ?? this.end;
    this.updateControls(live);
    this.canvas.setAttribute("aria-label", timeline.describe());
    this.part("head").replaceChildren(...headline(timeline, live, live ? this.rate : null));
    this.part("legend").replaceChildren(...legend(timeline));
    this.part("slots").replaceChildren(
      ...(timeline.sequences ? [slotGrid(timeline, time, this.cursor === null && live)] : []),
    );
    this.part("details").replaceChildren(...(batch ? batchDetails(timeline, batch) : []));
    this.blamePanel.select(timeline, batch);
  }

  updateControls(live) {
    const { timeline, cursor } = this;
    const { begin, end } = timeline;
    const pause = this.root.querySelector('[data-do="pause"]');
    pause.textContent = this.follow && live ? "❚❚ pause" : live ? "● live" : "reset";
    pause.title = `${live ? "pause, or follow again" : "show everything again"} (space)`;
    const scrub = this.part("scrub");
    const share = cursor === null ? 1 : (cursor - begin) / Math.max(1e-9, end - begin);
    scrub.value = share;
    scrub.style.setProperty("--tnb-at", share);
    const moment = cursor === null ? "" : `${cursor.toFixed(3)} ms`;
    scrub.setAttribute("aria-valuetext", moment || "the end");
    this.part("event").textContent = moment && `${moment}: ${this.describeCursor()}`;
  }

  describeCursor() {
    const [time, description] = this.timeline.events[this.eventIndex] ?? [];
    return time === this.cursor ? description : describeMoment(this.timeline, this.cursor);
  }

  close() {
    this.reportVisibility(false);
    this.closed = true;
    this.resizeObserver.disconnect();
    this.visibilityObserver.disconnect();
    document.removeEventListener("visibilitychange", this.checkVisibility);
    this.themeObserver.disconnect();
    clearTimeout(this.silenceTimer);
    if (this.frame) cancelAnimationFrame(this.frame);
  }
}

// The batches since the last long silence.
function sinceSilence(batches) {
  const follows = (batch, index) => index > 0 && batch.oldest - (batches[index - 1].end ?? batch.oldest) > SILENCE;
  return batches.slice(Math.max(0, batches.findLastIndex(follows)));
}

function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const view = new View(model, root);
  const listeners = {
    "msg:custom": (delivery) => view.receive(delivery),
    "change:history": () => view.receive(model.get("history")),
    "change:blame": () => view.blamePanel.show(model.get("blame")),
    "change:ghost": () => view.showGhost(model.get("ghost")),
    "change:moment": () => view.showMoment(model.get("moment")),
    "change:live": () => { if (!model.get("live")) view.liveEnded(); },
  };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  return () => {
    view.close();
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
  };
}

export default { render };
export { SvgSurface, Timeline, drawTimeline, heightOf, render };
