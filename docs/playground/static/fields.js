// Labelled number fields, and parameters of a kind that is chosen from a list.

import { make } from "../shared/dom.js";

// Calls `onChange` while a number is edited, but not with one that is out of range: then it says what is wrong.
/** @param {HTMLInputElement} input @param {(value: number) => void} onChange */
function checkNumber(input, onChange) {
  const problem = make("span", { class: "tnb-invalid", role: "status" });
  Object.assign(input, { required: true });
  input.addEventListener("input", () => {
    const { valid } = input.validity;
    problem.textContent = valid ? "" : `${input.validationMessage} Not simulated.`;
    input.setAttribute("aria-invalid", String(!valid));
    if (valid) onChange(Number(input.value));
  });
  return problem;
}

// A number field with its label.
/**
 * @param {{ label: string, value: number, unit?: string, min?: number, step?: number | string }} field
 * @param {(value: number) => void} onChange
 */
function numberField({ label, value, unit = "", min = 0, step = "any" }, onChange) {
  const input = make("input", { type: "number", value, min, step, inputMode: "decimal" });
  const shownUnit = unit ? make("span", { class: "tnb-unit" }, unit) : null;
  const problem = checkNumber(input, onChange);
  return make("label", { class: "tnb-field" }, make("span", {}, label), input, shownUnit, problem);
}

/**
 * @param {string} label @param {string} value @param {Record<string, string>} options
 * @param {(value: string) => void} onChange
 */
function choice(label, value, options, onChange) {
  const select = make("select", {}, ...Object.entries(options).map(([key, text]) =>
    make("option", { value: key, selected: key === value }, text)));
  select.addEventListener("change", () => onChange(select.value));
  return make("label", { class: "tnb-field" }, make("span", {}, label), select);
}

export { checkNumber, choice, numberField };
