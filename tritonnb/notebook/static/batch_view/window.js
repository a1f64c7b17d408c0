// The time that is shown, and the scale of rows: chosen by the view while it follows, unless they are pinned.

import { rowScale, showsBatches } from "./draw.js";

const SPANS = [500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000]; // ms, in live mode
const BATCHES = 30; // of each instance in sight, in live mode
const COLUMNS_SPAN = 10_000; // ms, if batches are too narrow to be drawn
const RECENT = 5000; // ms, of which the rate and the length of batches are known
const SETTLED = 2000; // ms without another change of the scale
const SHORTEST = 0.05; // ms
const NARROW = 3; // px
const WIDE_ENOUGH = 5; // px, to draw batches again

class TimeWindow {
  constructor(follow) {
    Object.assign(this, { follow, from: 0, span: 2000, pinned: false });
    Object.assign(this, { batches: true, rows: null, changedAt: -Infinity });
  }

  get to() {
    return this.from + this.span;
  }

  // Choose the span of the last batches, in steps.
  adapt(timeline, width, now) {
    if (!this.follow || this.pinned || !timeline.counters || now - this.changedAt < SETTLED) return;
    const recent = recentTotals(timeline);
    if (!recent.batches) return;
    const fitting = Math.min(60_000, Math.max(SPANS[0], (BATCHES * recent.length) / (recent.batches / recent.lanes)));
    const batchWidth = (recent.busy / recent.batches / fitting) * width;
    const isWide = batchWidth >= (this.span < COLUMNS_SPAN ? NARROW : WIDE_ENOUGH);
    const isExact = timeline.isExact(timeline.now - RECENT, timeline.now);
    const wanted = isWide && isExact ? fitting : Math.max(fitting, COLUMNS_SPAN);
    if (Math.abs(Math.log(wanted / this.span)) < Math.log(1.7)) return;
    const distance = (span) => Math.abs(Math.log(span / wanted));
    const span = SPANS.reduce((best, step) => (distance(step) < distance(best) ? step : best));
    if (span === this.span) return;
    this.span = span;
    this.changedAt = now;
  }

  // What is drawn now: batches or columns, and up to how many rows.
  shown(timeline, width, end, now) {
    if (this.follow) this.from = end - this.span;
    this.batches = showsBatches(timeline, this.from, this.span, width, this.batches);
    if (!this.pinned || this.rows === null) this.rows = this.rowsInSight(timeline, now);
    return { from: this.from, span: this.span, batches: this.batches, rows: this.rows };
  }

  // While it follows, the scale grows at once, but becomes smaller only if that lasts.
  rowsInSight(timeline, now) {
    const largest = this.follow ? largestBatch(timeline, this.from, this.to) : largestBatch(timeline, 0, timeline.end);
    const rows = rowScale(timeline, largest);
    if (!this.follow || this.rows === null || rows >= this.rows) this.smallerSince = null;
    else this.smallerSince ??= now;
    const waits = this.follow && this.smallerSince !== null && now - this.smallerSince < RECENT;
    return waits ? this.rows : rows;
  }

  zoom(factor, around, longest) {
    const share = this.follow ? 1 : (around - this.from) / this.span;
    this.span = Math.min(Math.max(this.span * factor, SHORTEST), longest);
    this.from = around - share * this.span;
    this.pinned = true;
  }

  // Show the end of a timeline, up to its last batches.
  stop({ begin, end, batches }) {
    const last = Math.max(begin, ...[...batches.values()].map((batch) => batch.end ?? batch.sent));
    this.follow = false;
    this.from = Math.max(begin, Math.min(end, last + 0.02 * this.span) - this.span);
  }

  pan(share) {
    this.from += share * this.span;
  }

  show(from, to, margin = 0) {
    this.span = Math.max(0.01, (to - from) * (1 + 2 * margin));
    this.from = from - margin * (to - from);
  }
}

// Batches, and ms busy, of all instances in the last seconds.
function recentTotals(timeline) {
  const { counters, now } = timeline;
  const from = Math.max(0, now - RECENT);
  const level = counters.levelFor(0, from);
  const [first, last] = [counters.indexAt(from, level), counters.indexAt(now, level)];
  const totals = [...counters.lanes.values()].map((lane) => lane.total(level, first, last)).filter(Boolean);
  const add = (name) => totals.reduce((sum, values) => sum + values[name], 0);
  const lanes = Math.max(1, timeline.instances.length);
  return { batches: add("batches"), busy: add("busy") / 1e6, length: Math.max(1, now - from), lanes };
}

function largestBatch(timeline, from, to) {
  const { counters } = timeline;
  if (!counters) return 1;
  const level = counters.levelFor((to - from) / 100, from);
  const [first, last] = [counters.indexAt(Math.max(0, from), level), counters.indexAt(Math.max(0, to), level)];
  const sizes = [...counters.lanes.values()].map((lane) => lane.total(level, first, last)?.largest ?? 1);
  return Math.max(1, ...sizes, ...timeline.running.map(({ rows }) => rows));
}

export { TimeWindow };
