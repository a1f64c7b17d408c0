// Cards: what is pointed at in a few lines, and a selected batch with its requests.

import { element } from "../shared/dom.js";
import { describeInterval } from "./columns.js";
import { flagNames } from "./events.js";
import { describeIdle, idleTime } from "./static_batch.js";
import { answeredAt } from "./timeline.js";
import { formatDuration, formatMs, formatTime, pluralize } from "./words.js";

// What is known of a moment: exactly, or of the interval around it.
/** @param {Timeline} timeline @param {number} time @param {Columns | null} columns */
function describeMoment(timeline, time, columns) {
  if (time < timeline.begin || time > timeline.end) return "outside of what was observed";
  if (!timeline.isExact(time, time + 1e-6)) {
    const [title, ...lines] = describeInterval(timeline, columns?.level ?? timeline.counters.levelFor(0, time), time);
    return `${title}: ${lines.join("; ")}`;
  }
  const running = timeline.runningAt(time).map((batch) => `${pluralize(batch.rows, "row")} on ${batch.instance}`);
  const text = running.length ? `running: ${running.join(", ")}` : "no batch is running";
  return `${timeline.depthAt(time)} waiting, ${text}`;
}

// What a target is, as a title and lines.
/** @param {Timeline} timeline @param {Frame} frame @param {Target} target @param {number} time @returns {string[]} */
function describeTarget(timeline, frame, target, time) {
  /** @type {{ [Kind in keyof Targets]: (target: TargetOf<Kind>) => string[] }} */
  const describe = {
    column: (column) => describeInterval(timeline, frame.columns.level, time, column),
    depth: () => (frame.columns
      ? describeInterval(timeline, frame.columns.level, time)
      : [`${timeline.depthAt(time)} waiting`, formatTime(time, timeline)]),
    batch: ({ batch }) => describeBatch(timeline, batch),
    request: (request) => describeRequest(timeline, request),
    null: ({ slot, batch }) => [`null request in slot ${slot} of ${batch.instance}`,
      "no request of the sequence in this slot was ready when the batch was sent"],
    budget: ({ batch }) => describeBudget(timeline, batch),
    refusal: ({ refusal }) => [`request ${refusal.label} was refused`, refusal.message,
      `waited ${formatMs(refusal.refused - refusal.queued)} ms`],
    occupancy: ({ held }) => describeOccupancy(timeline, held),
    limited: ({ batch }) => [
      `the rate limiter held batch ${batch.n} back for ${formatMs(batch.sent - batch.limited)} ms`, batch.why],
    idle: describeIdle,
  };
  return describe[target.kind](/** @type {any} */ (target)); // that is a target of this kind
}

/** @param {Timeline} timeline @param {Batch} batch */
function describeBatch(timeline, batch) {
  const times = batch.end === null ? "still running" : `ran ${formatMs(batch.end - batch.start)} ms`;
  const members = batch.members.filter(Boolean);
  const labels = members.slice(0, 6).map(({ label }) => label).join(", ");
  return [
    `batch ${batch.n}: ${pluralize(batch.rows, "row")}, ${pluralize(batch.requests, "request")}`,
    batch.why,
    `sent ${formatTime(batch.sent, timeline)}; oldest waited ${formatMs(batch.sent - batch.oldest)} ms; ${times}`,
    `requests ${labels}${members.length > 6 ? " …" : ""}; ${batch.depth} left waiting`,
  ];
}

/** @param {Timeline} timeline @param {{ request: Member, batch: Batch | null }} target */
function describeRequest(timeline, { request, batch }) {
  const { label, rows, priority, sequence, queued } = request;
  const of = sequence ? ` of sequence ${sequence}${flagNames(timeline.meta, request)}` : "";
  const title = `request ${label}${of}: ${pluralize(rows, "row")}${priority ? `, priority ${priority}` : ""}`;
  if (!batch) return [title, `arrived ${formatTime(queued, timeline)}; still waiting`];
  const times = batch.end === null ? "still running" : `ran ${formatMs(batch.end - batch.start)} ms`;
  const place = batch.members.findIndex((member) => member?.label === label && member.queued === queued);
  const later = (batch.responses ?? []).filter(([of]) => of === place).length;
  const stream = later ? `; ${pluralize(later, "response")} followed, the last after ` +
    `${formatDuration(answeredAt(batch, place) - batch.end)}` : "";
  return [
    title, `arrived ${formatTime(queued, timeline)}; waited ${formatMs(batch.sent - queued)} ms; ${times}${stream}`,
    `in batch ${batch.n} of ${pluralize(batch.rows, "row")} on ${batch.instance}: ${batch.why}`,
  ];
}

