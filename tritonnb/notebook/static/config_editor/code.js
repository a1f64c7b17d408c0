// The text pane: a transparent textarea over the highlighted text, line numbers, and the help of a field.

import { make } from "../shared/dom.js";
import { createCompletion, propose } from "./completion.js";
import { UndoHistory } from "./history.js";
import { fieldsAt, highlight, indentAfter, offsetInLine, offsetOf } from "./text.js";

const HINT = "Ctrl+Space lists the fields, Ctrl+Enter applies, Ctrl+Z undoes changes of the text and of the form.";
const TYPING = ["insertText", "deleteContentBackward", "deleteContentForward"];

// Text in which `code` is marked by backquotes.
/** @param {string} text */
function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

/** @param {string} path @param {{ type: string, help: string, values?: string[] }} field */
function describeField(path, field) {
  const values = field.values ? ` One of ${field.values.join(", ")}.` : "";
  return [make("code", {}, path), ` (${field.type}) `, ...withCode(field.help), values];
}

// Where a character of a line is on the screen.
/** @param {Element} line @param {number} offset */
function characterRect(line, offset) {
  const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  let left = offset;
  while (walker.nextNode()) {
    const { length } = /** @type {Text} */ (walker.currentNode);
    if (left <= length) {
      const range = document.createRange();
      range.setStart(walker.currentNode, left);
      return range.getBoundingClientRect();
    }
    left -= length;
  }
  return line.getBoundingClientRect();
}

/** @param {Problem[]} problems @returns {Map<number, Problem[]>} */
function groupByLine(problems) {
  const lines = new Map();
  for (const problem of problems) lines.set(problem.line, [...(lines.get(problem.line) ?? []), problem]);
  return lines;
}

/** @param {string} text @param {Problem[]} problems @param {HTMLElement} shown @param {HTMLElement} gutter */
function drawLines(text, problems, shown, gutter) {
  const lines = text.split("\n");
  const bad = groupByLine(problems);
  shown.replaceChildren(...lines.map((line, index) => {
    const offsets = (bad.get(index + 1) ?? []).map(({ column }) => offsetInLine(line, column));
    return make("div", { class: "tnb-line" }, ...highlight(line, offsets), "\u200b");
  }));
  gutter.replaceChildren(...lines.map((_, index) => {
    const messages = (bad.get(index + 1) ?? []).map(({ message }) => message).join("\n");
    const number = `${index + 1}`;
    return make("div", { class: messages ? "tnb-bad" : "", title: messages }, messages ? "●" : "", number);
  }));
}

let editors = 0;

