// HTML that the kernel has written, such as a table; the kernel escapes what is not its own.

import { listen, make } from "../shared/dom.js";

/** @param {WidgetContext<{ value: string, css_class: string }>} context */
function render({ model, el }) {
  if (model.get("css_class")) el.classList.add(model.get("css_class"));
  const body = make("div", { class: "tnb-markup tnb-controls jp-RenderedHTMLCommon" });
  el.append(body);
  return listen(model, { "change:value": () => { body.innerHTML = model.get("value"); } }, el);
}

export default { render };