/** @param {Timeline} timeline @param {Batch} batch */
function describeBudget(timeline, batch) {
  const { delay } = timeline.meta;
  const waited = formatMs(batch.sent - batch.oldest);
  return [`${waited} of ${delay} ms of max_queue_delay used when batch ${batch.n} was sent`, batch.why];
}

/** @param {Timeline} timeline @param {Occupancy} held */
function describeOccupancy(timeline, held) {
  const { sequence, instance, slot, arrived, assigned, released, executed, ended_by: endedBy } = held;
  const cause = endedBy === "idle" ? "idle timeout" : "END";
  const end = released === null ? "" : ` to ${formatTime(released, timeline)} (${cause})`;
  const lines = [
    `sequence ${sequence} in slot ${slot} of ${instance}`, `from ${formatTime(assigned, timeline)}${end}`,
    `${pluralize(executed, "request")} executed`,
  ];
  if (assigned > arrived) lines.push(`waited ${formatDuration(assigned - arrived)} in the backlog`);
  return lines;
}

/** @param {string[]} description */
function tip([title, ...lines]) {
  return [element("b", "", title), ...lines.map((line) => element("div", "", line))];
}

/** @param {string[]} head @param {(string | number)[][]} rows */
function table(head, rows) {
  const row = (tag, values) => element("tr", "", ...values.map((value) => element(tag, "", String(value))));
  const body = rows.map((values) => row("td", values));
  return element("table", "", element("thead", "", row("th", head)), element("tbody", "", ...body));
}

/** @param {Timeline} timeline @param {Batch} batch */
function batchDetails(timeline, batch) {
  const most = timeline.meta.max_batch_size || 1;
  const title = `Batch ${batch.n} on ${batch.instance}: ${batch.rows} of at most ${pluralize(most, "row")}; ` +
    `waited ${formatMs(batch.sent - batch.oldest)} ms, ran ${phases(batch)}; ${batch.depth} left waiting.`;
  const parts = [element("p", "", element("b", "", title)), element("p", "tnb-why", `Why now? ${batch.why}.`)];
  if (batch.failed) {
    parts.push(element("p", "", `${batch.failed} of ${pluralize(batch.requests, "request")} failed.`));
  }
  if (batch.differs) parts.push(element("p", "", "≠ In the other run these requests are not a batch."));
  return [...parts, ...(batch.slots ? [controlTable(timeline, batch)] : memberTable(batch))];
}

/** @param {Batch} batch */
function phases({ start, input, output, end }) {
  if (end === null) return "still running";
  const parts = `in ${formatMs(input - start)} + compute ${formatMs(output - input)} + out ${formatMs(end - output)}`;
  return `${parts} = ${formatMs(end - start)} ms`;
}

// The control inputs that a stateful model got with a batch.
/** @param {Timeline} timeline @param {Batch} batch */
function controlTable(timeline, { slots, members }) {
  const { sequence_start: start, sequence_end: end } = timeline.meta.encoding;
  const flag = (bit) => members.map((member) => (member && member.flags & bit ? 1 : 0));
  return table(["", ...slots.map((slot) => `slot ${slot}`)], [
    ["START", ...flag(start)],
    ["END", ...flag(end)],
    ["READY", ...members.map((member) => (member ? 1 : 0))],
    ["CORRID", ...members.map((member) => member?.sequence ?? 0)],
  ]);
}

/** @param {Batch} batch */
function memberTable(batch) {
  const shown = batch.members.filter(Boolean).slice(0, 12);
  const { generated } = batch;
  const rows = shown.map(({ label, rows: size, priority, queued }, index) => {
    const values = [label, size, priority || "–", formatMs(batch.sent - queued)];
    const generation = generated?.[index];
    return generated ? [...values, generation?.tokens ?? 0, formatMs(idleTime(batch, generation))] : values;
  });
  const head = ["request", "rows", "priority", "waited (ms)"];
  /** @type {HTMLElement[]} */
  const parts = [table(generated ? [...head, "tokens", "then idle (ms)"] : head, rows)];
  const more = batch.requests - shown.length;
  if (more > 0) parts.push(element("p", "tnb-note", `${pluralize(more, "more request")}`));
  return parts;
}

export { batchDetails, describeMoment, describeTarget, tip };