// `onEdit(isTyping)` is called after each change by the user; `hint` is shown where a field to describe is missing.
/** @param {WidgetModel<CodeState>} model @param {(isTyping: boolean) => void} onEdit */
function createCode(model, onEdit, hint = HINT) {
  const gutter = make("div", { class: "tnb-gutter", aria: { hidden: "true" } });
  const shown = make("pre", { class: "tnb-shown", aria: { hidden: "true" } });
  editors += 1;
  const help = make("div", { class: "tnb-help", id: `tnb-help-${editors}`, aria: { live: "polite" } });
  const input = make("textarea", {
    class: "tnb-input", spellcheck: false, autocapitalize: "off", wrap: "off",
    aria: { label: `config.pbtxt of ${model.get("model")}`, describedby: help.id },
  });
  const sheet = make("div", { class: "tnb-sheet" }, shown, input);
  const element = make("div", { class: "tnb-code" }, gutter, sheet);
  const history = new UndoHistory(model.get("text"));
  const completion = createCompletion(input, {
    choose: insert,
    describe: (proposal) => help.replaceChildren(...describeField(proposal.label, proposal)),
  });

  function draw() {
    const { problems = [], text } = model.get("report");
    drawLines(input.value, text === input.value ? problems : [], shown, gutter);
  }

  function describe() {
    const path = fieldsAt(input.value, input.selectionStart, model.get("schema"));
    const [message, name] = path.at(-1) ?? [];
    const field = model.get("schema")[message]?.[name];
    help.replaceChildren(...(field ? describeField(path.map(([, part]) => part).join("."), field) : [hint]));
  }

  // The list is placed in the widget, which does not clip it as the text pane would.
  /** @param {HTMLElement} list */
  function placeList(list) {
    const before = input.value.slice(0, input.selectionStart).split("\n");
    const caret = characterRect(shown.children[before.length - 1], before.at(-1).length);
    const frame = list.offsetParent.getBoundingClientRect();
    const below = caret.bottom - frame.top + 2;
    const isLow = below + list.offsetHeight > frame.height && caret.top - frame.top > list.offsetHeight;
    list.style.top = `${isLow ? caret.top - frame.top - list.offsetHeight - 2 : below}px`;
    list.style.left = `${Math.max(4, Math.min(caret.left - frame.left, frame.width - list.offsetWidth - 4))}px`;
  }

  function complete() {
    const proposed = propose(input.value, input.selectionStart, model.get("schema"));
    completion.open(proposed, placeList);
  }

  /** @param {string} kind */
  function changed(kind) {
    history.record(input.value, input.selectionEnd, kind);
    draw();
    describe();
    onEdit(kind !== "");
  }

  /** @param {Proposal} proposal @param {string} word */
  function insert({ insert: text, back }, word) {
    const caret = input.selectionStart;
    const after = input.value.slice(caret);
    const isNamed = /^\s*[:{<[]/.test(after); // only the name is completed, what follows it stays
    const inserted = isNamed ? text.match(/^\w+/)[0] : text;
    input.setRangeText(inserted, caret - word.length, caret, "end");
    if (!isNamed) input.selectionStart = input.selectionEnd -= back;
    changed("");
    if (!isNamed && /: $/.test(inserted)) complete();
  }

  // Replaces the text and keeps the caret in place, as far as the text before it is unchanged.
  /** @param {string} text */
  function replace(text) {
    const old = input.value;
    let start = 0;
    while (start < old.length && old[start] === text[start]) start += 1;
    let end = 0;
    while (end < Math.min(old.length, text.length) - start && old.at(-1 - end) === text.at(-1 - end)) end += 1;
    const selects = input.selectionStart !== input.selectionEnd;
    input.setRangeText(text.slice(start, text.length - end), start, old.length - end, "preserve");
    if (!selects) input.selectionEnd = input.selectionStart;
    completion.close();
    draw();
    describe();
  }

  /** @param {number} steps */
  function undo(steps) {
    const state = history.move(steps);
    if (!state) return;
    replace(state.text);
    input.setSelectionRange(state.caret, state.caret);
    onEdit(false);
  }

  input.addEventListener("input", (event) => {
    const { inputType, data } = /** @type {InputEvent} */ (event);
    changed(TYPING.includes(inputType) ? inputType : "");
    const isWord = inputType === "insertText" && /[A-Za-z_]$/.test(data ?? "");
    if (isWord || completion.isOpen()) complete();
  });
  input.addEventListener("beforeinput", (event) => {
    const steps = { historyUndo: -1, historyRedo: 1 }[event.inputType];
    if (!steps) return;
    event.preventDefault();
    undo(steps);
  });
  for (const event of ["click", "blur"]) input.addEventListener(event, completion.close);
  for (const event of ["keyup", "click", "focus"]) {
    input.addEventListener(event, () => { if (!completion.isOpen()) describe(); });
  }
  input.addEventListener("keydown", (event) => {
    if (completion.handle(event)) return;
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      complete();
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      input.setRangeText(`\n${indentAfter(input.value.slice(0, input.selectionStart))}`,
        input.selectionStart, input.selectionEnd, "end");
      changed("");
    }
  });

  return {
    element, help, draw, describe, input, undo, completion,
    /** @param {string} text */
    setText(text) {
      if (input.value === text) return;
      replace(text);
      history.record(text, input.selectionEnd);
    },
    /** @param {number} line @param {number} column */
    goTo(line, column) {
      input.focus();
      const offset = offsetOf(input.value, line, column);
      input.setSelectionRange(offset, offset);
      shown.children[line - 1]?.scrollIntoView({ block: "nearest" });
      describe();
    },
  };
}

export { createCode };
