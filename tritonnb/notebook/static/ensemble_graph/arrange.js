// Where the boxes and the arrows of a graph are, for the width that there is.

const BOX = { width: 140, height: 90 };
const END = { width: 84, height: 30 }; // of request and response: narrow boxes, or low ones
const LOW = { width: 264, height: 60 }; // of a step from top to bottom: its texts are in two lines
const LONG_GAP = 76; // px between layers, from left to right; more where there is room for the names of tensors
const LONGEST_GAP = 200;
const SHORT_GAP = 44;
const ROW_GAP = 34; // px between layers, from top to bottom: room for the name of a tensor
const PLACE_GAP = 18; // px between the boxes of a layer
const MARGIN = 6;
const LETTER = 7; // px
const SKIP = 32; // px: how far an arrow that skips a layer keeps away from it

/** @type {(edge: GraphEdge, nodes: GraphNode[]) => boolean} */
const isSkip = ({ source, target }, nodes) => nodes[target].layer - nodes[source].layer > 1;

// The space of the layers from left to right, with a gap between them.
/** @type {(layers: number, gap: number) => number} */
const lengthOf = (layers, gap) => 2 * MARGIN + (layers - 2) * BOX.width + 2 * END.width + (layers - 1) * gap;

/** @param {Graph} graph @param {number} room */
function arrange(graph, room) {
  const least = lengthOf(graph.layers, SHORT_GAP);
  if (room && room < least) return fromTop(graph);
  const left = (room || Infinity) - lengthOf(graph.layers, 0);
  const names = Math.max(...graph.edges.map(({ label }) => label.length)) * LETTER + 12;
  const gap = Math.min(LONGEST_GAP, Math.max(LONG_GAP, names));
  return fromLeft(graph, Math.min(gap, left / (graph.layers - 1)));
}

// How far the boxes of a layer are moved, so that they are in the middle of the others.
/** @param {Graph} graph @param {number} step */
function offsetsOf({ nodes, places }, step) {
  const counts = nodes.map(({ layer }) => nodes.filter((other) => other.layer === layer).length);
  return counts.map((count) => ((places - count) * step) / 2);
}

/** @param {Graph} graph @param {number} gap */
function fromLeft(graph, gap) {
  const { nodes, edges, layers, places } = graph;
  const step = BOX.height + PLACE_GAP;
  const offsets = offsetsOf(graph, step);
  const boxes = nodes.map(({ layer, place, step: number }, index) => ({
    x: MARGIN + (layer ? END.width - BOX.width : 0) + layer * (BOX.width + gap),
    y: MARGIN + offsets[index] + place * step,
    width: number < 0 ? END.width : BOX.width,
    height: BOX.height,
  }));
  const arrows = edges.map((edge) => {
    const [from, to] = [boxes[edge.source], boxes[edge.target]];
    const [x1, y1, x2, y2] = [from.x + from.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
    const x = (x1 + x2) / 2;
    if (!isSkip(edge, nodes)) {
      const path = `M${x1},${y1} C${x},${y1} ${x},${y2} ${x2 - 5},${y2}`;
      return { path, x, y: (y1 + y2) / 2 - 5, anchor: "middle" };
    }
    const [begin, end, below] = [y1 + 22, y2 + 22, Math.max(y1, y2) + BOX.height * 0.75];
    const path = `M${x1},${begin} C${x1 + 60},${below} ${x2 - 60},${below} ${x2 - 5},${end}`;
    return { path, x, y: (begin + end) / 8 + below * 0.75 + 12, anchor: "middle" }; // below the middle of the curve
  });
  const skips = edges.some((edge) => isSkip(edge, nodes)) ? BOX.height * 0.3 : 0;
  const height = 2 * MARGIN + places * step - PLACE_GAP + skips;
  return { width: lengthOf(layers, gap), height, boxes, arrows, letters: (gap - 6) / LETTER };
}

/** @param {Graph} graph */
function fromTop(graph) {
  const { nodes, edges, layers, places } = graph;
  const step = LOW.width + PLACE_GAP;
  const offsets = offsetsOf(graph, step);
  const boxes = nodes.map(({ layer, place, step: number }, index) => ({
    x: MARGIN + offsets[index] + place * step,
    y: MARGIN + (layer ? END.height - LOW.height : 0) + layer * (LOW.height + ROW_GAP),
    width: LOW.width,
    height: number < 0 ? END.height : LOW.height,
  }));
  const most = MARGIN + places * step - PLACE_GAP; // the right edge of the boxes
  const arrows = edges.map((edge) => {
    const [from, to] = [boxes[edge.source], boxes[edge.target]];
    const [x1, y1, x2, y2] = [from.x + LOW.width / 2, from.y + from.height, to.x + LOW.width / 2, to.y];
    const y = (y1 + y2) / 2;
    if (!isSkip(edge, nodes)) {
      const path = `M${x1},${y1} C${x1},${y} ${x2},${y} ${x2},${y2 - 5}`;
      return { path, x: (x1 + x2) / 2 + 6, y: y + 4, anchor: "start" };
    }
    const [begin, end] = [from.y + from.height * 0.7, to.y + to.height * 0.3];
    const [left, right] = [from.x + LOW.width, to.x + LOW.width];
    const path = `M${left},${begin} C${most + SKIP},${begin} ${most + SKIP},${end} ${right + 5},${end}`;
    return { path, x: most + SKIP * 0.75 + 5, y: (begin + end) / 2 + 4, anchor: "start" };
  });
  const skips = edges.some((edge) => isSkip(edge, nodes)) ? SKIP + 60 : 0;
  const height = 2 * MARGIN + (layers - 2) * LOW.height + 2 * END.height + (layers - 1) * ROW_GAP;
  return { width: most + MARGIN + skips, height, boxes, arrows, letters: Infinity, isLow: true };
}

export { arrange };
