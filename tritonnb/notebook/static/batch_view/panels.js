// The parts around the picture: headline, legend, the grid of slots.

import { element } from "../shared/dom.js";
import { busyShare } from "./columns.js";
import { ITERATIVE_LEGEND } from "./iterative.js";
import { colouredBy, lanesOf, priorityColour, sequenceColour } from "./layout.js";
import { CELL_LEGEND, HATCH_LEGEND, idleTime } from "./static_batch.js";
import { formatDuration, formatLength, markOf, percent, pluralize } from "./words.js";

const MOST_CELLS = 24; // of slots; of more, only those that are held are listed

/** @type {(text: string) => HTMLElement} */
const note = (text) => element("span", "tnb-note", text);

// The counts, what the picture shows of them, and what it does not.
/**
 * @param {Timeline} timeline
 * @param {{
 *   live: boolean, following: boolean, notice: string, frame: Frame, received: Timeline,
 *   held: Held & { at: number } | null,
 * }} shown
 */
function headline(timeline, { live, following, notice, frame, received, held }) {
  const { requests, batches, rows, nulls, refused, failed, cached } = timeline.counts;
  const mean = batches ? ((rows - nulls) / batches).toFixed(2) : "–";
  const facts = [
    [requests, requests === 1 ? "request" : "requests"], [batches, batches === 1 ? "batch" : "batches"],
    [mean, "rows in a batch (mean)"], [timeline.depth, "waiting"],
  ];
  if (nulls) facts.push([`${((100 * nulls) / rows).toFixed(0)} %`, "null rows"]);
  if (refused) facts.push([refused, "refused", "tnb-lost"]);
  if (failed) facts.push([failed, "failed", "tnb-lost"]);
  if (cached) facts.push([cached, "from the cache"]);
  const until = frame && Math.min(frame.from + frame.span, frame.end);
  const busy = until === null || following ? null : busyShare(timeline, frame.from, until);
  if (busy !== null) facts.push([percent(busy), "busy in sight"]);
  const nodes = facts.map(([value, label, style = ""]) =>
    element("span", `tnb-fact ${style}`, element("b", "", String(value)), ` ${label}`));
  const recent = following ? received.recent : timeline.recent;
  if (live && recent) nodes.push(recentNumbers(recent, timeline.meta));
  if (held) nodes.push(heldNote(held));
  const later = received.counts.requests - requests;
  if (live && !following) {
    const since = later ? `; ${pluralize(later, "request")} since` : "";
    nodes.push(element("span", "tnb-life", `paused at ${(timeline.now / 1000).toFixed(1)} s${since}`));
  }
  if (!live && notice) nodes.push(element("span", "tnb-life", `${notice} This is its last picture.`));
  else if (!live && !timeline.meta.simulated) nodes.push(note("recorded"));
  else if (!live && timeline.meta.model !== "simulated") nodes.push(note("simulated"));
  if (timeline.meta.note) nodes.push(element("span", "", timeline.meta.note));
  return [element("b", "tnb-model", timeline.meta.model ?? ""), ...nodes];
}

// That the picture is held, what it is of, and a ring that is full when the next batches come.
/** @param {Held & { at: number }} held */
function heldNote({ batches, silence, at }) {
  const ring = element("span", "tnb-ring");
  ring.dataset.heldAt = String(Math.round(at)); // a new element with each picture begins again
  const before = silence ? `, after ${formatDuration(silence)} without any` : "";
  const text = batches === 1 ? `the newest batch${before}` : `the ${batches} newest batches${before}`;
  const node = element("span", "tnb-held-note tnb-note", ring, text);
  node.title = "The picture stands still to be read, and shows the next batches every second.";
  return node;
}

// The numbers of the last seconds, as a dashboard shows them.
/** @param {RecentNumbers} recent @param {Meta} meta */
function recentNumbers({ rate, errors, p50_ms: p50, p99_ms: p99, busy, problem }, { iterative }) {
  const parts = [`${rate.toFixed(rate < 10 ? 1 : 0)} ${iterative ? "steps" : "requests"}/s`];
  if (errors) parts.push(`${errors.toFixed(errors < 10 ? 1 : 0)} lost/s`);
  if (p50 !== null) parts.push(`p50 ${formatDuration(p50)}`, `p99 ${formatDuration(p99)}`);
  if (busy !== null) parts.push(`${percent(busy)} busy`);
  const node = element("span", "tnb-recent", note("last 5 s: "), parts.join(" · "));
  if (problem) node.append(element("span", errors ? "tnb-lost" : "tnb-warning", ` ⚠ ${problem}`));
  return node;
}

