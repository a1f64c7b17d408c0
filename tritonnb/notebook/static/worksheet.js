// A worksheet: requests are dragged into batches, or moved with the keyboard; the kernel grades the answer.

import { connect, element, makeSvg } from "./shared/dom.js";

const KEYS_HELP = "Drag a request into a batch. With the keyboard: a digit puts the focused request into that batch, " +
  "the arrow keys move it to the batch before or after, Delete takes it back.";
const ROW = 26;
const GUTTER = 70;
const TICK = 60; // px between two times of the axis, at least

class WorksheetPage {
  /** @param {WidgetModel<WorksheetState>} model @param {HTMLElement} root */
  constructor(model, root) {
    this.model = model;
    this.root = root;
    root.classList.add("tnb-worksheet", "tnb-controls");
    root.dataset.lmSuppressShortcuts = "true"; // JupyterLab ignores keys that are pressed here
    const { question, config } = model.get("sheet");
    this.picture = element("div", "tnb-picture");
    this.pool = this.target("tnb-pool", 0);
    this.batches = element("div", "tnb-batches");
    this.status = element("p", "tnb-result");
    this.status.setAttribute("role", "status");
    this.announcement = element("span", "tnb-announcement");
    this.announcement.setAttribute("aria-live", "polite");
    root.append(
      element("p", "", question),
      element("details", "", element("summary", "", "Configuration"), element("pre", "", config)),
      this.picture, this.pool, this.batches, this.toolbar(), this.status, element("p", "tnb-note", KEYS_HELP),
      this.announcement,
    );
    this.root.querySelector("details").open = true;
  }

  toolbar() {
    const button = (action, label, title) => {
      const made = element("button", "", label);
      made.title = title;
      made.addEventListener("click", () => this.send(action));
      return made;
    };
    return element(
      "div", "tnb-toolbar",
      button("check", "Check", "which batches are right so far"),
      button("hint", "Hint", "when the next batch is sent"),
      button("reveal", "Reveal", "the first batch that is missing or wrong, and why it is sent"),
    );
  }

  /** @param {string} action */
  send(action) {
    this.model.send({ action, answer: this.answer }); // the trait may arrive later
  }

  // --- the answer -------------------------------------------------------------------------------

  get answer() {
    return this.model.get("answer");
  }

  get requests() {
    return this.model.get("sheet").requests;
  }

  // The number of the batch of a request, from 1; 0 if it is in none.
  /** @param {string} name */
  batchOf(name) {
    return this.answer.findIndex((batch) => batch.includes(name)) + 1;
  }

  /** @param {string} name @param {number} number */
  move(name, number) {
    const answer = this.answer.map((batch) => batch.filter((other) => other !== name));
    while (answer.length < number) answer.push([]);
    if (number > 0) answer[number - 1].push(name);
    while (answer.length && !answer[answer.length - 1].length) answer.pop();
    this.model.set("answer", answer);
    this.model.save_changes();
    this.announcement.textContent = number > 0 ? `${name} is in batch ${number}` : `${name} is in no batch`;
  }

  // --- what can be moved, and where -------------------------------------------------------------

  /** @param {string} className @param {number} number */
  target(className, number) {
    const made = element("div", className);
    made.addEventListener("dragover", (event) => event.preventDefault());
    made.addEventListener("drop", (event) => {
      event.preventDefault();
      const name = event.dataTransfer.getData("text/plain");
      if (this.requests.some(([known]) => known === name)) this.move(name, number);
    });
    return made;
  }

  /** @param {SheetRequest} request */
  chip([name, ms, detail]) {
    const made = element("button", "tnb-chip", element("b", "", name), ` ${detail ? `${detail}, ` : ""}${ms} ms`);
    made.title = `request ${name} arrives at ${ms} ms`;
    made.draggable = true;
    made.dataset.name = name;
    const place = this.batchOf(name);
    made.setAttribute("aria-label", `request ${name}, ${detail || "no flags"}, arrives at ${ms} ms, ` +
      (place ? `in batch ${place}` : "in no batch"));
    made.addEventListener("dragstart", (event) => event.dataTransfer.setData("text/plain", name));
    made.addEventListener("keydown", (event) => this.pressed(event, name));
    return made;
  }

