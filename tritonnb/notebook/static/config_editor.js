// The configuration editor: config.pbtxt as highlighted text, the form beside it, and the kernel's check of both.
// The kernel sends `report` (problems, form, effect, diff) and `status`; nothing is checked in the browser.

const CHECK_AFTER_MS = 250;
const TOKEN = new RegExp([
  /(#.*)/, /("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)/, // comment, string
  /([A-Za-z_]\w*)/, /(-?\b\d[\w.+-]*)/, /([^\s\w"'#]+|-)/, /(\s+)/, // word, number, symbol, space
].map((part) => part.source).join("|"), "g");

function make(tag, properties = {}, ...children) {
  const { class: name, data, aria, ...rest } = properties;
  const node = Object.assign(document.createElement(tag), rest);
  if (name) node.className = name;
  Object.assign(node.dataset, data ?? {});
  for (const [key, value] of Object.entries(aria ?? {})) node.setAttribute(`aria-${key}`, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

// Text in which `code` is marked by backquotes.
function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

// --- the text -----------------------------------------------------------------------------------

function kindOf(match, rest) {
  const [, comment, string, word, number, symbol] = match;
  if (comment) return "comment";
  if (string) return "string";
  if (word && /^\s*[:{<[]/.test(rest)) return "field";
  if (word) return "value";
  if (number) return "number";
  return symbol ? "symbol" : "";
}

function highlight(line) {
  const nodes = [];
  for (const match of line.matchAll(TOKEN)) {
    const kind = kindOf(match, line.slice(match.index + match[0].length));
    nodes.push(kind ? make("span", { class: `tnb-${kind}` }, match[0]) : match[0]);
  }
  return nodes;
}

// Columns are counted as in protobuf: a tab extends to the next multiple of eight, other characters count by bytes.
function offsetOf(text, line, column) {
  const lines = text.split("\n");
  let offset = lines.slice(0, line - 1).reduce((sum, { length }) => sum + length + 1, 0);
  let current = 1;
  for (const character of lines[line - 1] ?? "") {
    if (current >= column) break;
    current += character === "\t" ? 8 - ((current - 1) % 8) : new TextEncoder().encode(character).length;
    offset += character.length;
  }
  return offset;
}

// The path of messages and fields at an offset: [["ModelConfig", "dynamic_batching"], ...].
function fieldsAt(text, offset, schema) {
  const open = [{ message: "ModelConfig" }];
  let field = null;
  for (const match of text.matchAll(TOKEN)) {
    const [whole, comment, string, word, , symbol] = match;
    const before = match.index + whole.length <= offset;
    if (match.index > offset) break;
    if (word && /^\s*[:{<[]/.test(text.slice(match.index + word.length))) field = word;
    if (!symbol || !before) continue;
    for (const bracket of symbol) {
      const message = schema[open.at(-1)?.message]?.[field]?.message;
      if (bracket === "{" || bracket === "<") open.push({ message, field });
      else if ((bracket === "}" || bracket === ">") && open.length > 1) field = open.pop().field;
    }
  }
  const path = open.slice(1).map(({ field: name }, index) => [open[index].message, name]);
  const last = open.at(-1).message;
  return schema[last]?.[field] ? [...path, [last, field]] : path;
}

function createCode(model, onEdit) {
  const gutter = make("div", { class: "tnb-gutter", aria: { hidden: "true" } });
  const shown = make("pre", { class: "tnb-shown", aria: { hidden: "true" } });
  const input = make("textarea", {
    class: "tnb-input", spellcheck: false, autocapitalize: "off", wrap: "off",
    aria: { label: `config.pbtxt of ${model.get("model")}` },
  });
  const help = make("div", { class: "tnb-help", aria: { live: "polite" } });
  const element = make("div", { class: "tnb-code" }, gutter, make("div", { class: "tnb-sheet" }, shown, input));

  function draw() {
    const lines = input.value.split("\n");
    const { problems = [], text } = model.get("report");
    const bad = text === input.value ? new Map(problems.map(({ line, message }) => [line, message])) : new Map();
    shown.replaceChildren(
      ...lines.map((line, index) =>
        make("div", { class: bad.has(index + 1) ? "tnb-line tnb-bad" : "tnb-line" }, ...highlight(line), "\u200b")),
    );
    gutter.replaceChildren(
      ...lines.map((_, index) => {
        const message = bad.get(index + 1);
        return make("div", { class: message ? "tnb-bad" : "", title: message ?? "" },
          message ? "●" : "", `${index + 1}`);
      }),
    );
  }

  function describe() {
    const path = fieldsAt(input.value, input.selectionStart, model.get("schema"));
    const [message, name] = path.at(-1) ?? [];
    const field = model.get("schema")[message]?.[name];
    if (!field) {
      help.replaceChildren("Place the cursor on a field to see its description.");
      return;
    }
    const values = field.values ? ` One of ${field.values.join(", ")}.` : "";
    help.replaceChildren(
      make("code", {}, path.map(([, part]) => part).join(".")), ` (${field.type}) `, ...withCode(field.help), values,
    );
  }

  input.addEventListener("input", () => { draw(); describe(); onEdit(); });
  for (const event of ["keyup", "click", "focus"]) input.addEventListener(event, describe);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      const before = input.value.slice(0, input.selectionStart);
      const line = before.slice(before.lastIndexOf("\n") + 1);
      const indent = line.match(/^\s*/)[0] + (/[{[<]\s*$/.test(line) ? "  " : "");
      event.preventDefault();
      document.execCommand("insertText", false, `\n${indent}`);
    }
  });

  return {
    element, help, draw, describe, input,
    // Keeps the cursor in place, as far as the text before it is unchanged.
    setText(text) {
      const old = input.value;
      if (old === text) return;
      let start = 0;
      while (start < old.length && old[start] === text[start]) start += 1;
      let end = 0;
      while (end < Math.min(old.length, text.length) - start && old.at(-1 - end) === text.at(-1 - end)) end += 1;
      const selects = input.selectionStart !== input.selectionEnd;
      input.setRangeText(text.slice(start, text.length - end), start, old.length - end, "preserve");
      if (!selects) input.selectionEnd = input.selectionStart;
      draw();
      describe();
    },
    goTo(line, column) {
      input.focus();
      const offset = offsetOf(input.value, line, column);
      input.setSelectionRange(offset, offset);
      shown.children[line - 1]?.scrollIntoView({ block: "nearest" });
      describe();
    },
  };
}

// --- the form -----------------------------------------------------------------------------------

function valueOf(field, control) {
  if (field.kind === "bool") return control.checked;
  if (field.kind === "ints") return control.value.split(/[\s,]+/).filter(Boolean).map(Number);
  if (field.kind === "choice" || control.value === "") return control.value;
  return Number(control.value);
}

function show(field, control) {
  if (control.dataset.dirty) return; // the user is typing
  if (field.kind === "bool") control.checked = field.value;
  else if (field.kind === "ints") control.value = field.value.join(", ");
  else control.value = field.value === 0 && field.hint ? "" : field.value;
}

function createControl(field) {
  if (field.kind === "choice") {
    return make("select", {}, ...field.choices.map(([value, text]) => make("option", { value }, text)));
  }
  const type = { bool: "checkbox", ints: "text" }[field.kind] ?? "number";
  const control = make("input", { type, placeholder: field.hint ?? "" });
  if (type === "number") Object.assign(control, { min: 0, step: field.kind === "float" ? 0.05 : 1 });
  if (field.kind === "ints") control.inputMode = "numeric";
  return control;
}

function createForm(model, onSet) {
  const element = make("form", { class: "tnb-form", aria: { label: "Fields" } });
  element.addEventListener("submit", (event) => event.preventDefault());
  let shape = "";

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
            else show(field, control);
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
    draw(sections) {
      element.classList.toggle("tnb-stale", !sections);
      for (const control of element.elements) control.disabled = !sections;
      if (!sections) return;
      const next = JSON.stringify(sections.map((s) => [s.title, s.fields.map((f) => [f.path, f.choices])]));
      if (next !== shape) build(sections);
      shape = next;
      for (const field of sections.flatMap((section) => section.fields)) {
        const control = element.querySelector(`[data-path="${CSS.escape(field.path)}"]`);
        control.placeholder = field.hint ?? "";
        show(field, control);
      }
    },
  };
}

// --- problems, differences, buttons ----------------------------------------------------------------

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

function diffRows(lines) {
  return lines.slice(2).map((line) => {
    const kind = { "+": "tnb-added", "-": "tnb-removed", "@": "tnb-place" }[line[0]] ?? "";
    return make("div", { class: kind }, line);
  });
}

const APPLY = {
  "in place": ["Apply in place", "Only the scheduling changes: the model is not reloaded"],
  reloaded: ["Apply by reloading", "A new copy is loaded and replaces the old one"],
  loaded: ["Apply by loading", "The model failed to load: try again with this configuration"],
  unchanged: ["Apply", "This is the running configuration"],
  "": ["Apply", "Correct the problems first"],
};

function render({ model, el }) {
  let waiting = null;
  const flush = () => {
    clearTimeout(waiting);
    waiting = null;
    if (model.get("text") === code.input.value) return;
    model.set("text", code.input.value);
    model.save_changes();
  };
  const replace = (text) => { code.setText(text); flush(); };
  const code = createCode(model, () => {
    clearTimeout(waiting);
    waiting = setTimeout(flush, CHECK_AFTER_MS);
    drawButtons();
  });
  const form = createForm(model, (path, value) => { flush(); model.send({ action: "set", path, value }); });
  const act = (action) => () => { flush(); model.send({ action }); };
  const button = (text, onclick) => make("button", { type: "button", onclick }, text);

  const apply = button("Apply", act("apply"));
  const revert = button("Revert", act("revert"));
  const save = button("Save", act("save"));
  const differences = button("Diff", () => { diff.hidden = !diff.hidden; drawButtons(); });
  const takeFile = button("Use the file's text", act("take_file"));
  apply.classList.add("tnb-primary");
  const outcome = make("span", { class: "tnb-outcome", aria: { live: "polite" } });
  const outside = make("div", { class: "tnb-outside" }, "The file was changed outside of this editor.", takeFile);
  const problems = make("ul", { class: "tnb-problems", aria: { live: "polite" } });
  const diffLabel = "Changes to the running configuration";
  const diff = make("pre", { class: "tnb-diff", hidden: true, aria: { label: diffLabel } });
  const file = make("span", { class: "tnb-file" });
  const preview = make("p", { class: "tnb-preview", aria: { live: "polite" } });

  function drawButtons() {
    const report = model.get("report");
    const { busy, loaded, ended, file: path } = model.get("status");
    const known = report.text === code.input.value;
    const [label, title] = APPLY[(known && report.effect) || ""];
    apply.textContent = label;
    apply.title = title;
    apply.disabled = ended || busy || !loaded || !known || !report.effect || report.effect === "unchanged";
    revert.disabled = ended || busy || (known && !report.diff?.length);
    save.hidden = !path;
    save.disabled = ended || busy || !known || !report.effect;
    takeFile.disabled = ended || busy;
    differences.setAttribute("aria-pressed", String(!diff.hidden));
    code.input.readOnly = ended;
  }

  function drawReport() {
    const report = model.get("report");
    if (report.text !== code.input.value) return;
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

  const text = make("div", { class: "tnb-text" }, code.element, code.help, problems, preview, diff);
  const root = make(
    "div", { class: "tnb-config-editor tnb-live", data: { lmSuppressShortcuts: "true" } },
    make("header", {}, make("strong", {}, model.get("model")), file, outcome),
    outside,
    make("div", { class: "tnb-panes" }, text, form.element),
    make("footer", {}, apply, revert, differences, save),
  );
  const parts = { "change:text": drawText, "change:report": drawReport, "change:status": drawStatus };
  parts["change:preview"] = drawPreview;
  for (const [event, listener] of Object.entries(parts)) model.on(event, listener);
  el.append(root);
  code.setText(model.get("text"));
  code.draw();
  drawReport();
  drawStatus();
  code.describe();
  return () => {
    clearTimeout(waiting);
    for (const [event, listener] of Object.entries(parts)) model.off(event, listener);
  };
}

export default { render };
