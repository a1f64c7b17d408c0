// The result of a simulation: the batch view, and what is said about it.

import { View } from "../batch_view/view.js";
import { make } from "../shared/dom.js";
import { LocalModel } from "../shared/local_model.js";
import { drawFigures } from "./figures.js";

/** @param {"td" | "th"} tag @param {unknown[]} values */
function cells(tag, values) {
  return values.map((value) => make(tag, tag === "th" ? { scope: "col" } : {}, String(value ?? "")));
}

/** @param {string[]} head @param {unknown[][]} rows @param {string} caption */
function table(head, rows, caption) {
  return make("table", {},
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...cells("th", head))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells("td", row)))));
}

/** @param {string} summary @param {string[]} head @param {unknown[][]} rows */
function keyFigures(summary, head, rows) {
  return make("details", {}, make("summary", {}, summary), table(head, rows, "Key figures"));
}

// A model of the batch view whose requests to a kernel go to the worker.
class ViewModel extends LocalModel {
  /** @param {Packed} history @param {(blame: Blame) => Promise<Blame>} askBlame */
  constructor(history, askBlame) {
    super({ history, live: false, moment: {}, blame: {}, ghost: {} });
    this.askBlame = askBlame;
  }

  /** @param {{ blame?: Blame }} message */
  send({ blame }) {
    if (blame) this.askBlame(blame).then((report) => this.set("blame", report));
  }
}

/** @param {(blame: Blame) => Promise<Blame>} askBlame */
function createResults(askBlame) {
  const verdict = make("p", { class: "tnb-verdict", role: "status" });
  const notes = make("div", { class: "tnb-notes" });
  const place = make("div", { class: "tnb-view" });
  const diagnoses = make("ul", { class: "tnb-diagnoses", aria: { label: "diagnoses" } });
  const figures = make("div", { class: "tnb-figures" });
  const tables = make("div", { class: "tnb-tables" });
  const error = make("p", { class: "tnb-error", role: "alert" });
  const element = make("section", { class: "tnb-results", aria: { label: "Result" } },
    error, verdict, notes, place, diagnoses, figures, tables);
  let [model, view] = [null, null];
  error.hidden = true;

  /** @param {Packed} history @param {GhostBoxes} ghost */
  function showView(history, ghost) {
    if (!view) {
      model = new ViewModel(history, askBlame);
      view = new View(model, make("div", {}));
      place.append(view.root);
      model.on("change:blame", () => view.blamePanel.show(model.get("blame")));
    } else {
      model.state.history = history;
      const isChosen = view.window.pinned; // the user zoomed
      Object.assign(view, { cursor: null, selected: null, range: null });
      view.receive({ ...history, reset: true });
      if (!isChosen) view.showAll();
    }
    view.showGhost(ghost);
    view.draw();
  }

  /** @param {ShownResult} shown */
  function showTables({ batches, controls }) {
    const requests = (members) => members.map((serial) => serial ?? "null").join(" ");
    const head = ["batch", "sent (ms)", "instance", "rows", "requests", "executed (ms)", "why"];
    const rows = batches.map(([number, sent, instance, size, members, , ms, why]) =>
      [number, sent.toFixed(1), instance, size, requests(members), ms.toFixed(1), why]);
    const listed = table(head, rows, "Batches in the order in which they were sent");
    /** @type {HTMLElement[]} */
    const parts = [make("details", {}, make("summary", {}, "Batches as a table"), listed)];
    if (controls.length) {
      const names = Object.keys(controls[0][2]);
      const values = controls.map(([number, instance, tensors]) =>
        [number, instance, ...names.map((name) => `[ ${tensors[name].join(", ")} ]`)]);
      const caption = "Control inputs of each execution, one value for each row";
      parts.unshift(table(["execution", "instance", ...names], values, caption));
    }
    tables.replaceChildren(...parts);
  }

  /** @param {ShownResult} shown @param {string} title */
  function showNotes({ comparison, summary, remarks }, title) {
    const compared = comparison && [
      make("p", { class: "tnb-change" }, make("b", {}, "Compared with the other configuration: "), comparison.verdict.replace(/^[^:]*: /, "")),
      make("p", {}, make("b", {}, "First difference: "), comparison.difference),
      keyFigures("Both configurations", ["", "the other", "this"], comparison.rows),
    ];
    notes.replaceChildren(
      ...(title ? [make("p", {}, make("b", {}, title))] : []),
      ...(compared ?? [keyFigures("Key figures", ["", ""], summary)]),
      make("p", { class: "tnb-note" }, remarks.join(" ")),
    );
  }

  return {
    element,
    /** @param {string | undefined} message */
    showError(message) {
      error.hidden = !message;
      error.textContent = message ?? "";
      element.classList.toggle("tnb-stale", Boolean(message));
    },
    /** @param {ShownResult} shown */
    show(shown, title = "") {
      this.showError("");
      verdict.textContent = shown.verdict;
      showNotes(shown, title);
      showView(shown.history, shown.ghost);
      diagnoses.replaceChildren(...shown.diagnoses.map((text) => make("li", {}, text)));
      figures.replaceChildren(...drawFigures(shown.figures));
      showTables(shown);
    },
  };
}

export { createResults };
