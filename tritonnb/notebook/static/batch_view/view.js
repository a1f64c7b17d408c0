// The view: what is shown and what the user can do. Everything here works without the kernel.

import { followKernel } from "../shared/kernel.js";
import { BlamePanel } from "./blame.js";
import { drawTimeline, rowScale } from "./draw.js";
import { nextEvent } from "./events.js";
import { saveView } from "./export.js";
import { Frames, SILENCE } from "./frames.js";
import { Ghost } from "./ghosts.js";
import { listenToKeys, listenToPointer, listenToWheel } from "./input.js";
import { RIGHT, heightOf } from "./layout.js";
import { Minimap } from "./minimap.js";
import { showDetails, showTip } from "./overlays.js";
import { observePage, themeOf } from "./page.js";
import { Pace } from "./pace.js";
import { CanvasSurface, SvgSurface } from "./surface.js";
import { TEMPLATE } from "./template.js";
import { showText } from "./text.js";
import { Timeline } from "./timeline.js";
import { LONGEST_WAIT, TimeWindow } from "./window.js";

const TEXT_INTERVAL = 200; // ms
const OPENED = 70; // batches that a recorded view shows when it is opened
const REPLAY_TIME = 10_000; // ms, in which what is shown is replayed

class View {
  /** @param {WidgetModel<BatchViewState>} model @param {HTMLElement} root */
  constructor(model, root) {
    this.model = model;
    this.root = root;
    this.name = String(Math.random());
    this.closed = false;
    /** @type {boolean | null} */ this.inSight = null;
    this.textUpdatedAt = -Infinity;
    this.describedAt = -Infinity;
    this.activeAt = -Infinity;
    this.received = new Timeline(); // everything up to now
    this.timeline = this.received; // what is shown: a copy while the view is paused
    this.window = new TimeWindow(model.get("live"));
    /** @type {number | null} */ this.cursor = null;
    /** @type {number | null} */ this.selected = null;
    /** @type {Span | null} */ this.range = null;
    /** @type {Replay | null} */ this.replay = null;
    /** @type {PointerPlace | null} */ this.pointer = null;
    /** @type {Member | null} */ this.focus = null;
    /** @type {Frame | null} */ this.frame = null;
    /** @type {Theme | null} */ this.colours = null;
    this.pace = new Pace();
    this.frames = new Frames(this);
    root.classList.add("tnb-batch-view");
    root.dataset.lmSuppressShortcuts = "true"; // JupyterLab ignores keys that are pressed here
    root.innerHTML = TEMPLATE;
    /** @type {(name: string) => HTMLElement} */
    this.part = (name) => root.querySelector(`.tnb-${name}`);
    /** @type {HTMLCanvasElement} */
    this.canvas = root.querySelector(".tnb-picture canvas");
    this.minimap = new Minimap(root.querySelector(".tnb-minimap canvas"), {
      show: (time) => this.change(() => { this.window.from = time - this.window.span / 2; }),
      pan: (share) => this.change(() => this.window.pan(share)),
    });
    this.blamePanel = new BlamePanel(model, this.part("blame"), (number) => this.showBatch(number));
    this.listen();
    this.receive(model.get("history"));
    if (!this.window.follow) this.showSlowest();
    this.showMoment(model.get("moment"));
    this.showGhost(model.get("ghost"));
  }

  listen() {
    for (const button of this.root.querySelectorAll("button")) {
      button.addEventListener("click", () => this.perform(button.dataset.do));
    }
    listenToKeys(this.canvas, (action) => this.perform(action));
    listenToWheel(this.canvas, {
      zoom: (factor, x) => this.zoom(factor, this.timeAt(x)),
      pan: (share) => this.change(() => this.window.pan(share)),
    });
    listenToPointer(this.canvas, {
      drag: (distance, first) => this.drag(distance, first),
      range: (from, to) => this.selectRange(this.timeAt(Math.min(from, to)), this.timeAt(Math.max(from, to))),
      click: (point) => this.click(point),
      point: (point) => this.point(point),
    });
    this.stopObserving = observePage(this.root, {
      onSight: (inSight) => this.reportVisibility(inSight),
      onTheme: () => {
        this.colours = null;
        this.frames.request();
      },
      onSize: () => this.draw(),
    });
  }

  // --- deliveries -----------------------------------------------------------------------------

  /** @param {Packed} delivery */
  receive(delivery) {
    if (delivery.reset) { // what was known before is not part of this history
      this.received = new Timeline();
      this.timeline = this.received;
    }
    const { counts, now } = this.received;
    this.received.merge(delivery);
    if (!delivery.levels) this.pace.received(this.received.now - now);
    const isActive = ["requests", "batches", "refused"].some((name) => this.received.counts[name] !== counts[name]);
    if (isActive && !delivery.levels) this.activeAt = performance.now();
    if (delivery.meta) this.colours = null;
    this.frames.resume();
  }

