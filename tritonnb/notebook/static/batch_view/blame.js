// The panel that splits the latency of one request into causes. The kernel computes the parts, and finds the remedies.

import { element } from "../shared/dom.js";
import { formatDuration } from "./words.js";

const MOST_BUTTONS = 24;
const CHOICE_HINT = "Select a batch to split the latency of one of its requests into causes.";
const RUNNING_HINT = "This batch has not ended yet: then its latencies can be split into causes.";
const LOST_HINT = "The events of this batch are not kept any more.";
const SAVED_HINT = "To split the latency of a request into causes, run the cell: this needs a kernel.";
const ZOOM_HINT = "Zoom in to single batches (+), and select one to split the latency of its requests into causes.";

// The meaning of each cause in the palette; the other causes have the colours of a series.
const MEANINGS = {
  instances_busy: "queue", queue_delay: "limit", compute_input: "input", compute_infer: "compute",
  compute_output: "output", prefill: "input", decode: "compute", other_steps: "queue",
};
const SERIES = ["earlier_requests", "priority", "did_not_fit", "batch_closed", "preferred_size"];

class BlamePanel {
  // `show` is called with the number of a batch whose request was chosen here.
  /** @param {WidgetModel<BatchViewState>} model @param {HTMLElement} root @param {(batch: number) => void} show */
  constructor(model, root, show) {
    this.model = model;
    this.root = root;
    this.showBatch = show;
    /** @type {number | null} */ this.batch = null;
    this.offered = "";
    this.isConnected = true;
    /** @type {Partial<Theme>} */ this.theme = {};
    /** @type {Blame | undefined} */ this.asked = undefined;
    /** @type {Blame | undefined} */ this.shown = undefined;
    this.choice = element("p", "tnb-blame-choice", CHOICE_HINT);
    this.result = element("div", "tnb-blame-result");
    this.result.setAttribute("aria-live", "polite");
    root.append(this.choice, this.result);
    root.setAttribute("role", "region");
    root.setAttribute("aria-label", "latency of a request");
  }

  // Offer the requests of the selected batch, or else the slowest ones, each as a button. Among columns no batch can be
  // selected.
  /**
   * @param {Theme} theme @param {Batch | undefined} batch @param {Columns | null} columns
   * @param {SlowRequest[]} slowest @param {boolean} isExplained
   */
  select(theme, batch, columns, slowest, isExplained) {
    this.theme = theme;
    if (!this.isConnected) return;
    const number = batch && isExplained ? batch.n : null;
    let hint = columns ? ZOOM_HINT : CHOICE_HINT;
    if (batch && !isExplained) hint = batch.end === null ? RUNNING_HINT : LOST_HINT;
    const labels = number === null ? [] : batch.members.filter(Boolean).map(({ label }) => label);
    const offered = [number, hint, ...labels, ...slowest.map(({ label }) => label)].join(" ");
    if (offered === this.offered) return;
    Object.assign(this, { batch: number, offered });
    const requests = labels.slice(0, MOST_BUTTONS).map((label) => this.button(label, number, label));
    const others = slowest.map(({ label, latency, batch: n }) =>
      this.button(`${label} (${formatDuration(latency)})`, n, label));
    const slow = others.length ? [`${hint} Slowest: `, ...others] : [hint];
    this.choice.replaceChildren(...(requests.length ? ["Where did the time go? Request ", ...requests] : slow));
    if (this.shown?.batch !== number) this.result.replaceChildren();
  }

  /** @param {string} text @param {number} batch @param {string} label */
  button(text, batch, label) {
    const button = element("button", "", text);
    button.addEventListener("click", () => {
      this.ask(batch, label);
      this.showBatch(batch);
    });
    return button;
  }

  /** @param {number} batch @param {string} label */
  ask(batch, label) {
    if (!this.isConnected) return;
    this.asked = { batch, request: label };
    this.result.replaceChildren(element("p", "tnb-note", `Request ${label}: waiting for the kernel …`));
    this.shown = this.asked;
    this.model.send({ blame: this.asked });
  }

  // Without its kernel, nothing can be asked any more; the last answer stays.
  disconnect() {
    this.isConnected = false;
    this.choice.textContent = SAVED_HINT;
  }

  // Several outputs may show one view: each shows what was asked for last.
  /** @param {Blame} blame */
  show(blame) {
    if (blame.batch === undefined) return;
    this.shown = blame;
    if (blame.error) this.result.replaceChildren(element("p", "", blame.error));
    else {
      const title = element("p", "", element("b", "", blame.title));
      this.result.replaceChildren(title, this.bar(blame), this.table(blame));
    }
  }

  /** @param {string} cause */
  colour(cause) {
    const place = SERIES.indexOf(cause);
    return this.theme[MEANINGS[cause]] ?? this.theme.series?.[place] ?? this.theme.faint;
  }

  /** @param {Blame} blame */
  bar({ title, parts }) {
    const bar = element("div", "tnb-blame-bar");
    bar.setAttribute("role", "img");
    const times = parts.map(([cause, ms]) => `${cause} ${ms.toFixed(3)} ms`);
    bar.setAttribute("aria-label", `${title}: ${times.join(", ")}`);
    for (const [cause, ms, share] of parts) {
      const part = element("span", "");
      part.style.flexGrow = String(share);
      part.style.background = this.colour(cause);
      part.title = `${cause}: ${ms.toFixed(3)} ms`;
      bar.append(part);
    }
    return bar;
  }

  /** @param {Blame} blame */
  table({ parts }) {
    const titles = ["cause", "ms", "share", "meaning", "smallest change that removes it"];
    const head = element("tr", "", ...titles.map((name) => element("th", "", name)));
    const rows = parts.map(([cause, ms, share, meaning, remedy]) => {
      const key = element("span", "tnb-key");
      key.style.background = this.colour(cause);
      const cells = [element("td", "", key, cause.replaceAll("_", " ")), element("td", "", ms.toFixed(3)),
        element("td", "", `${(100 * share).toFixed(0)} %`), element("td", "", meaning),
        element("td", "", remedy === null ? "…" : remedy || "no change found")];
      return element("tr", "", ...cells);
    });
    return element("table", "", element("thead", "", head), element("tbody", "", ...rows));
  }
}

export { BlamePanel };
