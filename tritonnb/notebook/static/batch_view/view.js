// The view: what one sees and does. Everything here works without the kernel.

const LIVE_SPAN = 2000, TICK = 100, SLACK = 30, REST = 700, READABLE = 30, SILENCE = 1000;

const TOOLS = `
  <div class="tnb-tools" role="toolbar" aria-label="time">
    <button data-do="pause"></button>
    <button data-do="back" title="one event back (left arrow)" aria-label="one event back">◀</button>
    <button data-do="forward" title="one event on (right arrow)" aria-label="one event on">▶</button>
    <input type="range" class="tnb-scrub" min="0" max="1" step="any" value="1" aria-label="time shown">
    <button data-do="out" title="show more time (minus)" aria-label="show more time">−</button>
    <button data-do="in" title="show less time (plus)" aria-label="show less time">+</button>
    <button data-do="all" title="show everything that is known (0)">all</button>
    <span class="tnb-space"></span>
    <button data-do="svg" title="save the picture as SVG">SVG</button>
    <button data-do="png" title="save the picture as PNG">PNG</button>
    <button data-do="trace" title="save the batches as a trace for ui.perfetto.dev">Perfetto</button>
  </div>`;

class View {
  constructor(model, root) {
    Object.assign(this, { model, root, story: new Story(), follow: model.get("live"), name: String(Math.random()), onScreen: true, inSight: null, cursor: null, selected: null, targets: [], from: 0, span: LIVE_SPAN, told: 0, lag: TICK + SLACK, rate: null, closed: false });
    root.classList.add("tnb-batch-view");
    root.dataset.lmSuppressShortcuts = "true"; // keys pressed here are no shortcuts of JupyterLab
    root.innerHTML = `<div class="tnb-head" aria-live="off"></div>${TOOLS}<canvas tabindex="0" role="img"></canvas>
      <div class="tnb-legend tnb-note"></div><div class="tnb-event" aria-live="polite"></div><div class="tnb-slots"></div><div class="tnb-details" aria-live="polite"></div>`;
    this.canvas = root.querySelector("canvas");
    this.part = (name) => root.querySelector(`.tnb-${name}`);
    this.listen();
    this.receive(model.get("history"));
    if (!this.follow) this.showAll();
    this.draw();
  }

  // --- what comes ---------------------------------------------------------------------------

  receive(told) {
    const before = { counts: this.story.counts, now: this.story.now };
    this.story.merge(told);
    this.told = performance.now();
    clearTimeout(this.quiet);
    const passed = this.story.now - before.now;
    if (passed > 50 && passed < 500) this.lag = passed + SLACK; // what is drawn follows, so that it never waits for news
    if (passed > 50 && passed < 1500) {
      const rate = ((this.story.counts.requests - before.counts.requests) / passed) * 1000;
      this.rate = this.rate === null ? rate : 0.7 * this.rate + 0.3 * rate;
    }
    this.wake();
  }

  // The kernel draws less for a view that nobody looks at.
  seen(inSight) {
    if (!this.model.get("live") || inSight === this.inSight) return;
    this.inSight = inSight;
    this.model.send({ view: this.name, in_sight: inSight });
  }

  // What is left in sight is the last that happened, not the silence after it.
  liveEnded() {
    this.follow = false;
    const { begin, end, batches } = this.story;
    const last = Math.max(begin, ...[...batches.values()].map((each) => each.end ?? each.sent));
    this.from = Math.max(begin, Math.min(end, last + 0.02 * this.span) - this.span);
    this.draw();
  }

  // Frames are drawn only while something moves.
  wake() {
    if (this.frame || this.closed) return;
    const turn = () => {
      this.frame = null;
      if (this.closed) return;
      this.draw();
      const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      if (this.follow && !calm && performance.now() - this.told < REST) this.frame = requestAnimationFrame(turn);
      else if (this.follow && this.rate) this.quiet = setTimeout(() => { this.rate = 0; this.wake(); }, SILENCE);
    };
    this.frame = requestAnimationFrame(turn);
  }

  get end() {
    if (!this.follow) return this.story.now;
    const since = performance.now() - this.told;
    return this.story.now + Math.min(since, REST) - this.lag;
  }

  // --- what one does ------------------------------------------------------------------------

