// Arrivals: generated ones by their parameters, or single requests as a table and on a timeline.

import { make } from "../shared/dom.js";
import { choice, numberField } from "./fields.js";
import { createTimeline } from "./timeline.js";

const KINDS = {
  list: "single requests", constant: "at equal intervals", poisson: "Poisson process", bursts: "bursts",
  closed: "closed loop of clients",
};
/** @type {Record<ArrivalKind, Arrivals>} */
const DEFAULTS = {
  list: { kind: "list", requests: [{ ms: 0, rows: 1 }] },
  constant: { kind: "constant", rate: 100, duration: 0.2, rows: 1 },
  poisson: { kind: "poisson", rate: 200, duration: 0.3, seed: 1, rows: 1 },
  bursts: { kind: "bursts", requests: 8, every_ms: 50, duration: 0.2, rows: 1 },
  closed: { kind: "closed", clients: 4, requests: 40, think_ms: 0, rows: 1 },
};
/** @type {Record<string, { label: string, unit?: string, min?: number, step?: number }>} */
const PARAMETERS = {
  rate: { label: "rate", unit: "requests/s" }, duration: { label: "duration", unit: "s" },
  seed: { label: "seed", step: 1 }, rows: { label: "rows of a request", min: 1, step: 1 },
  requests: { label: "requests", min: 1, step: 1 }, every_ms: { label: "every", unit: "ms" },
  clients: { label: "clients", min: 1, step: 1 }, think_ms: { label: "time between response and request", unit: "ms" },
};
// The columns of the table, and the text of a configuration in which they have an effect.
/** @type {ArrivalColumn[]} */
const COLUMNS = [
  { name: "ms", label: "time (ms)", type: "number", step: "any", min: 0 },
  { name: "rows", label: "rows", type: "number", step: 1, min: 1 },
  { name: "priority", label: "priority", type: "number", step: 1, min: 0, for: /priority_levels/ },
  { name: "timeout_us", label: "timeout (µs)", type: "number", step: 1, min: 0, for: /allow_timeout_override/ },
  { name: "sequence", label: "sequence", type: "text", for: /sequence_batching/ },
  { name: "start", label: "START", type: "checkbox", for: /sequence_batching/ },
  { name: "end", label: "END", type: "checkbox", for: /sequence_batching/ },
  { name: "steps", label: "steps", type: "number", step: 1, min: 1, for: /iterative_sequence/ },
  { name: "cancel_ms", label: "cancelled (ms)", type: "number", step: "any", min: 0, for: null },
];
const MOST_ROWS = 200;

// A number with at most three decimals, as a cell shows it.
/** @type {(value: string | number) => string | number} */
const shorten = (value) => (typeof value === "number" ? Number(value.toFixed(3)) : value);

// The value of a cell; undefined for an empty number.
/** @param {HTMLInputElement} input */
function valueOf(input) {
  if (input.type === "checkbox") return input.checked;
  if (input.type === "text") return input.value;
  return input.value === "" ? undefined : Number(input.value);
}

