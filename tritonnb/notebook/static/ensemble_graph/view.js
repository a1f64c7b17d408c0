// The graph of an ensemble: a box for each step with its queue and its times, arrows with the tensors between them.
// From left to right where there is room, with shorter arrows if necessary; elsewhere from top to bottom. A step can be
// selected: its model is shown. The steps of a request that is selected elsewhere light up.

import { connect, make, makeSvg } from "../shared/dom.js";
import { arrange } from "./arrange.js";

const LEGEND = [["tnb-queue-share", "mean wait"], ["tnb-share", "mean execution; the longest bar is the slowest step"]];
const PADDING = 4; // px, of the region

/** @param {GraphNode} node @param {Area} box @param {boolean} isLow */
function drawNode(node, { x, y, width, height }, isLow) {
  const { texts } = node;
  const shown = isLow && texts.length > 2 ? [texts.slice(0, -1).join(" · "), texts.at(-1)] : texts;
  const lines = shown.map((text, index) =>
    makeSvg("text", { x: x + 10, y: y + 34 + index * 16, class: index ? "" : "tnb-queue-text" }, text));
  const [queue, compute] = node.shares.map((share) => width * share);
  const bar = (name, begin, length) =>
    makeSvg("rect", { class: name, x: begin, y: y + height - 5, width: length, height: 5 });
  const shares = queue + compute > 0 ? [bar("tnb-queue-share", x, queue), bar("tnb-share", x + queue, compute)] : [];
  const button = { class: "tnb-node", tabindex: 0, role: "button", "data-name": node.label,
    "aria-label": `${node.label}: ${texts.join(", ")}` };
  return makeSvg("g", node.step < 0 ? { class: "tnb-node tnb-end" } : button,
    makeSvg("rect", { class: "tnb-box", x, y, width, height, rx: 5 }),
    makeSvg("text", { x: x + 10, y: y + 18, class: "tnb-name" }, node.label), ...lines, ...shares);
}

/** @param {GraphArrow} arrow @param {string} label @param {number} letters */
function drawEdge({ path, x, y, anchor }, label, letters) {
  const most = Math.floor(letters);
  const short = label.length > most ? `${label.slice(0, most - 1)}…` : label;
  const text = makeSvg("text", { x, y, "text-anchor": anchor }, makeSvg("title", {}, label), short);
  return [makeSvg("path", { class: "tnb-edge", d: path, "marker-end": "url(#tnb-arrow)" }), text];
}

/** @param {Graph} graph @param {number} room */
function draw(graph, room) {
  const { nodes, edges, description } = graph;
  const { width, height, boxes, arrows, letters, isLow } = arrange(graph, room);
  const arrow = makeSvg("marker", { id: "tnb-arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8,
    markerHeight: 8, orient: "auto" }, makeSvg("path", { class: "tnb-head", d: "M0,0 L8,4 L0,8 z" }));
  return makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": description },
    makeSvg("defs", {}, arrow), ...edges.flatMap(({ label }, index) => drawEdge(arrows[index], label, letters)),
    ...nodes.map((node, index) => drawNode(node, boxes[index], isLow)));
}

/** @param {WidgetContext<{ graph: Graph, lit: LitSteps }>} context */
function render({ model, el }) {
  const picture = make("div", { class: "tnb-graph tnb-controls", tabIndex: 0, role: "region",
    aria: { label: "Ensemble graph" } });
  const total = make("p", { class: "tnb-total" });
  const legend = make("p", { class: "tnb-note" }, ...LEGEND.flatMap(([name, text]) =>
    [makeSvg("svg", { class: "tnb-key", width: 12, height: 8 }, makeSvg("rect", { class: name, width: 12, height: 8 })),
      ` ${text} `]));
  el.append(make("div", { class: "tnb-graph-part tnb-controls" }, total, picture, legend));
  const show = () => {
    if (!model.get("graph").nodes) return;
    const focused = picture.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    const { total: numbers, problem } = model.get("graph");
    total.replaceChildren(numbers ?? "", problem ? make("span", { class: "tnb-warning" }, ` ⚠ ${problem}`) : "");
    picture.replaceChildren(draw(model.get("graph"), picture.clientWidth - 2 * PADDING));
    if (focused) picture.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
    light();
  };
  const light = () => {
    const lit = model.get("lit")?.steps ?? {};
    for (const node of picture.querySelectorAll("[data-name]")) {
      node.classList.toggle("tnb-lit", node.dataset.name in lit);
    }
  };
  const select = (event) => {
    const name = event.target.closest("[data-name]")?.dataset.name;
    if (!name || (event.type === "keydown" && event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    model.send({ select: name });
  };
  for (const kind of ["click", "keydown"]) picture.addEventListener(kind, select);
  let width = 0;
  const observer = new ResizeObserver(() => { // the height changes with what is drawn
    if (picture.clientWidth !== width) show();
    width = picture.clientWidth;
  });
  observer.observe(picture);
  const disconnect = connect(model, { "change:graph": show, "change:lit": light }, el);
  return () => {
    observer.disconnect();
    disconnect();
  };
}

export default { render };
