// The tiles: one number each, with its unit and what it is computed from.

import { connect, isDisconnected, make } from "../shared/dom.js";

/** @param {WidgetContext<TilesState>} context */
function render({ model, el }) {
  const tiles = make("div", { class: "tnb-tiles tnb-controls", role: "list", aria: { label: "Numbers" } });
  el.append(tiles);
  const shown = () => (isDisconnected(el) && model.get("kept").length ? model.get("kept") : model.get("tiles"));
  return connect(model, {
    "change:tiles": () => tiles.replaceChildren(...shown().map(({ label, value, unit, note, level }) => make(
      "div", { class: `tnb-tile ${level && `tnb-${level}`}`, role: "listitem", title: note },
      make("span", { class: "tnb-label" }, label),
      make("span", { class: "tnb-number" }, make("b", {}, value), ` ${unit}`),
      make("small", {}, note),
    ))),
  }, el);
}

export default { render };
