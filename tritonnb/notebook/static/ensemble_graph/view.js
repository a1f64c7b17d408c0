// The graph of an ensemble: a box for each step with its queue and its times, arrows with the tensors between them.

import { connect, make, makeSvg } from "../shared/dom.js";

const BOX = { width: 140, height: 90 };
const END_WIDTH = 84; // of request and response
const GAP = { x: 76, y: 18 };
const LABEL = 10; // characters of the tensors at an arrow
const MARGIN = 6;

const widthOf = ({ step }) => (step < 0 ? END_WIDTH : BOX.width);
const left = ({ layer }) => MARGIN + (layer ? END_WIDTH - BOX.width : 0) + layer * (BOX.width + GAP.x);
const top = ({ place }, offset) => MARGIN + offset + place * (BOX.height + GAP.y);

function drawNode(node, offset) {
  const [x, y] = [left(node), top(node, offset)];
  const lines = node.texts.map((text, index) =>
    makeSvg("text", { x: x + 10, y: y + 36 + index * 16, class: index ? "" : "tnb-queue-text" }, text));
  const bar = { class: "tnb-share", x, y: y + BOX.height - 5, width: BOX.width * node.share, height: 5 };
  const share = node.share > 0 ? [makeSvg("rect", bar)] : [];
  return makeSvg("g", { class: `tnb-node ${node.step < 0 ? "tnb-end" : ""}` },
    makeSvg("rect", { class: "tnb-box", x, y, width: widthOf(node), height: BOX.height, rx: 5 }),
    makeSvg("text", { x: x + 10, y: y + 18, class: "tnb-name" }, node.label), ...lines, ...share);
}

function drawEdge(edge, nodes, offsets) {
  const [source, target] = [nodes[edge.source], nodes[edge.target]];
  const x1 = left(source) + widthOf(source);
  const y1 = top(source, offsets[edge.source]) + BOX.height / 2;
  const x2 = left(target);
  const y2 = top(target, offsets[edge.target]) + BOX.height / 2;
  const isSkip = target.layer - source.layer > 1;
  const below = Math.max(y1, y2) + (isSkip ? BOX.height * 0.75 : 0);
  const middle = (x1 + x2) / 2;
  const d = isSkip
    ? `M${x1},${y1 + 22} C${x1 + 60},${below} ${x2 - 60},${below} ${x2 - 5},${y2 + 22}`
    : `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2 - 5},${y2}`;
  const short = edge.label.length > LABEL ? `${edge.label.slice(0, LABEL - 1)}…` : edge.label;
  const label = makeSvg("text", { x: middle, y: isSkip ? below - 8 : (y1 + y2) / 2 - 5, "text-anchor": "middle" },
    makeSvg("title", {}, edge.label), short);
  return [makeSvg("path", { class: "tnb-edge", d, "marker-end": "url(#tnb-arrow)" }), label];
}

function draw({ nodes, edges, places, layers, description }) {
  const counts = nodes.map(({ layer }) => nodes.filter((other) => other.layer === layer).length);
  const offsets = counts.map((count) => ((places - count) * (BOX.height + GAP.y)) / 2);
  const width = 2 * MARGIN + (layers - 2) * BOX.width + 2 * END_WIDTH + (layers - 1) * GAP.x;
  const hasSkips = edges.some(({ source, target }) => nodes[target].layer - nodes[source].layer > 1);
  const height = 2 * MARGIN + places * (BOX.height + GAP.y) - GAP.y + (hasSkips ? BOX.height * 0.3 : 0);
  const arrow = makeSvg("marker", { id: "tnb-arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8,
    markerHeight: 8, orient: "auto" }, makeSvg("path", { class: "tnb-head", d: "M0,0 L8,4 L0,8 z" }));
  return makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": description },
    makeSvg("defs", {}, arrow), ...edges.flatMap((edge) => drawEdge(edge, nodes, offsets)),
    ...nodes.map((node, index) => drawNode(node, offsets[index])));
}

function render({ model, el }) {
  const picture = make("div", { class: "tnb-graph tnb-controls", tabIndex: 0, role: "region",
    aria: { label: "Ensemble graph" } });
  el.append(picture);
  return connect(model, {
    "change:graph": () => { if (model.get("graph").nodes) picture.replaceChildren(draw(model.get("graph"))); },
  });
}

export default { render };
