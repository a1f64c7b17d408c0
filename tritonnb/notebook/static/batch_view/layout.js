// Where the parts of the picture are: the time scale, the heights of lanes, their names, and the colours.

const TOP = 8;
const RIGHT = 12;
const AXIS = 22;
const LANE = 66;
const LABELS = 15;
const QUEUE = 110;
const BAND = 44;
const GAP = 12;
const COLOURED_REQUESTS = 14; // up to so many requests each have a colour
const MAX_SLOTS_HEIGHT = 8000; // of all slots together: a browser draws nothing on a canvas that is much taller

class Scale {
  constructor(surface, from, span, left) {
    Object.assign(this, { from, span, to: from + span, left, width: surface.width - left - RIGHT });
  }

  x(time) {
    return this.left + ((time - this.from) / this.span) * this.width;
  }

  clamp(time) {
    return Math.min(Math.max(this.x(time), this.left - 4), this.left + this.width + 4);
  }
}

function laneHeights(timeline) {
  if (timeline.sequences) {
    const slots = Math.max(1, lanesOf(timeline).length);
    const lane = Math.max(Math.min(15, MAX_SLOTS_HEIGHT / slots), Math.min(26, 340 / slots));
    return { lane, lanes: slots * lane, queue: 26 + 13 * Math.max(1, backlogRows(timeline)), bands: BAND };
  }
  const count = Math.max(1, timeline.instances.length);
  const lane = Math.max(14, Math.min(LANE, 280 / count));
  const bands = timeline.meta.delay ? 2 * BAND + GAP : BAND;
  return { lane, lanes: count * (lane + LABELS), queue: QUEUE, bands };
}

function heightOf(timeline) {
  const { lanes, queue, bands } = laneHeights(timeline);
  return TOP + lanes + GAP + queue + GAP + bands + GAP + AXIS;
}

// The slots as [instance, slot]. If there are many, only those up to the highest that was used.
function lanesOf(timeline) {
  const used = new Map(timeline.instances.map((instance) => [instance, 0]));
  const use = (instance, slot) => used.set(instance, Math.max(used.get(instance) ?? 0, slot));
  for (const { instance, slot } of timeline.occupancy.values()) use(instance, slot);
  for (const [, instance, slot] of timeline.slotState.owners ?? []) use(instance, slot);
  const count = timeline.meta.slots ?? 1;
  return timeline.instances.flatMap((instance) =>
    Array.from({ length: count <= 8 ? count : used.get(instance) + 1 }, (_, slot) => [instance, slot]));
}

function backlogRows(timeline) {
  const waited = [...timeline.occupancy.values()].filter(({ arrived, assigned }) => assigned > arrived).length;
  return Math.min(8, Math.max(waited, (timeline.slotState.backlog ?? []).length, 1));
}

// The width of the lanes' names.
function gutterWidth(surface, timeline) {
  const names = timeline.sequences ? lanesOf(timeline).map((lane) => lane.join(" · ")) : timeline.instances;
  return Math.min(240, Math.max(100, ...names.map((name) => surface.measure(name, 11) + 16)));
}

function colourOf(timeline, number) {
  const colours = Object.values(timeline.meta.colours);
  return colours[((number % colours.length) + colours.length) % colours.length];
}

// By priority if the model has priorities; a few requests have a colour each.
function requestColour(timeline, { label, priority }) {
  const { sky } = timeline.meta.colours;
  if (timeline.meta.priorities) return priority ? colourOf(timeline, priority - 1) : sky;
  if (timeline.counts.requests > COLOURED_REQUESTS) return sky;
  return colourOf(timeline, timeline.colourNumber(`request ${label}`));
}

const sequenceColour = (timeline, sequence) => colourOf(timeline, timeline.colourNumber(sequence));

const outline = (timeline, batch, colour) => (batch.failed ? timeline.meta.colours.vermilion : colour);

const formatMs = (value) => (value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2));

// The maximum of a list that may be too long for the arguments of Math.max.
function maximum(items, valueOf, least) {
  let result = least;
  for (const item of items) result = Math.max(result, valueOf(item));
  return result;
}

export { AXIS, BAND, GAP, LABELS, RIGHT, TOP };
export { Scale, backlogRows, colourOf, formatMs, gutterWidth, heightOf, laneHeights, lanesOf, maximum, outline };
export { requestColour, sequenceColour };
