// Widgets one below the other, or each on its own tab; the host renders them.

import { isDisconnected, listen, make } from "../shared/dom.js";
import { followKernel } from "../shared/kernel.js";
import { share } from "../shared/share.js";

let groups = 0;

// A tab for each title: `panels` are what they show.
/** @param {string[]} titles */
function createTabs(titles) {
  groups += 1;
  const id = (kind, number) => `tnb-${kind}-${groups}-${number}`;
  const panels = titles.map((_, number) => make("div", { class: "tnb-panel", role: "tabpanel", id: id("panel", number),
    aria: { labelledby: id("tab", number) } }));
  const tabs = titles.map((title, number) => make("div", { role: "tab", id: id("tab", number), tabIndex: 0,
    aria: { controls: id("panel", number) } }, title));
  const select = (selected) => {
    tabs.forEach((tab, number) => {
      tab.setAttribute("aria-selected", String(number === selected));
      tab.tabIndex = number === selected ? 0 : -1;
      panels[number].hidden = number !== selected;
    });
  };
  const list = make("div", { class: "tnb-tabs tnb-controls", role: "tablist" }, ...tabs);
  list.addEventListener("click", (event) => {
    const tab = tabs.indexOf(/** @type {HTMLDivElement} */ (event.target));
    if (tab >= 0) select(tab);
  });
  list.addEventListener("keydown", (event) => {
    const at = tabs.findIndex((tab) => tab.tabIndex === 0);
    const last = tabs.length - 1;
    const moves = { ArrowRight: at < last ? at + 1 : 0, ArrowLeft: at ? at - 1 : last, Home: 0, End: last };
    if (!(event.key in moves)) return;
    select(moves[event.key]);
    tabs[moves[event.key]].focus();
    event.preventDefault();
    event.stopPropagation();
  });
  select(0);
  return { list, panels };
}

/** @returns {GroupChild} */
function createChild() {
  return { node: make("div", { class: "tnb-child" }), controller: new AbortController(), model: null };
}

/** @param {WidgetContext<GroupState>} context */
function render({ model, el, host }) {
  el.classList.add("tnb-group");
  if (model.get("css_class")) el.classList.add(model.get("css_class"));
  const { list, panels } = createTabs(model.get("titles"));
  if (panels.length) el.append(list, ...panels);
  /** @type {Map<string, GroupChild>} */ const children = new Map();

  const models = () => [...children.values()].flatMap((child) => child.model ?? []);

  /** @param {string} reference @param {GroupChild} child */
  async function show(reference, child) {
    const { node, controller: { signal } } = child;
    try {
      const widget = await host.getWidget(reference);
      if (signal.aborted) return;
      await widget.render({ el: node, signal });
      const name = model.get("shared");
      if (!name || signal.aborted) return;
      const shown = await host.getModel(reference);
      child.model = shown;
      shown.on(`change:${name}`, () => share(shown, models(), name));
    } catch (error) {
      if (!signal.aborted) throw error; // otherwise it was closed meanwhile
    }
  }

  const update = () => {
    const references = model.get("children");
    for (const [reference, { node, controller }] of children) {
      if (!references.includes(reference)) {
        children.delete(reference);
        controller.abort();
        node.remove();
      }
    }
    references.forEach((reference, number) => {
      const known = children.get(reference);
      const child = known ?? createChild();
      const [parent, place] = panels.length ? [panels[number], 0] : [el, number + (isDisconnected(el) ? 1 : 0)];
      if (parent.children[place] !== child.node) parent.insertBefore(child.node, parent.children[place] ?? null);
      if (known) return;
      children.set(reference, child);
      show(reference, child); // in the page, so that its style sheet comes into the same shadow root
    });
  };
  // The outermost group says once that there is no kernel.
  const stopFollowing = el.classList.contains("tnb-child") ? null : followKernel(model, el, () => {});
  const stop = listen(model, { "change:children": update }, el);
  return () => {
    stopFollowing?.();
    stop();
    for (const { controller } of children.values()) controller.abort();
  };
}

export default { render };
