// The statistics of a time range: of its batches if all are known, else of the counted intervals that it is in.

import { describeInterval } from "./columns.js";
import { maximum } from "./layout.js";
import { answeredAt } from "./timeline.js";
import { formatDuration, formatLength, formatTime, percent, pluralize } from "./words.js";

// A quantile of sorted values, interpolated as the kernel does.
/** @param {number[]} sorted @param {number} share */
function quantileOf(sorted, share) {
  const place = share * (sorted.length - 1);
  const below = sorted[Math.floor(place)];
  return below + (place % 1) * (sorted[Math.ceil(place)] - below);
}

/** @param {Batch[]} batches */
function describeLatencies(batches) {
  const latencies = batches.flatMap((batch) => batch.members.flatMap((member, place) =>
    (member ? answeredAt(batch, place) - member.queued : [])));
  latencies.sort((one, other) => one - other);
  if (!latencies.length) return "no request answered";
  const [p50, p99] = [0.5, 0.99].map((share) => formatDuration(quantileOf(latencies, share)));
  return `${pluralize(latencies.length, "request")} answered, p50 ${p50}, p99 ${p99}`;
}

/** @param {Timeline} timeline @param {number} from @param {number} to */
function describeRange(timeline, from, to) {
  if (from >= to) return "outside of what was observed";
  if (!timeline.isExact(from, to)) {
    const level = timeline.counters.levelFor(0, from);
    const [title, ...lines] = describeInterval(timeline, level, from, {}, to);
    return `${title}: ${lines.join("; ")}`;
  }
  const isIn = (time) => time !== null && time >= from && time < to;
  const batches = timeline.batchesBetween(from, to);
  const sent = batches.filter((batch) => isIn(batch.sent));
  const rows = sent.reduce((sum, batch) => sum + batch.rows - batch.members.filter((member) => !member).length, 0);
  const busyOf = ({ start, end }) => Math.max(0, Math.min(end ?? timeline.now, to) - Math.max(start, from));
  const busy = batches.filter(({ start }) => start !== null).reduce((sum, batch) => sum + busyOf(batch), 0);
  const depth = maximum(timeline.depthsBetween(from, to), ([, waiting]) => waiting, timeline.depthAt(from));
  const wait = maximum(sent, (batch) => batch.sent - batch.oldest, 0);
  const refused = [...timeline.refused.values()].filter((refusal) => isIn(refusal.refused)).length;
  const mean = sent.length ? `, ${(rows / sent.length).toFixed(1)} rows on average` : "";
  const parts = [
    describeLatencies(batches.filter(({ end }) => isIn(end))),
    `${pluralize(sent.length, "batch", "batches")} sent${mean}`,
    `busy ${percent(busy / (to - from) / Math.max(1, timeline.instances.length))}`,
    `at most ${depth} waiting, longest wait ${formatDuration(wait)}`,
  ];
  if (refused) parts.push(`${refused} refused`);
  return `${formatLength(to - from)} from ${formatTime(from, timeline)}: ${parts.join("; ")}`;
}

export { describeRange };
