// The text of a config.pbtxt: its tokens, and which message and field an offset is in.

import { make } from "../shared/dom.js";

const TOKEN = new RegExp([
  /(#.*)/, /("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)/, // comment, string
  /([A-Za-z_]\w*)/, /(-?\b\d[\w.+-]*)/, /([^\s\w"'#]|-)/, /(\s+)/, // word, number, symbol, space
].map((part) => part.source).join("|"), "g");
const IS_FIELD = /^\s*[:{<[]/; // what follows the name of a field
const TAB = 8;

/** @param {RegExpMatchArray} match @param {string} rest */
function kindOf(match, rest) {
  const [, comment, string, word, number, symbol] = match;
  if (comment) return "comment";
  if (string) return "string";
  if (word) return IS_FIELD.test(rest) ? "field" : "value";
  if (number) return "number";
  return symbol ? "symbol" : "";
}

// The tokens of a line as elements; those at the offsets in `bad` are marked, also one after the end of the line.
/** @param {string} line @param {number[]} bad @returns {Child[]} */
function highlight(line, bad) {
  const nodes = [];
  for (const match of line.matchAll(TOKEN)) {
    const end = match.index + match[0].length;
    const kind = kindOf(match, line.slice(end));
    const isBad = kind && bad.some((offset) => offset >= match.index && offset < end);
    const name = isBad ? `tnb-${kind} tnb-bad` : `tnb-${kind}`;
    nodes.push(kind ? make("span", { class: name }, match[0]) : match[0]);
  }
  if (bad.some((offset) => offset >= line.trimEnd().length)) {
    nodes.push(make("span", { class: "tnb-bad tnb-missing" }, " "));
  }
  return nodes;
}

// Columns are counted as in protobuf: a tab extends to the next multiple of eight, other characters count by bytes.
/** @param {string} line @param {number} column */
function offsetInLine(line, column) {
  let offset = 0;
  let current = 1;
  for (const character of line) {
    if (current >= column) break;
    current += character === "\t" ? TAB - ((current - 1) % TAB) : new TextEncoder().encode(character).length;
    offset += character.length;
  }
  return offset;
}

/** @param {string} text @param {number} line @param {number} column */
function offsetOf(text, line, column) {
  const lines = text.split("\n");
  const before = lines.slice(0, line - 1).reduce((sum, { length }) => sum + length + 1, 0);
  return before + offsetInLine(lines[line - 1] ?? "", column);
}

// The messages that are open at an offset, from the outermost, and the field that was named last in the innermost.
// Each message has its name, the field that it is the value of, and the fields that are set before the offset.
/** @param {string} text @param {number} offset @param {Schema} schema */
function scopeAt(text, offset, schema) {
  const open = [{ message: "ModelConfig", field: null, set: new Set() }];
  let field = null;
  for (const match of text.matchAll(TOKEN)) {
    const [whole, , , word, , symbol] = match;
    if (match.index > offset) break;
    const isBefore = match.index + whole.length <= offset;
    if (word && IS_FIELD.test(text.slice(match.index + word.length))) {
      field = word;
      if (isBefore) open.at(-1).set.add(word);
    }
    if (!symbol || !isBefore) continue;
    if (symbol === "{" || symbol === "<") {
      open.push({ message: schema[open.at(-1).message]?.[field]?.message, field, set: new Set() });
    } else if ((symbol === "}" || symbol === ">") && open.length > 1) {
      field = open.pop().field;
    }
  }
  return { open, field };
}

// The path of messages and fields at an offset: [["ModelConfig", "dynamic_batching"], ...].
/** @param {string} text @param {number} offset @param {Schema} schema */
function fieldsAt(text, offset, schema) {
  const { open, field } = scopeAt(text, offset, schema);
  const path = open.slice(1).map(({ field: name }, index) => [open[index].message, name]);
  const last = open.at(-1).message;
  return schema[last]?.[field] ? [...path, [last, field]] : path;
}

// The indentation of a new line after `before`.
/** @param {string} before */
function indentAfter(before) {
  const line = before.slice(before.lastIndexOf("\n") + 1);
  return line.match(/^\s*/)[0] + (/[{[<]\s*$/.test(line) ? "  " : "");
}

export { fieldsAt, highlight, indentAfter, offsetInLine, offsetOf, scopeAt };
