// Labelled number fields, and parameters of a kind that is chosen from a list.

import { make } from "../shared/dom.js";

// A number field with its label; `onChange(number)` is called while it is edited, but not with an empty text.
function numberField({ label, value, unit = "", min = 0, step = "any" }, onChange) {
  const input = make("input", { type: "number", value, min, step, inputMode: "decimal" });
  input.addEventListener("input", () => {
    if (input.value !== "" && input.validity.valid) onChange(Number(input.value));
  });
  const shownUnit = unit ? make("span", { class: "tnb-unit" }, unit) : null;
  return make("label", { class: "tnb-field" }, make("span", {}, label), input, shownUnit);
}

function choice(label, value, options, onChange) {
  const select = make("select", {}, ...Object.entries(options).map(([key, text]) =>
    make("option", { value: key, selected: key === value }, text)));
  select.addEventListener("change", () => onChange(select.value));
  return make("label", { class: "tnb-field" }, make("span", {}, label), select);
}

export { choice, numberField };