  // The batches under a draft of the configuration, and what it changes.
  /** @param {GhostBoxes} ghost */
  showGhost(ghost) {
    this.ghost = new Ghost(ghost ?? {}, this.received.meta.encoding?.ticks ?? 1);
    const { sequences } = this.received; // slots have no dashed boxes
    this.part("ghost").textContent = this.ghost.text && !sequences ? `Dashed: ${this.ghost.text}` : "";
    this.draw();
  }

  // The kernel sends less often to a view that cannot be seen, and nothing to one whose output was removed (null).
  /** @param {boolean | null} inSight */
  reportVisibility(inSight) {
    if (!this.model.get("live") || inSight === this.inSight) return;
    this.inSight = inSight;
    this.model.send({ view: this.name, in_sight: inSight });
  }

  // Keep the last batches in sight, not the silence after them.
  liveEnded() {
    this.timeline.keepFrom(this.model.get("history").kept ?? 0);
    if (this.window.follow) {
      this.window.hold(this.received, this.drawnWidth, performance.now(), { isLast: true });
      this.timeline = this.received;
      this.window.place(this.timeline, this.timeline.now);
      this.window.follow = false;
    }
    this.draw();
  }

  // Whether no request has come lately, and none waits or runs.
  get isSilent() {
    const { pending, running, slotState } = this.received;
    const isIdle = !pending.length && !running.length && !slotState.owners?.length;
    return isIdle && performance.now() - this.activeAt > SILENCE;
  }

  // While the view follows, show what was received, or hold the last batches.
  follow() {
    const now = performance.now();
    if (!this.window.follow) return;
    if (this.window.isDue(this.received, this.isSilent, now)) {
      this.window.hold(this.received, this.drawnWidth, now, { until: this.ghost?.end, isLast: this.isSilent });
      this.timeline = this.window.holds ? this.received.snapshot() : this.received;
    } else if (!this.window.holds) this.timeline = this.received;
  }

  get end() {
    if (!this.window.follow || this.window.holds || !this.model.get("live")) return this.timeline.now;
    return this.pace.endAt(this.timeline.now);
  }

  // --- what the user does ---------------------------------------------------------------------

  get drawnWidth() {
    return Math.max(1, this.root.clientWidth - 2 - this.timeline.gutter - RIGHT);
  }

  /** @param {number} x */
  timeAt(x) {
    const share = (x - this.timeline.gutter) / this.drawnWidth;
    return this.window.from + Math.min(1, Math.max(0, share)) * this.window.span;
  }

  // Stop following, change what is shown, and show that in linked views, too.
  /** @param {() => void} alter */
  change(alter) {
    this.stopFollowing();
    alter();
    this.draw();
    this.shareMoment();
  }

  /** @param {string} action */
  perform(action) {
    const actions = {
      pause: () => (this.window.follow && this.model.get("live") ? this.stopFollowing() : this.resume()),
      back: () => this.step(-1),
      forward: () => this.step(1),
      in: () => this.zoom(0.6, this.zoomCentre),
      out: () => this.zoom(1.6, this.zoomCentre),
      left: () => this.change(() => this.window.pan(-0.2)),
      right: () => this.change(() => this.window.pan(0.2)),
      all: () => this.change(() => this.showAll()),
      try: () => this.model.send({ try: true }),
      columns: () => { this.window.columns = !this.window.columns; },
      slow: () => this.toggleReplay(),
      pin: () => { this.window.pinned = !this.window.pinned; },
      range: () => this.selectRange(this.window.from, this.window.to),
      none: () => Object.assign(this, { cursor: null, selected: null, range: null }),
      svg: () => saveView(this, "svg"),
      png: () => saveView(this, "png"),
      trace: () => saveView(this, "trace"),
    };
    actions[action]();
    this.textUpdatedAt = -Infinity;
    this.draw();
    this.frames.request();
    this.shareMoment();
  }

  get zoomCentre() {
    if (this.pointer) return this.timeAt(this.pointer.x);
    const { from, span } = this.window;
    const isInSight = this.cursor !== null && this.cursor >= from && this.cursor <= from + span;
    return isInSight ? this.cursor : from + span / 2;
  }

  // The views of a comparison show the same time, and columns if one of them has to: the trait `moment` is shared
  // in the browser. Several outputs of one widget are independent.
  shareMoment() {
    const { from, span, needsColumns: columns } = this.window;
    this.sharedColumns = columns;
    this.model.set("moment", { from, span, cursor: this.cursor, columns, own: true });
  }

