// Files to keep: the picture as SVG or PNG, the batches as a trace for Perfetto (Chrome's JSON format).

function perfettoTrace(story) {
  const events = [{ ph: "M", name: "process_name", pid: 1, args: { name: story.meta.model } }];
  const threads = new Map(story.instances.map((instance, at) => [instance, at + 1]));
  for (const [instance, tid] of threads) events.push({ ph: "M", name: "thread_name", pid: 1, tid, args: { name: instance } });
  for (const batch of story.batches.values()) {
    if (batch.end === null) continue;
    const args = { rows: batch.rows, requests: batch.requests, why: batch.why, queue_depth: batch.depth };
    events.push({ ph: "X", name: `${batch.rows} rows`, cat: "batch", pid: 1, tid: threads.get(batch.instance), ts: batch.start * 1000, dur: (batch.end - batch.start) * 1000, args });
    for (const member of batch.members) {
      if (!member.length) continue;
      const id = `${batch.n} ${member[LABEL]}`;
      const request = { cat: "request", name: `request ${member[LABEL]}`, id, pid: 1, tid: 0 };
      events.push({ ...request, ph: "b", ts: member[QUEUED] * 1000, args: { rows: member[ROWS], priority: member[PRIORITY] } });
      events.push({ ...request, ph: "e", ts: batch.end * 1000 });
    }
  }
  for (const [time, depth] of story.depths) events.push({ ph: "C", name: "queue depth", pid: 1, ts: time * 1000, args: { requests: depth } });
  return JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" });
}

function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
