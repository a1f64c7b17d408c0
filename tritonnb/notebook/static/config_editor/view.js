// The configuration editor: config.pbtxt as highlighted text, the form beside it, and the kernel's check of both.
// The kernel sends `report` (problems, form, effect, diff) and `status`; nothing is checked in the browser.

import { connect, createBusyHint, make } from "../shared/dom.js";
import { createCode } from "./code.js";
import { createForm } from "./form.js";
import { APPLY, diffRows, problemRow } from "./report.js";

const CHECK_AFTER_MS = 250;

/** @param {WidgetContext<ConfigEditorState>} context */
function render({ model, el }) {
  let waiting = null;
  const hint = createBusyHint("The kernel is busy: this is checked and applied when the running cell ends.");
  const flush = () => {
    clearTimeout(waiting);
    waiting = null;
    if (model.get("text") === code.input.value) return;
    model.set("text", code.input.value);
    model.save_changes();
    hint.wait();
  };
  const send = (content) => {
    flush();
    model.send(content);
    hint.wait();
  };
  const code = createCode(model, (isTyping) => {
    clearTimeout(waiting);
    waiting = setTimeout(flush, isTyping ? CHECK_AFTER_MS : 0);
    drawButtons();
  });
  const replace = (text) => { code.setText(text); flush(); };
  const form = createForm(model, (path, value) => send({ action: "set", path, value }));
  const button = (text, onclick) => make("button", { type: "button", onclick }, text);

  const apply = button("Apply", () => send({ action: "apply" }));
  const revert = button("Revert", () => send({ action: "revert" }));
  const save = button("Save", () => send({ action: "save" }));
  const differences = button("Diff", () => { diff.hidden = !diff.hidden; drawButtons(); });
  const takeFile = button("Use the file's text", () => send({ action: "take_file" }));
  apply.classList.add("tnb-primary");
  const outcome = make("span", { class: "tnb-outcome", aria: { live: "polite" } });
  const outside = make("div", { class: "tnb-outside" }, "The file was changed outside of this editor.", takeFile);
  const problems = make("ul", { class: "tnb-problems", aria: { live: "polite" } });
  const diffLabel = "Changes to the running configuration";
  const diff = make("pre", { class: "tnb-diff", role: "region", tabIndex: 0, aria: { label: diffLabel } });
  diff.hidden = true;
  const file = make("span", { class: "tnb-file" });
  const preview = make("p", { class: "tnb-preview", aria: { live: "polite" } });

  const isEnabled = () => {
    const { busy, loaded, ended } = model.get("status");
    return loaded && !ended && !busy;
  };

  function drawButtons() {
    const report = model.get("report");
    const { ended, file: path } = model.get("status");
    const known = report.text === code.input.value;
    const [label, title] = APPLY[(known && report.effect) || ""];
    apply.textContent = label;
    apply.title = `${title} (Ctrl+Enter)`;
    apply.disabled = !isEnabled() || !known || !report.effect || report.effect === "unchanged";
    revert.disabled = ended || (known && !report.diff?.length);
    save.hidden = !path;
    save.disabled = ended || !known || !report.effect;
    takeFile.disabled = ended;
    differences.setAttribute("aria-pressed", String(!diff.hidden));
    code.input.readOnly = ended;
  }

  function drawReport() {
    const report = model.get("report");
    if (report.text !== code.input.value) return;
    if (waiting === null) hint.done();
    code.draw();
    form.draw(report.form);
    problems.replaceChildren(...report.problems.map((problem) => problemRow(problem, code, replace)));
    diff.replaceChildren(...(report.diff.length ? diffRows(report.diff) : [
      report.effect === "loaded" ? "The text is that of the file." : "The text is the running configuration.",
    ]));
    drawButtons();
  }

  function drawStatus() {
    const status = model.get("status");
    hint.done();
    outcome.textContent = status.busy || status.outcome;
    outcome.dataset.level = status.busy ? "" : status.level;
    outside.hidden = !status.outside;
    // CSS shortens the path at its beginning with `direction: rtl`; the marks keep it written from left to right.
    file.textContent = status.file && `\u200e${status.file}\u200e`;
    file.title = status.file;
    drawButtons();
  }

  function drawPreview() {
    preview.textContent = model.get("preview").text ?? "";
  }

  function drawText() {
    if (waiting === null) code.setText(model.get("text"));
    drawReport();
  }

  // Ctrl+Enter applies, and one history undoes changes of the text and of the form.
  /** @param {KeyboardEvent} event */
  function onKey(event) {
    if (!(event.ctrlKey || event.metaKey)) return;
    const key = event.key.toLowerCase();
    const target = /** @type {HTMLElement} */ (event.target);
    const steps = key === "y" || (key === "z" && event.shiftKey) ? 1 : key === "z" ? -1 : 0;
    if (event.key === "Enter" && isEnabled()) {
      target.blur?.(); // a field of the form commits its value first
      send({ action: "apply" });
      target.focus?.();
    } else if (steps && !target.dataset.dirty && !model.get("status").ended) {
      code.undo(steps);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  const text = make("div", { class: "tnb-text" }, code.element, code.help, problems, preview, diff);
  const root = make(
    "div", { class: "tnb-config-editor tnb-controls" },
    make("div", { class: "tnb-top" }, make("strong", {}, model.get("model")), file, outcome),
    outside,
    make("div", { class: "tnb-panes" }, text, form.element),
    make("div", { class: "tnb-bottom" }, apply, revert, differences, save, hint.node),
    code.completion.list,
    code.completion.count,
  );
  root.addEventListener("keydown", onKey, true);
  el.append(root);
  code.input.value = model.get("text");
  code.draw();
  code.describe();
  const disconnect = connect(model, {
    "change:text": drawText, "change:report": drawReport, "change:status": drawStatus,
    "change:preview": drawPreview,
  }, el);
  return () => {
    clearTimeout(waiting);
    disconnect();
  };
}

export default { render };