  /** @param {KeyboardEvent} event @param {string} name */
  pressed(event, name) {
    const place = this.batchOf(name);
    const last = this.answer.length + 1;
    const next = Math.min(place + 1, last);
    const places = { ArrowRight: next, ArrowLeft: Math.max(place - 1, 0), Delete: 0, Backspace: 0 };
    const number = /^[0-9]$/.test(event.key) ? Math.min(Number(event.key), last) : places[event.key];
    if (number === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.move(name, number);
  }

  // --- display ----------------------------------------------------------------------------------

  draw() {
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.name : "";
    const result = this.model.get("result");
    const inBatch = new Set(this.answer.flat());
    const chips = (names) => this.requests.filter(([name]) => names(name)).map((request) => this.chip(request));
    this.pool.replaceChildren(element("span", "tnb-label", "not in a batch"), ...chips((name) => !inBatch.has(name)));
    const correct = result.batches ?? [];
    this.batches.replaceChildren(...[...this.answer, []].map((batch, index) => {
      const box = this.target("tnb-batch", index + 1);
      const isRight = index < correct.length && sameNames(correct[index].names, batch);
      if (isRight) box.classList.add("tnb-right");
      const isWrong = !isRight && result.text && !result.done && index === firstWrong(correct, this.answer);
      if (isWrong) box.classList.add("tnb-wrong");
      const mark = isRight ? " ✓" : isWrong ? " ✗" : "";
      box.append(element("span", "tnb-label", `batch ${index + 1}${mark}`), ...chips((name) => batch.includes(name)));
      return box;
    }));
    this.status.textContent = result.text ?? "";
    this.drawPicture(result);
    if (focused) this.root.querySelector(`[data-name="${focused}"]`)?.focus();
  }

  // Arrivals as marks; the batches that are known so far; the time at which the next one is sent.
  /** @param {SheetResult} result */
  drawPicture({ batches = [], next_ms: next = null }) {
    const width = Math.max(300, this.root.clientWidth - 20);
    const latest = this.model.get("sheet").end_ms * 1.02 || 1;
    const x = (ms) => GUTTER + (ms / latest) * (width - GUTTER - 16);
    const instances = [...new Set(batches.map(({ instance }) => instance))].sort();
    const height = ROW * (instances.length + 2) + 14;
    const text = (content, left, top, anchor = "start") =>
      makeSvg("text", { x: left, y: top, "text-anchor": anchor, "font-size": 11, fill: "currentColor" }, content);
    const parts = [text("arrivals", 4, ROW - 6), text("batches", 4, 2 * ROW - 6)];
    let [last, low] = [-Infinity, true]; // labels that would overlap alternate between two heights
    for (const [name, ms] of this.requests) {
      low = x(ms) - last > 18 || !low;
      last = x(ms);
      parts.push(makeSvg("line", { x1: x(ms), x2: x(ms), y1: ROW, y2: height - 14, class: "tnb-arrival" }));
      parts.push(makeSvg("circle", { cx: x(ms), cy: ROW - 9, r: 3, fill: "currentColor" }));
      parts.push(text(name, x(ms) + 5, ROW - (low ? 6 : 16)));
    }
    for (const { names, instance, begin_ms: begin, end_ms: until, why } of batches) {
      const top = ROW * (1 + instances.indexOf(instance)) + 2;
      const box = { x: x(begin), y: top, width: Math.max(2, x(until) - x(begin)), height: ROW - 6 };
      parts.push(makeSvg("rect", { ...box, class: "tnb-box" }, makeSvg("title", {}, why)));
      parts.push(text(names.join(" "), x(begin) + 4, top + 14));
    }
    if (next !== null) {
      parts.push(makeSvg("line", { x1: x(next), x2: x(next), y1: ROW, y2: height - 14, class: "tnb-next" }));
      parts.push(text("the next batch is sent", x(next) + 4, height - 20));
    }
    for (const ms of ticksUntil(latest, (width - GUTTER) / TICK)) {
      parts.push(makeSvg("line", { x1: x(ms), x2: x(ms), y1: height - 16, y2: height - 12, stroke: "currentColor" }));
      parts.push(text(`${Number(ms.toFixed(3))} ms`, x(ms), height - 2, ms ? "middle" : "start"));
    }
    const label = `${this.requests.length} arrivals, ${batches.length} batches are known`;
    this.picture.replaceChildren(makeSvg("svg", { width, height, role: "img", "aria-label": label }, ...parts));
  }
}

// Round times from 0 on, at most so many.
/** @param {number} latest @param {number} most */
function ticksUntil(latest, most) {
  const power = 10 ** Math.floor(Math.log10(latest / most));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => latest / candidate <= most);
  return Array.from({ length: Math.floor(latest / step) + 1 }, (_, index) => index * step);
}

/** @type {(one: string[], other: string[]) => boolean} */
const sameNames = (one, other) => one.length === other.length && one.every((name) => other.includes(name));

/** @type {(correct: SheetBatch[], answer: string[][]) => number} */
const firstWrong = (correct, answer) => {
  const index = answer.findIndex((batch, number) => !correct[number] || !sameNames(correct[number].names, batch));
  return index < 0 ? answer.length : index;
};

/** @param {WidgetContext<WorksheetState>} context */
function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const page = new WorksheetPage(model, root);
  const draw = () => page.draw();
  const observer = new ResizeObserver(() => page.drawPicture(model.get("result")));
  observer.observe(root);
  const disconnect = connect(model, { "change:answer": draw, "change:result": draw }, el);
  return () => {
    observer.disconnect();
    disconnect();
  };
}

export default { render };
export { render };