  listen() {
    this.root.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => this.act(button.dataset.do)));
    this.part("scrub").addEventListener("input", (event) => this.scrub(Number(event.target.value)));
    this.canvas.addEventListener("keydown", (event) => {
      const action = { " ": "pause", ArrowLeft: "back", ArrowRight: "forward", "-": "out", "+": "in", "=": "in", 0: "all", Escape: "none" }[event.key];
      if (!action) return;
      event.preventDefault();
      event.stopPropagation();
      this.act(action);
    });
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      this.zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, this.timeAt(event));
      this.share();
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => { this.drag = { x: event.offsetX, from: this.from, moved: false }; this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.drag || Math.abs(event.offsetX - this.drag.x) < 4 && !this.drag.moved) return;
      if (!this.drag.moved) { this.hold(); this.drag.from = this.from; }
      this.drag.moved = true;
      this.from = this.drag.from - ((event.offsetX - this.drag.x) / (this.canvas.clientWidth - this.story.gutter - RIGHT)) * this.span;
      this.draw();
      this.share();
    });
    this.canvas.addEventListener("pointercancel", () => { this.drag = null; }); // the page scrolls instead
    this.canvas.addEventListener("pointerup", (event) => {
      if (this.drag && !this.drag.moved) this.click(event);
      this.drag = null;
    });
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.root);
    this.sight = new IntersectionObserver(([entry]) => { this.onScreen = entry.isIntersecting; this.look(); });
    this.sight.observe(this.root);
    this.look = () => this.seen(this.onScreen && document.visibilityState === "visible");
    document.addEventListener("visibilitychange", this.look);
    this.themes = new MutationObserver(() => this.wake());
    this.themes.observe(document.body, { attributes: true });
  }

  timeAt(event) {
    const share = (event.offsetX - this.story.gutter) / (this.canvas.clientWidth - this.story.gutter - RIGHT);
    return this.from + Math.min(1, Math.max(0, share)) * this.span;
  }

  act(action) {
    if (action === "pause") this.follow && this.model.get("live") ? this.holdNewest() : this.resume();
    else if (action === "back" || action === "forward") this.step(action === "forward" ? 1 : -1);
    else if (action === "in" || action === "out") this.zoomed = this.zoom(action === "in" ? 0.6 : 1.6, this.cursor ?? this.from + this.span / 2);
    else if (action === "all") { this.hold(); this.showAll(); }
    else if (action === "none") { this.cursor = null; this.selected = null; }
    else this.save(action);
    this.draw();
    this.wake();
    this.share();
  }

  // Views of a comparison show the same time: the trait `moment` is linked in the browser.
  share() {
    this.model.set("moment", { from: this.from, span: this.span, cursor: this.cursor });
  }

  adopt({ from, span, cursor }) {
    if (from === undefined || (from === this.from && span === this.span && cursor === this.cursor)) return;
    this.hold();
    Object.assign(this, { from, span, cursor });
    this.draw();
  }

  hold() {
    if (!this.follow) return;
    this.from = this.end - this.span;
    this.follow = false;
  }

  // What one stops to read: the newest batches, large enough, unless one has chosen how much time to see.
  holdNewest() {
    this.hold();
    const newest = afterSilence([...this.story.batches.values()].slice(-READABLE));
    if (this.zoomed || !newest.length) return;
    const end = Math.max(...newest.map((each) => each.end ?? this.story.now));
    this.span = Math.max(1, (end - Math.min(...newest.map((each) => each.oldest))) * 1.04);
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
    const { begin, end } = this.story;
    this.span = Math.max(0.01, (end - begin) * 1.02);
    this.from = begin - 0.01 * (end - begin);
  }

  zoom(factor, around) {
    const share = this.follow ? 1 : (around - this.from) / this.span;
    this.span = Math.min(Math.max(this.span * factor, 0.05), Math.max(LIVE_SPAN, (this.story.end - this.story.begin) * 1.5));
    this.from = around - share * this.span;
    this.draw();
    return true;
  }

  scrub(share) {
    this.hold();
    const { begin, end } = this.story;
    this.lookAt(begin + share * (end - begin));
    this.draw();
    this.share();
  }

  lookAt(time) {
    this.cursor = time;
    if (time < this.from || time > this.from + this.span) this.from = time - this.span / 2;
  }

  step(direction) {
    this.hold();
    const events = this.story.events;
    if (!events.length) return;
    if (this.cursor === null) this.at = direction > 0 ? events.findIndex(([time]) => time >= this.from) - 1 : events.length;
    else if (events[this.at]?.[0] !== this.cursor) this.at = events.filter(([time]) => time <= this.cursor).length - (direction > 0 ? 1 : 0);
    this.at = Math.min(events.length - 1, Math.max(0, this.at + direction));
    const [time, , number] = events[this.at];
    this.lookAt(time);
    this.selected = number;
  }

  click(event) {
    const inside = ([x, y, width, height]) => event.offsetX >= x && event.offsetX <= x + width && event.offsetY >= y && event.offsetY <= y + height;
    const hit = this.targets.filter(inside).pop();
    this.selected = hit ? hit[4] : null;
    if (hit) this.hold();
    this.canvas.focus({ preventScroll: true });
    this.draw();
  }

  save(kind) {
    const name = `${this.story.meta.model ?? "batches"}`;
    if (kind === "svg") download(`${name}.svg`, new Blob([this.svg()], { type: "image/svg+xml" }));
    if (kind === "png") this.canvas.toBlob((blob) => download(`${name}.png`, blob));
    if (kind === "trace") download(`${name}.perfetto.json`, new Blob([perfettoTrace(this.story)], { type: "application/json" }));
  }

  // --- what one sees ------------------------------------------------------------------------

  theme() {
    const style = getComputedStyle(this.root);
    const of = (name, fallback) => style.getPropertyValue(`--tnb-${name}`).trim() || fallback;
    return { ink: of("ink", "#222"), faint: of("faint", "#666"), paper: of("paper", "#fff"), panel: of("panel", "#f5f5f5"), line: of("line", "#ccc"), accent: of("accent", "#D55E00"), font: style.fontFamily || "sans-serif", dark: document.body.dataset.jpThemeLight === "false" };
  }

  window() {
    if (this.follow) this.from = this.end - this.span;
    const end = this.follow ? this.end : this.story.now;
    return { from: this.from, span: this.span, end, cursor: this.cursor, selected: this.selected };
  }

  svg() {
    const surface = new SvgSurface(this.canvas.clientWidth || 900, heightOf(this.story), this.theme(), this.story.describe());
    drawStory(surface, this.story, this.window());
    return surface.toString();
  }

  draw() {
    const width = this.root.clientWidth - 2;
    if (width < 50 || this.closed) return;
    const height = heightOf(this.story);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.targets = drawStory(new CanvasSurface(this.canvas, width, height, this.theme()), this.story, this.window());
    this.tell();
  }

  // Words and numbers, not more often than one reads.
  tell() {
    const now = performance.now();
    if (this.follow && now - (this.read ?? 0) < 200) return;
    this.read = now;
    const { story } = this;
    const live = this.model.get("live");
    const pause = this.root.querySelector('[data-do="pause"]');
    pause.textContent = this.follow && live ? "❚❚ pause" : live ? "● live" : "reset";
    pause.title = `${live ? "pause, or follow again" : "show everything again"} (space)`;
    const { begin, end } = story;
    const share = this.cursor === null ? 1 : (this.cursor - begin) / Math.max(1e-9, end - begin);
    this.part("scrub").value = share;
    this.part("scrub").style.setProperty("--tnb-at", share);
    this.canvas.setAttribute("aria-label", story.describe());
    this.part("head").replaceChildren(...headline(story, live, live ? this.rate : null));
    const step = this.cursor === null ? null : story.events[this.at]?.[0] === this.cursor ? story.events[this.at][1] : null;
    this.part("legend").replaceChildren(...legend(story));
    const moment = this.cursor === null ? "" : `${this.cursor.toFixed(3)} ms`;
    this.part("event").textContent = moment && `${moment}: ${step ?? momentWords(story, this.cursor)}`;
    this.part("scrub").setAttribute("aria-valuetext", moment || "the end");
    this.part("slots").replaceChildren(...(story.sequences ? [slotGrid(story, this.cursor ?? this.end, this.cursor === null && live)] : []));
    const batch = story.batches.get(this.selected);
    this.part("details").replaceChildren(...(batch ? batchDetails(story, batch) : []));
  }

  close() {
    this.seen(false);
    this.closed = true;
    this.sizes.disconnect();
    this.sight.disconnect();
    document.removeEventListener("visibilitychange", this.look);
    this.themes.disconnect();
    clearTimeout(this.quiet);
    if (this.frame) cancelAnimationFrame(this.frame);
  }
}

// The batches since nothing happened for long.
function afterSilence(batches) {
  const last = batches.findLastIndex((each, at) => at > 0 && each.oldest - (batches[at - 1].end ?? each.oldest) > SILENCE);
  return last > 0 ? batches.slice(last) : batches;
}

function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const view = new View(model, root);
  const tick = (told) => view.receive(told);
  const history = () => view.receive(model.get("history"));
  const live = () => { if (!model.get("live")) view.liveEnded(); };
  model.on("msg:custom", tick);
  model.on("change:history", history);
  const moment = () => view.adopt(model.get("moment"));
  model.on("change:moment", moment);
  model.on("change:live", live);
  return () => {
    view.close();
    model.off("msg:custom", tick);
    model.off("change:history", history);
    model.off("change:moment", moment);
    model.off("change:live", live);
  };
}

export default { render };
export { Story, SvgSurface, drawStory, heightOf };
