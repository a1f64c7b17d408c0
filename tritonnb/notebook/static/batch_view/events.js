// The events of a timeline in words, in order.

import { pluralize } from "./words.js";

/** @param {Timeline} timeline @returns {TimelineEvent[]} */
function sortedEvents(timeline) {
  const events = [
    ...timeline.pending.map((request) => arrivalEvent(timeline, request)),
    ...[...timeline.batches.values()].flatMap((batch) => batchEvents(timeline, batch)),
    ...[...timeline.refused.values()].map(({ refused, label, message }) =>
      ({ time: refused, text: `request ${label} is refused: ${message}`, batch: null })),
    ...[...timeline.occupancy.values()].flatMap(slotEvents),
  ];
  return events.sort((one, other) => one.time - other.time);
}

/** @param {Meta} meta @param {Member} member */
function flagNames({ encoding }, { flags }) {
  const { sequence_start: start, sequence_end: end } = encoding;
  return (flags & start ? " START" : "") + (flags & end ? " END" : "");
}

/** @param {Timeline} timeline @param {Member} request @returns {TimelineEvent} */
function arrivalEvent(timeline, request) {
  const { label, sequence, queued, rows } = request;
  const of = sequence ? ` of sequence ${sequence}` : "";
  const details = `${pluralize(rows, "row")}${flagNames(timeline.meta, request)}`;
  return { time: queued, text: `request ${label}${of} arrives (${details})`, batch: null };
}

/** @param {Timeline} timeline @param {Batch} batch @returns {TimelineEvent[]} */
function batchEvents(timeline, { n, members, rows, instance, why, sent, end }) {
  const events = members.filter(Boolean).map((member) => arrivalEvent(timeline, member));
  events.push({ time: sent, text: `batch of ${pluralize(rows, "row")} sent to ${instance}: ${why}`, batch: n });
  if (end !== null) {
    events.push({ time: end, text: `batch of ${pluralize(rows, "row")} is done on ${instance}`, batch: n });
  }
  return events;
}

/** @param {Occupancy} held @returns {TimelineEvent[]} */
function slotEvents({ sequence, instance, slot, arrived, assigned, released, ended_by: endedBy }) {
  const events = [];
  if (assigned > arrived) {
    const text = `sequence ${sequence} leaves the backlog for slot ${slot} of ${instance}`;
    events.push({ time: assigned, text, batch: null });
  }
  if (released !== null) {
    const reason = endedBy === "idle" ? "was idle for too long" : "has ended";
    const text = `slot ${slot} of ${instance} is free: sequence ${sequence} ${reason}`;
    events.push({ time: released, text, batch: null });
  }
  return events;
}

// The index of the next event in a direction: from the one that the cursor is at, or from the cursor, or from the
// beginning or the end of what is shown.
/**
 * @param {TimelineEvent[]} events @param {number | undefined} index @param {number} direction
 * @param {{ cursor: number | null, from: number }} shown
 */
function nextEvent(events, index, direction, { cursor, from }) {
  const isForward = direction > 0;
  const before = (time) => events.filter((event) => event.time < time).length;
  const upTo = (time) => events.filter((event) => event.time <= time).length;
  let start = index;
  if (cursor === null) start = isForward ? before(from) - 1 : events.length;
  else if (events[index]?.time !== cursor) start = isForward ? upTo(cursor) - 1 : upTo(cursor);
  return Math.min(events.length - 1, Math.max(0, start + direction));
}

export { flagNames, nextEvent, sortedEvents };
