// Service times: how long an execution takes, by the rows of its batch.

import { make } from "../shared/dom.js";
import { checkNumber, choice, numberField } from "./fields.js";

const KINDS = { fixed: "fixed", linear: "linear in the rows", table: "table by rows" };
/** @type {Record<ServiceKind, Service>} */
const DEFAULTS = {
  fixed: { kind: "fixed", ms: 20 },
  linear: { kind: "linear", per_row_ms: 1, base_ms: 10 },
  table: { kind: "table", ms: { 1: 10, 8: 20 } },
};

/** @param {(service: Service) => void} onChange */
function createService(onChange) {
  const element = make("div", { class: "tnb-service" });
  /** @type {Service} */
  let service = DEFAULTS.fixed;

  const change = (changed) => {
    service = changed;
    onChange(service);
  };

  // The times of a table by their numbers of rows.
  const times = () => /** @type {ServiceTable} */ (service).ms;

  function parameters() {
    if (service.kind === "fixed") {
      return [numberField({ label: "every execution takes", value: service.ms, unit: "ms" },
        (ms) => change({ ...service, ms }))];
    }
    if (service.kind === "linear") {
      return [["per_row_ms", "per row"], ["base_ms", "per execution"]].map(([name, label]) =>
        numberField({ label, value: service[name], unit: "ms" }, (value) => change({ ...service, [name]: value })));
    }
    const rows = Object.entries(times()).map(([size, ms]) => tableRow(size, ms));
    const add = make("button", { type: "button", onclick: addRow }, "Add a size");
    return [make("table", { class: "tnb-times" },
      make("thead", {}, make("tr", {}, ...["rows", "ms"].map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows)), add];
  }

  /** @param {string} size @param {number} ms */
  function tableRow(size, ms) {
    const rename = (newer) => {
      const { [size]: time, ...others } = times();
      if (!(newer in others)) show({ kind: "table", ms: { ...others, [newer]: time } }, true);
    };
    const rows = make("input", { type: "number", value: size, min: 1, step: 1, aria: { label: "rows" } });
    rows.addEventListener("change", () => { if (rows.validity.valid && rows.value) rename(rows.value); });
    const label = `ms of ${size} rows`;
    const time = make("input", { type: "number", value: ms, min: 0, step: "any", aria: { label } });
    const problem = checkNumber(time, (number) => change({ kind: "table", ms: { ...times(), [size]: number } }));
    const remove = make("button", { type: "button", aria: { label: `remove ${size} rows` } }, "×");
    remove.disabled = Object.keys(times()).length < 2;
    remove.addEventListener("click", () => {
      const { [size]: _, ...others } = times();
      show({ kind: "table", ms: others }, true);
    });
    return make("tr", {}, make("td", {}, rows), make("td", {}, time, problem), make("td", {}, remove));
  }

  function addRow() {
    const sizes = Object.keys(times()).map(Number);
    const last = Math.max(...sizes);
    show({ kind: "table", ms: { ...times(), [last * 2]: times()[last] } }, true);
  }

  /** @param {Service} newer */
  function show(newer, tell = false) {
    service = newer;
    const kind = choice("Service times", service.kind, KINDS, (name) => show(DEFAULTS[name], true));
    element.replaceChildren(kind, ...parameters());
    if (tell) onChange(service);
  }

  return { element, show };
}

export { createService };
