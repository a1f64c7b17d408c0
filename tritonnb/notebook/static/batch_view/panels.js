// The parts around the picture: headline, legend, the table of a batch, the grid of slots.

import { colourOf, formatMs, lanesOf, sequenceColour } from "./layout.js";

function element(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

const note = (text) => element("span", "tnb-note", text);

function headline(timeline, live, rate) {
  const { requests, batches, rows, nulls, refused, failed, cached } = timeline.counts;
  const mean = batches ? ((rows - nulls) / batches).toFixed(2) : "–";
  const facts = [
    [requests, "requests"], [batches, "batches"], [mean, "rows in a batch (mean)"], [timeline.depth, "waiting"],
  ];
  if (nulls) facts.push([`${((100 * nulls) / rows).toFixed(0)} %`, "null rows"]);
  if (refused) facts.push([refused, "refused"]);
  if (failed) facts.push([failed, "failed"]);
  if (cached) facts.push([cached, "from the cache"]);
  if (live && rate !== null) facts.push([rate.toFixed(0), "requests/s"]);
  const nodes = facts.map(([value, label]) =>
    element("span", "tnb-fact", element("b", "", String(value)), ` ${label}`));
  if (timeline.drawn > 1) nodes.push(note(`1 of ${timeline.drawn} requests drawn, all counted`));
  if (timeline.batches.size < batches) nodes.push(note(`${timeline.batches.size} of ${batches} batches kept`));
  if (!live) nodes.push(note("recorded"));
  if (timeline.meta.note) nodes.push(element("span", "", timeline.meta.note));
  return [element("b", "tnb-model", timeline.meta.model ?? ""), ...nodes];
}

function legendKey(colour, label) {
  const mark = element("span", "tnb-key");
  mark.style.background = colour;
  return element("span", "", mark, label);
}

function legend(timeline) {
  const { meta, counts } = timeline;
  const { sky, blue, orange, vermilion } = meta.colours;
  const failures = counts.failed ? [legendKey(vermilion, "outline: requests failed")] : [];
  if (timeline.sequences) {
    const text = "box: a running request of the sequence, thick left edge START, right edge END; " +
      "hatched: null request; pale: the sequence holds the slot, dotted: idle";
    return [element("span", "", text), ...failures];
  }
  const preferred = meta.preferred.length ? `, dashed: preferred ${meta.preferred.join(", ")}` : "";
  const box = `box: a batch, as high as its share of max_batch_size ${meta.max_batch_size || 1}${preferred}; `;
  const nodes = [
    element("span", "", `${box}the line below it:`),
    legendKey(sky, "input"), legendKey(blue, "infer"), legendKey(orange, "output"),
  ];
  if ([...timeline.batches.values()].some((batch) => batch.differs)) {
    nodes.push(element("span", "", "≠: not a batch of the other run"));
  }
  nodes.push(...failures);
  if (meta.priorities) nodes.push(element("span", "", "requests:"));
  for (let level = 1; level <= Math.min(7, meta.priorities); level += 1) {
    nodes.push(legendKey(colourOf(timeline, level - 1), `priority ${level}`));
  }
  return nodes;
}

function describeMoment(timeline, time) {
  const running = timeline.runningAt(time).map((batch) => `${batch.rows} rows on ${batch.instance}`);
  const text = running.length ? `running: ${running.join(", ")}` : "no batch is running";
  return `${timeline.depthAt(time)} waiting, ${text}`;
}

function table(head, rows) {
  const row = (tag, values) => element("tr", "", ...values.map((value) => element(tag, "", String(value))));
  const body = rows.map((values) => row("td", values));
  return element("table", "", element("thead", "", row("th", head)), element("tbody", "", ...body));
}

function batchDetails(timeline, batch) {
  const most = timeline.meta.max_batch_size || 1;
  const title = `Batch ${batch.n} on ${batch.instance}: ${batch.rows} of at most ${most} rows; ` +
    `waited ${formatMs(batch.sent - batch.oldest)} ms, ran ${phases(batch)}; ${batch.depth} left waiting.`;
  const parts = [element("p", "", element("b", "", title)), element("p", "tnb-why", `Why now? ${batch.why}.`)];
  if (batch.failed) {
    const requests = batch.requests === 1 ? "request" : "requests";
    parts.push(element("p", "", `${batch.failed} of ${batch.requests} ${requests} failed.`));
  }
  if (batch.differs) parts.push(element("p", "", "≠ In the other run these requests are not a batch."));
  return [...parts, ...(batch.slots ? [controlTable(timeline, batch)] : memberTable(batch))];
}

function phases({ start, input, output, end }) {
  if (end === null) return "still running";
  const parts = `in ${formatMs(input - start)} + infer ${formatMs(output - input)} + out ${formatMs(end - output)}`;
  return `${parts} = ${formatMs(end - start)} ms`;
}

// The control inputs that a stateful model got with a batch.
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

function memberTable(batch) {
  const shown = batch.members.filter(Boolean).slice(0, 12);
  const rows = shown.map(({ label, rows: size, priority, queued }) =>
    [label, size, priority || "–", formatMs(batch.sent - queued)]);
  const parts = [table(["request", "rows", "priority", "waited (ms)"], rows)];
  const more = batch.requests - shown.length;
  if (more > 0) parts.push(element("p", "tnb-note", `${more} more requests`));
  return parts;
}

function formatDuration(time) {
  if (time < 1000) return `${time.toFixed(0)} ms`;
  return `${(time / 1000).toFixed(time < 10_000 ? 1 : 0)} s`;
}

// Instances x slots: the sequence in each, how many of its requests were executed, and its remaining idle time.
function slotGrid(timeline, time, live) {
  const { slots, backlog } = timeline.slotsAt(time);
  const { owners, backlog: current, omitted } = timeline.slotState;
  if (live && owners) {
    for (const [sequence, instance, slot, left] of owners) {
      const key = `${instance} ${slot}`;
      const known = slots.get(key);
      const executed = known?.sequence === sequence ? known.executed : 0;
      slots.set(key, { sequence, executed, left: left - (time - timeline.now) });
    }
  }
  const cells = lanesOf(timeline).map(([instance, slot]) =>
    slotCell(timeline, `${instance} · ${slot}`, slots.get(`${instance} ${slot}`)));
  const { strategy, states } = timeline.meta;
  const waiting = live ? current ?? backlog : backlog;
  const more = live && omitted ? ` and ${omitted} more` : "";
  const state = states?.length ? `; state ${states.join(", ")}` : "";
  const text = `${strategy} strategy${state}; backlog: ${waiting.length ? waiting.join(", ") : "empty"}${more}`;
  return element("div", "", element("p", "tnb-note", text), element("div", "tnb-grid", ...cells));
}

function slotCell(timeline, name, owner) {
  if (!owner) return element("div", "tnb-cell", note(name), note("free"));
  const left = Math.max(0, owner.left);
  const bar = element("span", "tnb-bar");
  bar.style.width = `${Math.min(100, (100 * left) / (timeline.meta.idle || 1))}%`;
  bar.title = `loses the slot if no request arrives within ${formatDuration(left)}`;
  const sequence = element("b", "", String(owner.sequence));
  const executed = element("span", "", `${owner.executed} run`);
  const idle = note(`idle in ${formatDuration(left)}`);
  const cell = element("div", "tnb-cell tnb-held", note(name), sequence, executed, idle, bar);
  cell.style.borderColor = sequenceColour(timeline, owner.sequence);
  return cell;
}

export { batchDetails, describeMoment, headline, legend, slotGrid };