  /** @param {Moment} moment */
  showMoment({ from, span, cursor, columns, own }) {
    const { window } = this;
    if (from === undefined || own) return;
    if (from !== window.from || span !== window.span || cursor !== this.cursor) this.stopFollowing();
    Object.assign(window, { from, span, otherNeedsColumns: columns });
    this.cursor = cursor;
    this.draw();
  }

  // Replay in slow motion what is shown; a second time, or whatever else is done, ends it.
  toggleReplay() {
    const isReplaying = this.replay !== null;
    this.stopFollowing();
    if (isReplaying) return;
    const { from, to } = this.window;
    this.replay = { from, to: Math.min(to, this.timeline.end), startedAt: performance.now(), whole: this.timeline };
  }

  stopReplay() {
    if (!this.replay) return;
    this.timeline = this.replay.whole;
    this.replay = null;
  }

  advanceReplay() {
    const { from, to, startedAt, whole } = this.replay;
    const share = (performance.now() - startedAt) / REPLAY_TIME;
    if (share >= 1) this.stopReplay();
    else this.timeline = whole.upTo(from + share * (to - from));
  }

  // From now on every part shows this moment, whatever is received.
  stopFollowing() {
    const { window } = this;
    this.stopReplay();
    if (!window.follow) return;
    if (!window.holds) {
      window.place(this.timeline, this.end);
      if (this.model.get("live")) this.timeline = this.received.snapshot();
    }
    window.follow = false;
    if (!this.model.get("live")) return;
    this.timeline.keepFrom(Infinity); // until the kernel says from when on it keeps the events
    this.model.send({ view: this.name, hold: true });
  }

  // The kernel keeps the events of what a paused view shows.
  /** @param {{ view: string, from: number }} held */
  showHeld({ view, from }) {
    if (view !== this.name || this.window.follow) return;
    (this.replay?.whole ?? this.timeline).keepFrom(from);
    this.draw();
  }

  resume() {
    const { window } = this;
    Object.assign(this, { cursor: null, selected: null, range: null, replay: null, timeline: this.received });
    window.follow = this.model.get("live");
    if (window.follow) this.model.send({ view: this.name, hold: false });
    window.pinned = false;
    window.release();
    if (!window.follow) this.showAll();
  }

  showAll() {
    this.window.show(this.timeline.begin, this.timeline.end, 0.01);
  }

  // A picture of single batches, around the slowest request; the rest is in the overview.
  showSlowest() {
    const { batches, slowest: [slowest] } = this.timeline;
    if (batches.size <= OPENED || !slowest) {
      this.showAll();
      return;
    }
    const known = [...batches.values()].sort((one, other) => one.sent - other.sent);
    const middle = known.findIndex(({ n }) => n === slowest.batch);
    const first = Math.min(Math.max(0, middle - (OPENED >> 1)), known.length - OPENED);
    const shown = known.slice(first, first + OPENED);
    const end = Math.max(...shown.map((batch) => batch.end ?? this.timeline.now));
    this.window.show(shown[0].sent, end, 0.01);
  }

  /** @param {number} factor @param {number} around */
  zoom(factor, around) {
    if (this.window.holds) this.stopFollowing();
    const longest = Math.max(2000, (this.timeline.end - this.timeline.begin) * 1.5);
    this.window.zoom(factor, around, longest);
    this.draw();
    this.shareMoment();
  }

  /** @param {number} distance @param {boolean} isFirst */
  drag(distance, isFirst) {
    this.change(() => {
      if (isFirst) this.dragFrom = this.window.from;
      this.window.from = this.dragFrom - (distance / this.drawnWidth) * this.window.span;
    });
  }

  // What happened in a time range is described below the picture.
  /** @param {number} from @param {number} to */
  selectRange(from, to) {
    this.stopFollowing();
    Object.assign(this, { cursor: null, range: [Math.max(0, from), Math.min(this.timeline.end, to)] });
    this.draw();
  }

  /** @param {number} time */
  moveCursor(time) {
    Object.assign(this, { cursor: time, range: null });
    if (time < this.window.from || time > this.window.to) this.window.from = time - this.window.span / 2;
  }

  /** @param {number} number */
  showBatch(number) {
    this.stopFollowing();
    const { oldest, sent, end } = this.timeline.batches.get(number);
    if (number !== this.selected || this.frame.columns || sent < this.window.from || end > this.window.to) {
      const from = Math.max(oldest, sent - LONGEST_WAIT * Math.max(end - sent, 0.001));
      this.window.show(from, end, 0.3);
    }
    Object.assign(this, { selected: number, cursor: sent, range: null });
    this.draw();
    this.shareMoment();
  }

  /** @param {number} direction */
  step(direction) {
    this.stopFollowing();
    const { events } = this.timeline;
    if (!events.length) return;
    this.eventIndex = nextEvent(events, this.eventIndex, direction, { cursor: this.cursor, from: this.window.from });
    const { time, batch } = events[this.eventIndex];
    this.moveCursor(time);
    this.selected = batch;
  }

