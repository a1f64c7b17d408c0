// Files to save: the picture as SVG or PNG, the batches as a trace for Perfetto in Chrome's JSON format.

import { answeredAt } from "./timeline.js";

/** @param {Timeline} timeline */
function perfettoTrace(timeline) {
  const process = { pid: 1 };
  /** @type {object[]} */
  const events = [{ ...process, ph: "M", name: "process_name", args: { name: timeline.meta.model } }];
  const threads = new Map(timeline.instances.map((instance, index) => [instance, index + 1]));
  for (const [name, tid] of threads) events.push({ ...process, ph: "M", name: "thread_name", tid, args: { name } });
  for (const batch of timeline.batches.values()) {
    if (batch.end === null) continue;
    events.push({
      ...process, ph: "X", name: `${batch.rows} rows`, cat: "batch", tid: threads.get(batch.instance),
      ts: batch.start * 1000, dur: (batch.end - batch.start) * 1000,
      args: { rows: batch.rows, requests: batch.requests, why: batch.why, queue_depth: batch.depth },
    });
    for (const [place, member] of batch.members.entries()) {
      if (!member) continue;
      const id = `${batch.n} ${member.label}`;
      const request = { ...process, cat: "request", name: `request ${member.label}`, id, tid: 0 };
      const args = { rows: member.rows, priority: member.priority };
      events.push({ ...request, ph: "b", ts: member.queued * 1000, args });
      events.push({ ...request, ph: "e", ts: answeredAt(batch, place) * 1000 });
    }
  }
  for (const [time, requests] of timeline.depths) {
    events.push({ ...process, ph: "C", name: "queue depth", ts: time * 1000, args: { requests } });
  }
  return JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" });
}

// Save what a view shows as "svg" or "png", or its batches as a "trace".
/** @param {View} view @param {"svg" | "png" | "trace"} kind */
function saveView(view, kind) {
  const name = view.timeline.meta.model ?? "batches";
  const save = (suffix, content, type) => download(`${name}.${suffix}`, new Blob([content], { type }));
  if (kind === "svg") save("svg", view.svg(), "image/svg+xml");
  else if (kind === "png") view.canvas.toBlob((blob) => download(`${name}.png`, blob));
  else save("perfetto.json", perfettoTrace(view.timeline), "application/json");
}

/** @param {string} name @param {Blob} blob */
function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export { perfettoTrace, saveView };