/** @param {string} colour @param {string} label */
function legendKey(colour, label) {
  const mark = element("span", "tnb-key");
  mark.style.backgroundColor = colour;
  return element("span", "", mark, label);
}

// Why the batches in sight were sent: the share of each reason, with its mark in the picture.
/** @param {Meta} meta @param {Batch[]} batches */
function reasonShares(meta, batches) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { rule } of batches) {
    const reason = markOf(meta, rule).join(" ");
    counts.set(reason, (counts.get(reason) ?? 0) + 1);
  }
  const shares = [...counts].sort(([, one], [, other]) => other - one)
    .map(([reason, count]) => `${reason} ${percent(count / batches.length)}`);
  return element("b", "tnb-reasons", `why sent: ${shares.join(" · ")}`);
}

/** @param {Timeline} timeline @param {Theme} theme @param {Frame} frame */
function legend(timeline, theme, { columns, batches }) {
  const { meta, counts } = timeline;
  const nodes = columns ? columnLegend(timeline, theme, columns) : batchLegend(timeline, theme);
  if (!columns && batches.length) nodes.unshift(reasonShares(meta, batches));
  if (counts.failed) nodes.push(legendKey(theme.refusal, "outline: requests failed"));
  if (counts.refused) nodes.push(legendKey(theme.refusal, columns ? "mark: requests refused" : "×: request refused"));
  const { length } = timeline.pending;
  if (!columns && length < timeline.depth) nodes.push(note(`${length} of ${timeline.depth} waiting requests drawn`));
  if (meta.priorities && !columns) {
    nodes.push(element("span", "", "requests:"));
    const last = theme.priorities.length;
    for (let level = 1; level <= Math.min(last, meta.priorities); level += 1) {
      const lower = level === last && meta.priorities > last ? " and lower" : "";
      nodes.push(legendKey(priorityColour(theme, level, meta.priorities), `P${level}: priority ${level}${lower}`));
    }
  }
  return nodes;
}

/** @param {Timeline} timeline @param {Theme} theme */
function batchLegend(timeline, theme) {
  const { meta } = timeline;
  if (meta.iterative) return [element("span", "", ITERATIVE_LEGEND)];
  if (timeline.sequences) {
    const text = "box: a running request of the sequence, thick left edge START, right edge END; " +
      "hatched: null request; pale: the sequence holds the slot, dotted: idle";
    return [element("span", "", text)];
  }
  const preferred = meta.preferred.length ? `, dashed: preferred ${meta.preferred.join(", ")}` : "";
  const colour = colouredBy(timeline) === "batch" ? ", its requests in its colour" : "";
  const box = `box: a batch, as high as its rows${preferred}, max_batch_size ${meta.max_batch_size || 1}${colour}`;
  const nodes = [
    element("span", "", `${box}; the line below it:`),
    legendKey(theme.input, "input"), legendKey(theme.compute, "compute"), legendKey(theme.output, "output"),
    legendKey(theme.queue, meta.delay ? "waiting, and delay used" : "waiting"),
  ];
  if (meta.delay) nodes.push(legendKey(theme.limit, "limit of the delay"));
  if ([...timeline.batches.values()].some((batch) => batch.limited !== null)) {
    const key = legendKey(theme.faint, "hatched: an instance is free and waits for the rate limiter");
    key.firstElementChild.classList.add("tnb-hatched");
    nodes.push(key);
  }
  if ([...timeline.batches.values()].some((batch) => batch.responses)) {
    nodes.push(legendKey(theme.output, "tick: a response after the execution"));
  }
  nodes.push(...generationLegend([...timeline.batches.values()], theme));
  if ([...timeline.batches.values()].some((batch) => batch.differs)) {
    nodes.push(element("span", "", "≠: not a batch of the other run"));
  }
  return nodes;
}

// What the rows of static batches show, if they are generations.
/** @param {Batch[]} batches @param {Theme} theme */
function generationLegend(batches, theme) {
  const generating = batches.filter((batch) => batch.generated);
  const isIdle = (batch) => batch.generated.some((generation) => idleTime(batch, generation) > 0);
  if (!generating.length) return [];
  const cells = [element("span", "", CELL_LEGEND)];
  if (!generating.some(isIdle)) return cells;
  const key = legendKey(theme.null, HATCH_LEGEND);
  key.firstElementChild.classList.add("tnb-hatched");
  return [...cells, key];
}

