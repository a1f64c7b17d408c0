// The list of models: state, name, rate, and a curve of the rate; arrow keys move, Enter or a click selects.

import { formatNumber, niceCeiling, pathOf } from "../shared/curves.js";
import { connect, createBusyHint, make, makeSvg } from "../shared/dom.js";

const MANY = 12; // models that are listed with a field to filter them
const TAIL = 8; // characters at the end of a name that are never cut: names of versions and variants differ there
const WIDTH = 40;
const HEIGHT = 14;
const SYMBOLS = { READY: "●", UNAVAILABLE: "✕", FAILED: "✕", LOADING: "◌", UNLOADING: "◌" };

// A model without requests lately has no curve, so that there is room for its name.
/** @param {number[]} curve */
function drawCurve(curve) {
  if (!curve.some((count) => count > 0)) return null;
  const top = niceCeiling(Math.max(...curve, 1));
  const x = (index) => (index * WIDTH) / Math.max(1, curve.length - 1);
  const d = pathOf(curve, x, (value) => HEIGHT - 1 - ((HEIGHT - 2) * value) / top);
  const size = { width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" };
  return makeSvg("svg", size, makeSvg("path", { class: "tnb-curve", d }));
}

/** @param {ListedModel} entry */
function describe({ name, state, rate, problem, scheduling, reason }) {
  const requests = rate ? `, ${formatNumber(rate)} requests per second` : "";
  return `${name}, ${state.toLowerCase()}${requests}. ${problem && `${problem}. `}${reason || scheduling}`;
}

let lists = 0;

/** @param {WidgetContext<ModelListState>} context */
function render({ model, el }) {
  lists += 1;
  const id = `tnb-models-${lists}`;
  const hint = createBusyHint("The kernel is busy: the model is shown when the running cell ends.");
  const list = make("ul", { class: "tnb-models", role: "listbox", tabIndex: 0, aria: { label: "Models" } });
  const items = /** @type {HTMLCollectionOf<HTMLElement>} */ (list.children);
  const filter = make("input", { type: "text", placeholder: "filter", aria: { label: "filter the models" },
    oninput: () => draw() });
  let active = "";
  /** @type {string[]} */ let order = [];

  const names = () => order;

  // The models that the filter leaves, the failing ones first. Under the pointer none moves.
  function listed() {
    const words = filter.value.toLowerCase().split(/\s+/);
    const models = model.get("models").filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
    const rank = list.matches(":hover")
      ? ({ name }) => (order.includes(name) ? order.indexOf(name) : order.length)
      : ({ state, errors, problem }) => (SYMBOLS[state] === "✕" || errors > 0 ? 0 : problem ? 1 : 2);
    return models.sort((one, other) => rank(one) - rank(other));
  }

  /** @param {string} name */
  function activate(name) {
    active = name;
    for (const item of items) item.classList.toggle("tnb-active", item.dataset.name === name);
    const item = [...items].find(({ dataset }) => dataset.name === name);
    if (!item) {
      list.removeAttribute("aria-activedescendant");
      return;
    }
    list.setAttribute("aria-activedescendant", item.id);
    const [box, row] = [list.getBoundingClientRect(), item.getBoundingClientRect()];
    // `scrollIntoView` would also scroll the page, whenever the list is updated.
    list.scrollTop += Math.min(0, row.top - box.top) + Math.max(0, row.bottom - box.bottom);
  }

  /** @param {string} name */
  function select(name) {
    if (model.get("ended")) return;
    activate(name);
    model.set("selected", name);
    model.save_changes();
    if (model.get("shown") !== name) hint.wait();
  }

  // Rows stay the same elements, so that a click during an update is not lost.
  /** @param {ListedModel} entry @param {number} index */
  function createRow({ name }, index) {
    const item = make("li", { role: "option", id: `${id}-${index}`, data: { name } });
    item.addEventListener("click", () => select(name));
    return item;
  }

  /** @param {HTMLElement} item @param {ListedModel} entry */
  function drawRow(item, entry) {
    const { name, state, rate, errors, problem, curve } = entry;
    item.dataset.state = state;
    item.classList.toggle("tnb-error", errors > 0);
    item.classList.toggle("tnb-warning", Boolean(problem) && !errors);
    item.title = describe(entry);
    item.setAttribute("aria-label", describe(entry));
    item.replaceChildren(
      make("span", { class: "tnb-state", aria: { hidden: "true" } }, SYMBOLS[state] ?? "○"),
      make("span", { class: "tnb-name" }, make("span", {}, name.slice(0, -TAIL)), make("span", {}, name.slice(-TAIL))),
      drawCurve(curve) ?? "",
      make("span", { class: "tnb-rate" }, problem ? "⚠ " : "", rate || errors ? `${formatNumber(rate)}/s` : ""),
    );
  }

  function draw() {
    const models = listed();
    order = models.map(({ name }) => name);
    filter.hidden = model.get("models").length <= MANY;
    list.hidden = !order.length;
    const shown = [...items].map(({ dataset }) => dataset.name);
    if (shown.join("\n") !== names().join("\n")) list.replaceChildren(...models.map(createRow));
    models.forEach((entry, index) => drawRow(items[index], entry));
    activate(names().includes(active) ? active : model.get("selected"));
    drawSelection();
  }

  function drawSelection() {
    for (const item of items) {
      item.setAttribute("aria-selected", String(item.dataset.name === model.get("selected")));
    }
    if (model.get("shown") === model.get("selected")) hint.done();
  }

  list.addEventListener("keydown", (event) => {
    const all = names();
    const at = all.indexOf(active);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 };
    if (event.key in moves) activate(all[Math.max(0, Math.min(all.length - 1, moves[event.key]))]);
    else if (event.key === "Enter" || event.key === " ") select(active);
    else if (/^\w$/.test(event.key) && !event.ctrlKey && !event.metaKey) {
      const rotated = [...all.slice(at + 1), ...all.slice(0, at + 1)];
      activate(rotated.find((name) => name.toLowerCase().startsWith(event.key.toLowerCase())) ?? active);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });

  const root = { class: "tnb-model-list tnb-controls" };
  el.append(make("div", root, filter, list, hint.node));
  const listeners = { "change:models": draw, "change:selected": drawSelection, "change:shown": drawSelection };
  return connect(model, listeners, el);
}

export default { render };
