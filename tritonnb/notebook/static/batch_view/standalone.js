// Shows recordings on a separate page, without a kernel: `Recording.to_html` writes the data into the page.

import { LocalModel, followColourScheme } from "../shared/local_model.js";
import { share } from "../shared/share.js";
import { render } from "./view.js";

const NOT_INCLUDED = "this page does not include this request; in Python: rec.blame(…)";
const NO_REMEDIES = "this page has the changes of the slowest requests only";

// Nothing can be sent to a kernel: the latencies are part of the data.
class PageModel extends LocalModel {
  constructor({ history, latencies, meanings }) {
    super({ history, live: false, moment: {}, blame: {}, ghost: {} });
    this.latencies = latencies;
    this.meanings = meanings;
  }

  /** @param {{ blame?: Blame }} message */
  send({ blame }) {
    if (blame) this.set("blame", this.blameOf(blame));
  }

  /** @param {Blame} asked @returns {Blame} */
  blameOf({ batch, request }) {
    const known = this.latencies[`${batch} ${request}`];
    if (!known) return { batch, request, error: `Request ${request}: ${NOT_INCLUDED}.` };
    const { title, parts, remedies } = known;
    const meanings = { ...this.meanings, ...known.meanings };
    const total = parts.reduce((sum, [, ms]) => sum + ms, 0) || 1;
    const remedyOf = (cause) => (remedies ? remedies[cause] ?? "" : NO_REMEDIES);
    const row = ([cause, ms]) => [cause, ms, ms / total, meanings[cause], remedyOf(cause)];
    return { batch, request, title, parts: parts.map(row) };
  }
}

function start() {
  followColourScheme();
  /** @type {PageModel[]} */
  const models = [];
  for (const data of document.querySelectorAll('script[type="application/json"]')) {
    const el = /** @type {HTMLElement} */ (data.previousElementSibling);
    const model = new PageModel(JSON.parse(data.textContent));
    model.on("change:moment", () => share(model, models, "moment"));
    models.push(model);
    render({ model, el });
  }
}

export { start };
