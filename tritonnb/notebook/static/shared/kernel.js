// Whether the kernel of a widget is there: it may be restarted, or end, while the page shows the widget.

const GONE = "Disconnected: the kernel was restarted or has ended, so this does not change any more. " +
  "Run the cell again.";
const NONE = "Saved state: this page has no kernel. Run the cell in a notebook for the live view.";
const PROBE = "tnb_probe"; // no trait, so the kernel ignores it

// Whether the widget was made from a saved state. Only the model of a host knows, and events pass it; a host whose
// events do not counts as one with a kernel.
/** @param {WidgetModel<any>} model */
function isSaved(model) {
  let isLive = true;
  const look = (widget) => { isLive = widget?.comm_live ?? true; };
  model.on(`change:${PROBE}`, look);
  model.set(PROBE, Math.random());
  model.off(`change:${PROBE}`, look);
  return !isLive;
}

// Says so above the widget, and calls `onGone`; returns a function that stops following. A widget is never connected
// again: the next kernel makes another one.
/** @param {WidgetModel<any>} model @param {HTMLElement} el @param {(isSaved: boolean) => void} onGone */
function followKernel(model, el, onGone) {
  const show = (text) => {
    if (el.querySelector(":scope > .tnb-disconnected")) return;
    const banner = document.createElement("p");
    banner.className = "tnb-disconnected";
    banner.setAttribute("role", "status");
    banner.textContent = text;
    onGone(text === NONE);
    el.prepend(banner);
  };
  const lost = () => show(GONE);
  model.on("comm_live_update", lost);
  if (isSaved(model)) show(NONE);
  return () => model.off("comm_live_update", lost);
}

export { followKernel };
