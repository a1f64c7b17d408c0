// Where the parts of the picture are: the time scale, the heights of lanes, their names, and the colours of requests.

const TOP = 8;
const RIGHT = 12;
const AXIS = 22;
const LANE = 66;
const LABELS = 15; // above a lane
const THIN = 30; // px: lower lanes have no texts but their names
const THIN_COLUMNS = 50;
const THIN_LABELS = 3;
const QUEUE = 110;
const BACKLOG = 84; // whatever waits in it
const BAND = 44;
const GAP = 12;
const COLOURED_REQUESTS = 14; // up to so many requests each have a colour
const SLOTS_HEIGHT = 480; // of all slots together, if that leaves 2 px for each
const MAX_SLOTS_HEIGHT = 8000; // a browser draws nothing on a canvas that is much taller
const LEAST_TEXT = 11; // px: no text fits into lower lanes of slots

class Scale {
  /** @param {{ width: number }} surface @param {number} from @param {number} span @param {number} left */
  constructor(surface, from, span, left) {
    this.from = from;
    this.span = span;
    this.to = from + span;
    this.left = left;
    this.width = surface.width - left - RIGHT;
  }

  get right() {
    return this.left + this.width;
  }

  /** @param {number} time */
  x(time) {
    return this.left + ((time - this.from) / this.span) * this.width;
  }

  /** @param {number} time */
  clamp(time) {
    return Math.min(Math.max(this.x(time), this.left - 4), this.right + 4);
  }

  /** @param {number} x */
  timeAt(x) {
    return this.from + ((x - this.left) / this.width) * this.span;
  }
}

// The tops and heights of the parts. Batches or columns: the height of all is the same.
/** @param {Timeline} timeline */
function layoutOf(timeline, columns = false) {
  const budget = !timeline.sequences && timeline.meta.delay ? BAND + GAP : 0;
  const count = Math.max(1, timeline.sequences ? lanesOf(timeline).length : timeline.instances.length);
  let lane;
  let labels = 0;
  let queue = BACKLOG;
  if (timeline.sequences) {
    const low = Math.min(15, MAX_SLOTS_HEIGHT / count, Math.max(2, SLOTS_HEIGHT / count));
    lane = Math.max(low, Math.min(26, 340 / count));
  } else {
    lane = Math.max(14, Math.min(LANE, 280 / count));
    if (lane >= THIN) labels = LABELS;
    else [lane, labels] = [lane + LABELS - THIN_LABELS, THIN_LABELS]; // no text fits above a box
    queue = columns ? -GAP : QUEUE; // columns have no lines of single requests
    if (columns) lane += (QUEUE + GAP) / count;
  }
  const queueTop = TOP + count * (lane + labels) + GAP;
  const depthTop = queueTop + queue + GAP;
  const height = depthTop + BAND + budget + GAP + AXIS;
  const isThin = lane < (columns ? THIN_COLUMNS : THIN);
  return { lane, isThin, labels, queue, queueTop, depthTop, budgetTop: depthTop + BAND + GAP, height };
}

/** @type {(timeline: Timeline) => number} */
const heightOf = (timeline) => layoutOf(timeline).height;

/** @type {(layout: { lane: number, labels: number }, index: number) => number} */
const laneTop = ({ lane, labels }, index) => TOP + index * (lane + labels) + labels;

// The slots as [instance, slot]. If there are many, only those up to the highest that was used.
/** @param {Timeline} timeline @returns {[instance: string, slot: number][]} */
function lanesOf(timeline) {
  const count = timeline.meta.slots ?? 1;
  /** @type {(instance: string) => number} */
  const countOf = (instance) => (count <= 8 ? count : (timeline.highestSlots.get(instance) ?? 0) + 1);
  return timeline.instances.flatMap((instance) =>
    Array.from({ length: countOf(instance) }, (_, slot) => /** @type {[string, number]} */ ([instance, slot])));
}

// The width of the lanes' names.
/** @param {Surface} surface @param {Timeline} timeline */
function gutterWidth(surface, timeline) {
  const names = timeline.sequences ? lanesOf(timeline).map((lane) => lane.join(" · ")) : timeline.instances;
  return Math.min(240, Math.max(100, ...names.map((name) => surface.measure(name, 11) + 16)));
}

/** @type {(theme: Theme, number: number) => string} */
const seriesColour = (theme, number) => theme.series[number % theme.series.length];

// Few levels are spread over the colours, so that they differ more in lightness.
/** @param {Theme} theme @param {number} level @param {number} levels */
function priorityColour({ priorities }, level, levels) {
  const last = Math.min(Math.max(levels, 2), priorities.length) - 1;
  const at = Math.min(Math.max(level, 1) - 1, last);
  return priorities[Math.round((at * (priorities.length - 1)) / last)];
}

// The name of a request in the picture.
/** @type {(timeline: Timeline, member: Member) => string} */
const requestLabel = ({ meta }, { label, priority }) => (meta.priorities ? `P${priority} · ${label}` : label);

// What the colours of requests distinguish: priorities if the model has some, else single requests if there are only a
// few, else batches: then one sees who shares a batch.
/** @type {(timeline: Timeline) => "priority" | "request" | "batch"} */
const colouredBy = ({ meta, counts }) =>
  meta.priorities ? "priority" : counts.requests <= COLOURED_REQUESTS ? "request" : "batch";

// The colour of a request, in its batch and where it waits.
/** @param {Frame} frame @param {Member} member @param {Batch | null} batch */
function requestColour({ surface, timeline }, { label, priority }, batch) {
  const { theme } = surface;
  const kind = colouredBy(timeline);
  if (kind === "priority") return priorityColour(theme, priority, timeline.meta.priorities);
  if (kind === "request") return seriesColour(theme, timeline.colourNumber(`request ${label}`));
  return batch ? seriesColour(theme, batch.n) : theme.queue;
}

// Whether a request is the one pointed at. Those that wait are decoded again with each delivery.
/** @type {(focus: Member | null, member: Member) => boolean} */
const isFocus = (focus, { label, queued }) => focus !== null && focus.label === label && focus.queued === queued;

/** @type {(theme: Theme, timeline: Timeline, sequence: number | string) => string} */
const sequenceColour = (theme, timeline, sequence) => seriesColour(theme, timeline.colourNumber(sequence));

// The maximum of a list that may be too long for the arguments of Math.max.
/** @template Item @param {Iterable<Item>} items @param {(item: Item) => number} valueOf @param {number} least */
function maximum(items, valueOf, least) {
  let result = least;
  for (const item of items) result = Math.max(result, valueOf(item));
  return result;
}

// A number of rows at which a scale may end: it is not changed with every batch.
/** @param {number} rows */
function niceRows(rows) {
  const power = 2 ** Math.floor(Math.log2(Math.max(1, rows)));
  return [power, 1.5 * power, 2 * power].find((step) => step >= rows && Number.isInteger(step));
}

export { AXIS, BACKLOG, BAND, GAP, LEAST_TEXT, RIGHT, TOP };
export { Scale, gutterWidth, heightOf, laneTop, lanesOf, layoutOf, maximum, niceRows };
export { colouredBy, isFocus, priorityColour, requestColour, requestLabel, sequenceColour };