  /** @param {PointerPlace} point */
  targetAt({ x, y }) {
    return this.frame?.targets.findLast((target) =>
      x >= target.x && x <= target.x + target.width && y >= target.y && y <= target.y + target.height);
  }

  /** @param {PointerPlace} point */
  click(point) {
    const target = this.targetAt(point);
    this.canvas.focus({ preventScroll: true });
    this.stopFollowing();
    this.selected = target && "batch" in target ? target.batch?.n ?? null : null;
    this.range = null;
    if (this.selected === null) this.cursor = this.timeAt(point.x);
    const batch = this.timeline.batches.get(this.selected);
    const isAsked = target?.kind === "request" && batch && this.timeline.isExplained(batch);
    if (isAsked) this.blamePanel.ask(this.selected, target.request.label);
    this.draw();
    this.shareMoment();
  }

  /** @param {PointerPlace | null} point */
  point(point) {
    this.pointer = point;
    const target = point && this.targetAt(point);
    const focus = target?.kind === "request" ? target.request : null;
    const isSame = focus?.label === this.focus?.label && focus?.queued === this.focus?.queued;
    this.focus = focus;
    this.updateTip();
    if (!isSame) this.draw();
  }

  // --- display --------------------------------------------------------------------------------

  get theme() {
    this.colours ??= themeOf(this.root, this.timeline.meta);
    return this.colours;
  }

  shown() {
    const { selected, range, focus, end, ghost } = this;
    const cursor = this.replay ? this.timeline.now : this.cursor;
    const now = performance.now();
    const live = this.model.get("live");
    const time = this.window.shown(this.timeline, this.drawnWidth, end, now);
    const ghostRows = ghost?.largestBetween(time.from, time.from + time.span) ?? 1;
    const rows = Math.max(time.rows, rowScale(this.timeline, ghostRows));
    return { ...time, rows, end, cursor, selected, range, focus, live, ghost };
  }

  svg() {
    const { timeline } = this;
    const surface = new SvgSurface(this.canvas.clientWidth || 900, heightOf(timeline), this.theme, timeline.describe());
    drawTimeline(surface, timeline, this.shown());
    return surface.toString();
  }

  draw() {
    const width = this.root.clientWidth - 2;
    if (width < 50 || this.closed) return;
    this.frames.drawnAt = performance.now();
    this.follow();
    if (this.replay) this.advanceReplay();
    const height = heightOf(this.timeline);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const surface = new CanvasSurface(this.canvas, width, height, this.theme);
    this.frame = drawTimeline(surface, this.timeline, this.shown());
    this.updateText();
    if (!this.model.get("live") && this.window.needsColumns !== this.sharedColumns) this.shareMoment();
  }

  // Text and numbers change no faster than they can be read.
  updateText() {
    const now = performance.now();
    if (this.window.follow && now - this.textUpdatedAt < TEXT_INTERVAL) return;
    this.textUpdatedAt = now;
    this.minimap.draw(this.timeline, this.theme, this.window);
    showText(this);
    this.updateDetails();
    this.updateTip();
  }

  updateDetails() {
    const batch = this.timeline.batches.get(this.selected);
    showDetails(this.part("details"), batch, this);
    const slowest = this.window.follow ? [] : this.timeline.slowest;
    const isExplained = batch !== undefined && this.timeline.isExplained(batch);
    this.blamePanel.select(this.theme, batch, this.frame.columns, slowest, isExplained);
  }

  updateTip() {
    showTip(this.part("tip"), this.pointer && this.targetAt(this.pointer), this);
  }

  close() {
    this.reportVisibility(null);
    this.closed = true;
    this.stopObserving();
    this.frames.stop();
  }
}

/** @param {WidgetContext<BatchViewState>} context */
function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const view = new View(model, root);
  const listeners = {
    "msg:custom": (message) => (message.held ? view.showHeld(message.held) : view.receive(message)),
    "change:history": () => view.receive(model.get("history")),
    "change:blame": () => view.blamePanel.show(model.get("blame")),
    "change:notice": () => view.frames.request(),
    "change:ghost": () => view.showGhost(model.get("ghost")),
    "change:moment": () => view.showMoment(model.get("moment")),
    "change:live": () => { if (!model.get("live")) view.liveEnded(); },
  };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  const stopFollowingKernel = followKernel(model, el, (isSaved) => {
    if (!isSaved) model.set("notice", "Disconnected from the kernel.");
    model.set("live", false);
    view.blamePanel.disconnect();
  });
  return () => {
    view.close();
    stopFollowingKernel();
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
  };
}

export default { render };
export { SvgSurface, Timeline, View, drawTimeline, heightOf, render };