/** @param {(arrivals: Arrivals) => void} onChange */
function createArrivals(onChange) {
  const element = make("div", { class: "tnb-arrivals" });
  const head = make("div", { class: "tnb-fields" });
  const picture = make("div", { class: "tnb-picture-frame" });
  const table = make("div", { class: "tnb-requests", tabIndex: 0, role: "region", aria: { label: "requests" } });
  const timeline = createTimeline((index, ms) => {
    const requests = arrivals.requests.map((request, at) => (at === index ? { ...request, ms } : request));
    change({ ...arrivals, requests });
    /** @type {HTMLInputElement} */
    const cell = table.querySelector(`tr[data-index="${index}"] input`);
    if (cell) cell.value = String(shorten(ms));
  });
  picture.append(timeline.element);
  element.append(head, picture, table);
  new ResizeObserver(() => timeline.draw()).observe(picture);
  /** @type {Arrivals} */
  let arrivals = DEFAULTS.list;
  let config = "";
  /** @type {ArrivalRequest[]} */
  let generated = []; // what the simulation used, to show it and to edit it as a table

  /** @param {Arrivals} newer */
  function change(newer) {
    arrivals = newer;
    onChange(arrivals);
  }

  /** @param {Arrivals} newer */
  function replace(newer) {
    show(newer, config);
    onChange(arrivals);
  }

  function visibleColumns() {
    return COLUMNS.filter(({ name, for: applies }) =>
      applies === undefined || applies?.test(config) || arrivals.requests.some((request) => request[name]));
  }

  /** @param {ArrivalColumn} column @param {ArrivalRequest} request @param {number} index */
  function cell(column, request, index) {
    const { name, type, label, step, min } = column;
    const input = make("input", { type, aria: { label: `${label} of request ${index + 1}` } });
    const standard = name === "rows" || name === "steps" ? 1 : "";
    if (type === "checkbox") input.checked = Boolean(request[name]);
    else {
      const value = /** @type {number | string} */ (request[name] ?? standard);
      Object.assign(input, { value: shorten(value), step, min });
    }
    input.addEventListener(type === "checkbox" ? "change" : "input", () => {
      if (!input.validity.valid || (["ms", "rows"].includes(name) && input.value === "")) return;
      const value = valueOf(input);
      const requests = arrivals.requests.map((other, at) => (at === index ? { ...other, [name]: value } : other));
      change({ ...arrivals, requests });
      timeline.show(requests, true);
    });
    return make("td", {}, input);
  }

  /** @param {ArrivalColumn[]} columns @param {ArrivalRequest} request @param {number} index */
  function tableRow(columns, request, index) {
    const remove = make("button", { type: "button", aria: { label: `remove request ${index + 1}` } }, "×");
    remove.addEventListener("click", () =>
      replace({ ...arrivals, requests: arrivals.requests.filter((_, at) => at !== index) }));
    remove.disabled = arrivals.requests.length < 2;
    return make("tr", { data: { index } }, make("th", { scope: "row" }, `${index + 1}`),
      ...columns.map((column) => cell(column, request, index)), make("td", {}, remove));
  }

  function addRequest() {
    const last = arrivals.requests.at(-1) ?? { ms: -10, rows: 1 };
    const { start: _, end: __, ...copied } = last;
    replace({ ...arrivals, requests: [...arrivals.requests, { ...copied, ms: last.ms + 10 }] });
    table.querySelector("tbody tr:last-child input")?.focus();
  }

  function drawTable() {
    if (arrivals.kind !== "list") {
      table.replaceChildren();
      return;
    }
    const columns = visibleColumns();
    const shown = arrivals.requests.slice(0, MOST_ROWS);
    const omitted = arrivals.requests.length - shown.length;
    const heads = columns.map(({ label }) => make("th", { scope: "col" }, label));
    table.replaceChildren(
      make("table", {},
        make("thead", {}, make("tr", {}, make("td", {}), ...heads, make("td", {}))),
        make("tbody", {}, ...shown.map((request, index) => tableRow(columns, request, index)))),
      omitted ? make("p", { class: "tnb-note" }, `${omitted} more requests are not listed.`) : "",
      make("button", { type: "button", onclick: addRequest }, "Add a request"),
    );
  }

  function drawHead() {
    const kind = choice("Arrivals", arrivals.kind, KINDS, (name) =>
      replace(name === "list" && generated.length ? { kind: "list", requests: generated } : DEFAULTS[name]));
    const fields = arrivals.kind === "list" ? [] : Object.entries(DEFAULTS[arrivals.kind]).flatMap(([name, standard]) =>
      name === "kind" ? [] : [numberField({ ...PARAMETERS[name], value: arrivals[name] ?? standard },
        (value) => change({ ...arrivals, [name]: value }))]);
    const title = "as a table, with marks that can be dragged";
    const edit = make("button", { type: "button", title }, "Edit single requests");
    edit.addEventListener("click", () => replace({ kind: "list", requests: generated }));
    head.replaceChildren(kind, ...fields, ...(arrivals.kind === "list" ? [] : [edit]));
  }

  /** @param {Arrivals} newer @param {string} text */
  function show(newer, text) {
    arrivals = newer;
    config = text;
    drawHead();
    drawTable();
    timeline.show(arrivals.kind === "list" ? arrivals.requests : generated, arrivals.kind === "list");
  }

  return {
    element,
    show,
    // Columns appear when the configuration uses them.
    /** @param {string} text */
    showConfig(text) {
      const before = arrivals.kind === "list" ? visibleColumns().length : 0;
      config = text;
      if (arrivals.kind === "list" && visibleColumns().length !== before) drawTable();
    },
    /** @param {ArrivalRequest[]} requests */
    showGenerated(requests) {
      generated = requests;
      if (arrivals.kind !== "list") timeline.show(requests, false);
    },
  };
}

export { createArrivals };
