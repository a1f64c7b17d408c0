// Completion of field names and of the values of enums and booleans, from the schema of the model configuration.

import { make } from "../shared/dom.js";
import { scopeAt } from "./text.js";

const MOST = 60;

// What is inserted for a field, and how far the caret stands from its end.
/** @param {string} name @param {SchemaField} field @returns {[insert: string, back: number]} */
function insertion(name, { type, message }) {
  if (message) return [`${name} {  }`, 2];
  if (type.startsWith("repeated ")) return [`${name}: [  ]`, 2];
  return type === "string" ? [`${name}: ""`, 1] : [`${name}: `, 0];
}

/** @param {SchemaField | undefined} field @returns {Proposal[]} */
function proposeValues(field) {
  const values = field?.values ?? (field?.type.endsWith("bool") ? ["true", "false"] : []);
  return values.map((value) => ({ label: value, type: field.type, help: field.help, insert: value, back: 0 }));
}

/** @param {Scope} scope @param {Schema} schema @returns {Proposal[]} */
function proposeFields({ message, set }, schema) {
  return Object.entries(schema[message] ?? {})
    .filter(([name, field]) => field.type.startsWith("repeated ") || !set.has(name))
    .map(([name, field]) => {
      const [insert, back] = insertion(name, field);
      return { label: name, type: field.type, help: field.help, insert, back };
    });
}

// The proposals at an offset: those that begin with the word before it first, then those that contain it.
/** @param {string} text @param {number} offset @param {Schema} schema */
function propose(text, offset, schema) {
  const before = text.slice(0, offset);
  const word = before.match(/[A-Za-z_]\w*$/)?.[0] ?? "";
  const lead = before.slice(0, before.length - word.length);
  if (/#[^\n]*$/.test(lead) || /["'\d]$/.test(lead)) return { word, proposals: [] };
  const { open, field } = scopeAt(lead, lead.length, schema);
  const isValue = /:\s*$/.test(lead) || /:\s*\[[^\]{}]*$/.test(lead);
  const named = lead.match(/([A-Za-z_]\w*)\s*:\s*(?:\[[^\]{}]*)?$/)?.[1] ?? field;
  const scope = open.at(-1);
  const all = isValue ? proposeValues(schema[scope.message]?.[named]) : proposeFields(scope, schema);
  const wanted = word.toLowerCase();
  const ranked = [(label) => label.startsWith(wanted), (label) => label.indexOf(wanted) > 0];
  const proposals = ranked.flatMap((fits) => all.filter(({ label }) => fits(label.toLowerCase()))).slice(0, MOST);
  const isComplete = proposals.length === 1 && proposals[0].label === word;
  return { word, proposals: isComplete ? [] : proposals };
}

let lists = 0;

// The list under the caret. `choose(proposal, word)` inserts one; `describe(proposal)` shows its help.
/**
 * @param {HTMLTextAreaElement} input
 * @param {{ choose: (proposal: Proposal, word: string) => void, describe: (proposal: Proposal) => void }} actions
 */
function createCompletion(input, { choose, describe }) {
  lists += 1;
  const id = `tnb-completion-${lists}`;
  const list = make("ul", { class: "tnb-completion", id, role: "listbox", aria: { label: "Completions" } });
  const count = make("div", { class: "tnb-unseen", role: "status" });
  let shown = [];
  let active = 0;
  let word = "";
  list.hidden = true;
  input.setAttribute("aria-autocomplete", "list");

  function close() {
    list.hidden = true;
    shown = [];
    count.textContent = "";
    input.removeAttribute("aria-activedescendant");
    input.removeAttribute("aria-controls");
  }

  /** @param {number} index */
  function select(index) {
    active = (index + shown.length) % shown.length;
    for (const [number, item] of [...list.children].entries()) {
      item.setAttribute("aria-selected", String(number === active));
    }
    list.children[active].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", list.children[active].id);
    describe(shown[active]);
  }

  /** @param {number} index */
  function accept(index) {
    const proposal = shown[index];
    const typed = word;
    close();
    choose(proposal, typed);
  }

  /** @param {{ word: string, proposals: Proposal[] }} proposed @param {(list: HTMLElement) => void} place */
  function open({ word: typed, proposals }, place) {
    if (!proposals.length) {
      close();
      return;
    }
    [shown, word] = [proposals, typed];
    list.replaceChildren(...proposals.map(({ label, type }, index) => {
      const onmousedown = (event) => {
        event.preventDefault(); // the focus stays in the text
        accept(index);
      };
      const item = { role: "option", id: `${id}-${index}`, onmousedown };
      return make("li", item, make("code", {}, label), make("span", { class: "tnb-type" }, type));
    }));
    list.hidden = false;
    input.setAttribute("aria-controls", id);
    count.textContent = `${proposals.length} completions`;
    place(list);
    select(0);
  }

  // Whether the key was for the list.
  /** @param {KeyboardEvent} event */
  function handle(event) {
    if (list.hidden) return false;
    if (event.key === "ArrowDown") select(active + 1);
    else if (event.key === "ArrowUp") select(active - 1);
    else if ((event.key === "Enter" && !event.ctrlKey && !event.metaKey) || event.key === "Tab") accept(active);
    else if (event.key === "Escape") close();
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  return { list, count, open, close, handle, isOpen: () => !list.hidden };
}

export { createCompletion, propose };
