// The form: sections of fields, as the kernel describes them.

import { make } from "../shared/dom.js";

/** @param {FormField} field @param {FormControl} control */
function valueOf(field, control) {
  if (field.kind === "bool") return control.checked;
  if (field.kind === "ints") return control.value.split(/[\s,]+/).filter(Boolean).map(Number);
  if (field.kind === "choice" || control.value === "") return control.value;
  return Number(control.value);
}

/** @param {FormField} field @param {FormControl} control */
function showValue(field, control) {
  if (control.dataset.dirty) return; // the user is typing
  if (field.kind === "bool") control.checked = field.value;
  else if (field.kind === "ints") control.value = field.value.join(", ");
  else control.value = field.value === 0 && field.hint ? "" : field.value;
}

/** @param {FormField} field @returns {FormControl} */
function createControl(field) {
  if (field.kind === "choice") {
    const options = field.choices.map(([value, text]) => make("option", { value }, text));
    return /** @type {any} */ (make("select", {}, ...options));
  }
  const type = { bool: "checkbox", ints: "text" }[field.kind] ?? "number";
  const control = make("input", { type, placeholder: field.hint ?? "" });
  if (type === "number") Object.assign(control, { min: 0, step: field.kind === "float" ? 0.05 : 1 });
  if (field.kind === "ints") control.inputMode = "numeric";
  return control;
}

/** @param {WidgetModel<CodeState>} model @param {(path: string, value: unknown) => void} onSet */
function createForm(model, onSet) {
  const element = make("form", { class: "tnb-form", aria: { label: "Fields" } });
  element.addEventListener("submit", (event) => event.preventDefault());
  let shape = "";

  /** @param {FormSection[]} sections */
  function build(sections) {
    element.replaceChildren(
      ...sections.map((section) => {
        const rows = section.fields.map((field) => {
          const control = createControl(field);
          Object.assign(control.dataset, { path: field.path });
          const commit = () => {
            if (!control.dataset.dirty) return;
            delete control.dataset.dirty;
            const value = valueOf(field, control);
            if (![value].flat().some(Number.isNaN)) onSet(field.path, value);
            else showValue(field, control);
          };
          control.addEventListener("input", () => { control.dataset.dirty = "1"; });
          control.addEventListener("change", commit);
          control.addEventListener("keydown", (event) => { if (event.key === "Enter") commit(); });
          const [message, name] = field.help.split(/\.(?=[^.]*$)/);
          const title = model.get("schema")[message]?.[name]?.help.replaceAll("`", "") ?? "";
          const unit = field.unit ? make("span", { class: "tnb-unit" }, field.unit) : null;
          return make("label", { class: "tnb-row", title }, make("span", {}, field.label), control, unit);
        });
        const head = section.folded ? "summary" : "h4";
        return make(section.folded ? "details" : "section", {}, make(head, {}, section.title), ...rows);
      }),
    );
  }

  return {
    element,
    /** @param {FormSection[] | null} sections */
    draw(sections) {
      element.classList.toggle("tnb-stale", !sections);
      for (const control of element.elements) /** @type {FormControl} */ (control).disabled = !sections;
      if (!sections) return;
      const next = JSON.stringify(sections.map((s) => [s.title, s.fields.map((f) => [f.path, f.choices])]));
      if (next !== shape) build(sections);
      shape = next;
      for (const field of sections.flatMap((section) => section.fields)) {
        /** @type {FormControl} */
        const control = element.querySelector(`[data-path="${CSS.escape(field.path)}"]`);
        control.placeholder = field.hint ?? "";
        showValue(field, control);
      }
    },
  };
}

export { createForm };
