// Shows recordings on a page of their own, without a kernel: `Recording.to_html` writes the data into the page.

import { render } from "./view.js";

const NOT_INCLUDED = "this page does not include this request; in Python: rec.blame(…)";

// What a widget's model is to the view. Nothing can be sent to a kernel: the latencies are part of the data.
class PageModel {
  constructor({ history, latencies, meanings }) {
    Object.assign(this, { latencies, meanings, listeners: new Map() });
    this.state = { history, live: false, moment: {}, blame: {}, ghost: {} };
  }

  get(name) {
    return this.state[name];
  }

  set(name, value) {
    this.state[name] = value;
    for (const listener of this.listeners.get(`change:${name}`) ?? []) listener();
  }

  on(event, listener) {
    this.listeners.set(event, [...(this.listeners.get(event) ?? []), listener]);
  }

  off(event, listener) {
    this.listeners.set(event, (this.listeners.get(event) ?? []).filter((known) => known !== listener));
  }

  send({ blame }) {
    if (blame) this.set("blame", this.blameOf(blame));
  }

  blameOf({ batch, request }) {
    const known = this.latencies[`${batch} ${request}`];
    if (!known) return { batch, request, error: `Request ${request}: ${NOT_INCLUDED}.` };
    const { title, parts, remedies } = known;
    const total = parts.reduce((sum, [, ms]) => sum + ms, 0) || 1;
    const row = ([cause, ms]) => [cause, ms, ms / total, this.meanings[cause], remedies[cause] ?? ""];
    return { batch, request, title, parts: parts.map(row) };
  }
}

function showTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => { document.body.dataset.jpThemeLight = String(!dark.matches); };
  dark.addEventListener("change", apply);
  apply();
}

function start() {
  showTheme();
  for (const data of document.querySelectorAll('script[type="application/json"]')) {
    render({ model: new PageModel(JSON.parse(data.textContent)), el: data.previousElementSibling });
  }
}

export { start };
