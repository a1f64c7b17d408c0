// Whether the kernel of a widget is there: it may be restarted, or end, while the page shows the widget.

const GONE = "Disconnected: the kernel was restarted or has ended, so this does not change any more. " +
  "Run the cell again.";

// Says so above the widget, and calls `onGone`; returns a function that stops following. A widget is never connected
// again: the next kernel makes another one.
/** @param {WidgetModel<any>} model @param {HTMLElement} el @param {() => void} onGone */
function followKernel(model, el, onGone) {
  const show = () => {
    if (el.querySelector(":scope > .tnb-disconnected")) return;
    const banner = document.createElement("p");
    banner.className = "tnb-disconnected";
    banner.setAttribute("role", "status");
    banner.textContent = GONE;
    onGone();
    el.prepend(banner);
  };
  model.on("comm_live_update", show);
  return () => model.off("comm_live_update", show);
}

export { followKernel };
