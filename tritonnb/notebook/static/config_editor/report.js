// The problems, the differences, and what applying the text would do.

import { make } from "../shared/dom.js";

/** @param {Problem} problem @param {Code} code @param {(text: string) => void} replace */
function problemRow(problem, code, replace) {
  const where = problem.line
    ? make("button", { type: "button", class: "tnb-link", onclick: () => code.goTo(problem.line, problem.column) },
      `line ${problem.line}`)
    : null;
  const fix = problem.fix
    ? make("button", { type: "button", onclick: () => replace(problem.fix.text) },
      "Fix: ", make("code", {}, problem.fix.label))
    : null;
  return make("li", {}, where, make("span", { class: "tnb-message" }, problem.message), fix);
}

/** @param {string[]} lines */
function diffRows(lines) {
  return lines.slice(2).map((line) => {
    const kind = { "+": "tnb-added", "-": "tnb-removed", "@": "tnb-place" }[line[0]] ?? "";
    return make("div", { class: kind }, line);
  });
}

/** @type {Record<Effect, [label: string, title: string]>} */
const APPLY = {
  "in place": ["Apply in place", "Only the scheduling changes: the model is not reloaded"],
  reloaded: ["Apply by reloading", "A new copy is loaded and replaces the old one"],
  loaded: ["Apply by loading", "The model failed to load: try again with this configuration"],
  unchanged: ["Apply", "This is the running configuration"],
  "": ["Apply", "Correct the problems first"],
};

export { APPLY, diffRows, problemRow };
