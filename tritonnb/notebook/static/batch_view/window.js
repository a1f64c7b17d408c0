// The time that is shown, and the scale of rows: chosen by the view while it follows, unless they are pinned.
//
// While it follows, the picture scrolls if there are few batches a second. Of more, it holds the last ones for a
// second, as an oscilloscope does, then the next. If the user prefers, it scrolls with columns that sum up all batches.

import { WIDE, medianLength, rowScale, showsBatches } from "./draw.js";

const BATCHES = 18; // of each instance in sight, while the picture scrolls
const SPANS = { least: 4000, most: 60_000, columns: 10_000 }; // ms, while the picture scrolls
const SLOW = { begin: 4, end: 6 }; // batches/s of an instance, up to which the picture begins to, or still scrolls
const HOLD = 1000; // ms, for which the last batches are shown
const HELD = { batches: 20, slots: 60, least: 10 }; // batches
const FEWEST = 4; // batches that are worth to be held
const SILENT = 5; // times the median distance of batches: a longer time without one is cut off
const LONGEST_WAIT = 30; // executions: of a longer wait, the end is shown
const MOST_LANES = 2; // that scroll at the rate of one instance each; more are held earlier, to see all together
const MARGIN = 0.02; // of the span
const RECENT = 5000; // ms, of which the rate and the length of batches are known
const SETTLED = 2000; // ms without another change of the scale
const SHORTEST = 0.05; // ms

class TimeWindow {
  /** @param {boolean} follow */
  constructor(follow) {
    this.follow = follow;
    this.from = 0;
    this.span = 2000;
    this.pinned = false;
    this.columns = false;
    this.needsColumns = false;
    this.otherNeedsColumns = false;
    this.batches = true;
    /** @type {number | null} */ this.rows = null;
    /** @type {number | null} */ this.smallerSince = null;
    this.scrolls = true;
    this.chosen = 2000;
    this.changedAt = -Infinity;
    this.release();
  }

  get to() {
    return this.from + this.span;
  }

  // Whether the last batches are held, so that nothing moves until the next ones.
  get holds() {
    return this.follow && this.held !== null;
  }

  release() {
    /** @type {Held | null} */ this.held = null;
    this.heldAt = -Infinity;
  }

  // Whether other batches are to be held now; `silent`: no request has come lately.
  /** @param {Timeline} timeline @param {boolean} silent @param {number} now */
  isDue(timeline, silent, now) {
    if (!this.follow || this.pinned || this.columns) {
      this.release();
      return false;
    }
    this.adapt(timeline, now);
    if (this.scrolls && !silent) this.release();
    else return now - this.heldAt >= HOLD;
    return false;
  }

  // Hold the last batches of a timeline until a time, as many as can be read; `isLast`: no others follow soon.
  /**
   * @param {Timeline} timeline @param {number} width @param {number} now
   * @param {{ until?: number, isLast?: boolean }} options
   */
  hold(timeline, width, now, { until = Infinity, isLast = false } = {}) {
    const found = lastBatches(timeline, width, until);
    this.held = found ?? this.held;
    // Of batches with very many requests, only a few are known one by one: columns show all instances.
    const fewest = Math.min(FEWEST, timeline.instances.length);
    if (found && found.batches < fewest && found.isCut && !isLast) this.held = null;
    if (this.held) this.heldAt = now;
  }

  // Choose whether the picture scrolls, and the span of the last batches.
  /** @param {Timeline} timeline @param {number} now */
  adapt(timeline, now) {
    const recent = recentTotals(timeline);
    if (!recent.batches) return;
    const rate = (1000 * recent.batches) / Math.min(MOST_LANES, recent.lanes) / recent.length;
    this.scrolls = rate <= (this.scrolls ? SLOW.end : SLOW.begin);
    if (now - this.changedAt < SETTLED) return;
    const wanted = Math.min(SPANS.most, Math.max(SPANS.least, (1000 * BATCHES) / rate));
    if (Math.abs(Math.log(wanted / this.chosen)) < Math.log(1.7)) return;
    this.chosen = SPANS.least * 2 ** Math.round(Math.log2(wanted / SPANS.least));
    this.changedAt = now;
  }

  // What is drawn now: batches or columns, and up to how many rows.
  /** @param {Timeline} timeline @param {number} width @param {number} end @param {number} now */
  shown(timeline, width, end, now) {
    if (this.follow) this.place(timeline, end);
    this.needsColumns = !this.holds && !showsBatches(timeline, this.from, this.span, width, this.batches);
    const wantsColumns = this.follow ? this.columns : this.otherNeedsColumns;
    this.batches = !wantsColumns && !this.needsColumns;
    if (!this.pinned || this.rows === null) this.rows = this.rowsInSight(timeline, now);
    return { from: this.from, span: this.span, batches: this.batches, rows: this.rows };
  }

  // The held batches, or the newest time. At first the time grows from the left, in steps, so that it is half full.
  /** @param {Timeline} timeline @param {number} end */
  place(timeline, end) {
    if (this.held) {
      this.from = this.held.from;
      this.span = this.held.span;
      return;
    }
    if (!this.pinned) {
      const isEmpty = timeline.firstArrival === Infinity;
      const known = isEmpty ? Infinity : Math.max(SHORTEST, (end - timeline.first) * (1 + MARGIN));
      this.span = this.columns ? Math.max(SPANS.columns, this.chosen) : this.chosen;
      while (this.span >= 2 * known) this.span /= 2;
    }
    this.from = Math.max(end - this.span, this.pinned ? -Infinity : timeline.first - MARGIN * this.span);
  }

