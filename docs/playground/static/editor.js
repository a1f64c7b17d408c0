// The configuration: the text, the form and the problems of the notebook's editor, checked by the worker.

import { createCode } from "../config_editor/code.js";
import { createForm } from "../config_editor/form.js";
import { problemRow } from "../config_editor/report.js";
import { make } from "../shared/dom.js";
import { LocalModel } from "../shared/local_model.js";

const HINT = "Ctrl+Space lists the fields, Ctrl+Z undoes changes of the text and of the form.";

// `onText(text)` is called after each change; `setField(path, value)` asks for the text with a changed field.
/**
 * @param {EditorOptions} options
 */
function createEditor({ schema, text, onText, setField }) {
  const report = { text: "", problems: [], form: null };
  const model = new LocalModel({ model: "this scenario", text, schema, report });
  const code = createCode(model, () => onText(code.input.value), HINT);
  const form = createForm(model, (path, value) => setField(path, value));
  const problems = make("ul", { class: "tnb-problems", aria: { live: "polite" } });
  const fields = make("details", {}, make("summary", {}, "Fields"), form.element);
  const element = make(
    "div", { class: "tnb-config-editor tnb-controls" },
    make("div", { class: "tnb-text" }, code.element, code.help, problems), fields,
    code.completion.list, code.completion.count,
  );
  element.addEventListener("keydown", (event) => {
    const { dirty } = /** @type {HTMLElement} */ (event.target).dataset;
    if (!(event.ctrlKey || event.metaKey) || dirty) return;
    const key = event.key.toLowerCase();
    const steps = key === "y" || (key === "z" && event.shiftKey) ? 1 : key === "z" ? -1 : 0;
    if (!steps) return;
    event.preventDefault();
    code.undo(steps);
  }, true);
  const replace = (newer) => {
    code.setText(newer);
    onText(newer);
  };
  code.input.value = text;
  code.draw();
  code.describe();
  return {
    element,
    replace,
    setText: (newer) => code.setText(newer),
    /** @param {ConfigReport} newer */
    showReport(newer) {
      model.set("report", newer);
      if (newer.text !== code.input.value) return;
      code.draw();
      form.draw(newer.form);
      problems.replaceChildren(...newer.problems.map((problem) => problemRow(problem, code, replace)));
    },
  };
}

export { createEditor };