/** @param {Timeline} timeline @param {Theme} theme @param {Columns} columns */
function columnLegend(timeline, theme, { width, begin }) {
  const kept = begin > 0 && timeline.counters.beginOf(0) > begin ? "; older ones are kept as longer columns only" : "";
  const title = element("span", "", `each column counts all of ${formatLength(width)}${kept}`);
  if (timeline.sequences) {
    return [
      title, legendKey(theme.compute, "time with a request"), legendKey(theme.null, "with a null request"),
      element("span", "", "pale: the sequence holds the slot"),
      legendKey(theme.queue, "waiting: line deepest, filled mean"),
    ];
  }
  return [
    title, legendKey(theme.compute, "batch size: line largest, filled mean; below: busy share"),
    legendKey(theme.queue, "waiting: line deepest, filled mean"),
  ];
}

// Instances x slots: the sequence in each, how many of its requests were executed, and its remaining idle time.
/** @param {Timeline} timeline @param {Theme} theme @param {number} time @param {boolean} live */
function slotGrid(timeline, theme, time, live) {
  const { slots, backlog } = timeline.slotsAt(time);
  const { owners, backlog: current, omitted } = timeline.slotState;
  if (live && owners) {
    for (const [sequence, instance, slot, left] of owners) {
      const key = `${instance} ${slot}`;
      const known = slots.get(key);
      const executed = known?.sequence === sequence ? known.executed : 0;
      slots.set(key, { sequence, executed, left: Math.min(timeline.meta.idle, left - (time - timeline.now)) });
    }
  }
  const lanes = lanesOf(timeline);
  const isHeld = ([instance, slot]) => slots.has(`${instance} ${slot}`);
  const listed = lanes.length > MOST_CELLS ? lanes.filter(isHeld).slice(0, MOST_CELLS) : lanes;
  /** @type {HTMLElement[]} */
  const cells = listed.map(([instance, slot]) =>
    slotCell(timeline, theme, `${instance} · ${slot}`, slots.get(`${instance} ${slot}`)));
  const free = lanes.filter((lane) => !isHeld(lane)).length;
  const unlisted = lanes.length - free - listed.length;
  if (listed !== lanes) cells.push(note(`${unlisted ? `${unlisted} more held, ` : ""}${free} free`));
  const { strategy, states } = timeline.meta;
  const waiting = live ? current ?? backlog : backlog;
  const more = live && omitted ? ` and ${omitted} more` : "";
  const state = states?.length ? `; state ${states.join(", ")}` : "";
  const text = `${strategy} strategy${state}; backlog: ${waiting.length ? waiting.join(", ") : "empty"}${more}`;
  const line = element("p", "tnb-note", text);
  line.title = text;
  return element("div", "", line, element("div", "tnb-grid", ...cells));
}

/**
 * @param {Timeline} timeline @param {Theme} theme @param {string} name
 * @param {{ sequence: number | string, executed: number, left: number } | undefined} owner
 */
function slotCell(timeline, theme, name, owner) {
  // CSS shortens the name at its beginning with `direction: rtl`; the marks keep it written from left to right.
  const title = note(`\u200e${name}\u200e`);
  title.title = name;
  if (!owner) return element("div", "tnb-cell", title, note("free"));
  const sequence = element("b", "", String(owner.sequence));
  const cell = element("div", "tnb-cell tnb-held", title, sequence);
  cell.style.borderColor = sequenceColour(theme, timeline, owner.sequence);
  if (timeline.meta.iterative) { // it has no idle time: the model continues it
    cell.append(element("span", "", pluralize(owner.executed, "step")));
    return cell;
  }
  const left = Math.max(0, owner.left);
  const bar = element("span", "tnb-bar");
  bar.style.width = `${Math.min(100, (100 * left) / (timeline.meta.idle || 1))}%`;
  bar.title = `loses the slot if no request arrives within ${formatDuration(left)}`;
  const executed = element("span", "", `${owner.executed} run`);
  cell.append(executed, note(`times out in ${formatDuration(left)}`), bar);
  return cell;
}

export { headline, legend, note, slotGrid };