  // While it follows, the scale grows at once, but becomes smaller only if that lasts.
  /** @param {Timeline} timeline @param {number} now */
  rowsInSight(timeline, now) {
    const largest = this.follow ? largestBatch(timeline, this.from, this.to) : largestBatch(timeline, 0, timeline.end);
    const rows = rowScale(timeline, largest);
    if (!this.follow || this.rows === null || rows >= this.rows) this.smallerSince = null;
    else this.smallerSince ??= now;
    const waits = this.follow && this.smallerSince !== null && now - this.smallerSince < RECENT;
    return waits ? this.rows : rows;
  }

  /** @param {number} factor @param {number} around @param {number} longest */
  zoom(factor, around, longest) {
    const share = this.follow ? 1 : (around - this.from) / this.span;
    this.span = Math.min(Math.max(this.span * factor, SHORTEST), longest);
    this.from = around - share * this.span;
    this.pinned = true;
  }

  /** @param {number} share */
  pan(share) {
    this.from += share * this.span;
  }

  /** @param {number} from @param {number} to */
  show(from, to, margin = 0) {
    this.span = Math.max(0.01, (to - from) * (1 + 2 * margin));
    this.from = from - margin * (to - from);
  }
}

// The span of the last batches that can be read and of which everything is known; null if there are none.
/** @param {Timeline} timeline @param {number} width @param {number} until */
function lastBatches(timeline, width, until) {
  const isDone = (batch, from, to) => batch.sent >= from && batch.end !== null && batch.end <= Math.min(to, until);
  for (const [from, to] of [...timeline.spans].reverse().slice(0, 20)) {
    const done = [...timeline.batches.values()].filter((batch) => isDone(batch, from, to));
    if (!done.length) continue;
    const most = timeline.sequences ? HELD.slots : HELD.batches;
    let newest = done.sort((one, other) => one.sent - other.sent).slice(-most);
    while (newest.length > HELD.least && (medianLength(newest) / lengthOf(spanOf(newest))) * width < WIDE) {
      newest = newest.slice(1);
    }
    const [shown, silence] = withoutSilence(newest);
    const [begin, end] = spanOf(shown);
    const margin = Math.max(SHORTEST, MARGIN * (end - begin));
    const isCut = from > timeline.first;
    const first = isCut ? Math.max(from, begin - margin) : begin - margin;
    const last = Math.min(end + margin, Math.max(to, end));
    return { from: first, span: last - first, batches: shown.length, silence, isCut };
  }
  return null;
}

/** @type {(span: Span) => number} */
const lengthOf = ([from, to]) => to - from;

// The batches after the last silence among some, and how long it was; 0 if there was none.
/** @param {Batch[]} batches in the order of sending @returns {[Batch[], number]} */
function withoutSilence(batches) {
  const gaps = batches.slice(1).map(({ oldest, sent }, index) => {
    const before = Math.max(...batches.slice(0, index + 1).map(({ end }) => end));
    return Math.min(oldest, sent) - before; // a request that waits is not silence
  });
  const distances = batches.slice(1).map(({ sent }, index) => sent - batches[index].sent);
  const median = distances.sort((one, other) => one - other)[distances.length >> 1] ?? 0;
  const longest = Math.max(SILENT * median, 3 * medianLength(batches));
  const at = gaps.findLastIndex((gap) => gap > longest);
  return at < 0 ? [batches, 0] : [batches.slice(at + 1), gaps[at]];
}

// From the oldest request of some batches, if it has not waited much longer than they take, to their end.
/** @param {Batch[]} batches @returns {Span} */
function spanOf(batches) {
  const end = Math.max(...batches.map((batch) => batch.end));
  const { sent } = batches[0];
  const oldest = Math.min(...batches.map((batch) => batch.oldest));
  const longest = Math.max(end - sent, LONGEST_WAIT * medianLength(batches), SHORTEST);
  return [Math.max(oldest, sent - longest), end];
}

// The batches of all instances in the last seconds in which there were any.
/** @param {Timeline} timeline */
function recentTotals(timeline) {
  const { counters } = timeline;
  const now = timeline.now;
  const from = Math.max(0, timeline.first, now - RECENT);
  const level = counters.levelFor(0, from);
  const [first, last] = [counters.indexAt(from, level), counters.indexAt(now, level)];
  const totals = [...counters.lanes.values()].map((lane) => lane.total(level, first, last)).filter(Boolean);
  const add = (name) => totals.reduce((sum, values) => sum + values[name], 0);
  const lanes = Math.max(1, timeline.instances.length);
  return { batches: add("batches"), busy: add("busy") / 1e6, length: Math.max(1, now - from), lanes };
}

/** @param {Timeline} timeline @param {number} from @param {number} to */
function largestBatch(timeline, from, to) {
  const { counters } = timeline;
  if (!counters) return 1;
  const level = counters.levelFor((to - from) / 100, from);
  const [first, last] = [counters.indexAt(Math.max(0, from), level), counters.indexAt(Math.max(0, to), level)];
  const sizes = [...counters.lanes.values()].map((lane) => lane.total(level, first, last)?.largest ?? 1);
  return Math.max(1, ...sizes, ...timeline.running.map(({ rows }) => rows));
}

export { LONGEST_WAIT, TimeWindow };
