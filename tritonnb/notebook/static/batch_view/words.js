// What stands around the picture: headline, legend, the table of a batch, the grid of slots.

function make(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children);
  return node;
}

function headline(story, live, rate) {
  const { requests, batches, rows, nulls, refused, failed, cached } = story.counts;
  const facts = [
    [requests, "requests"], [batches, "batches"],
    [batches ? ((rows - nulls) / batches).toFixed(2) : "–", "rows in a batch (mean)"],
    [story.depth, "waiting"],
  ];
  if (nulls) facts.push([`${((100 * nulls) / rows).toFixed(0)} %`, "null rows"]);
  if (refused) facts.push([refused, "refused"]);
  if (failed) facts.push([failed, "failed"]);
  if (cached) facts.push([cached, "from the cache"]);
  if (live && rate !== null) facts.push([rate.toFixed(0), "requests/s"]);
  const nodes = facts.map(([value, words]) => make("span", "tnb-fact", make("b", "", String(value)), ` ${words}`));
  if (story.drawn > 1) nodes.push(make("span", "tnb-note", `1 of ${story.drawn} requests drawn, all counted`));
  if (story.batches.size < batches) nodes.push(make("span", "tnb-note", `${story.batches.size} of ${batches} batches to look at`));
  if (!live) nodes.push(make("span", "tnb-note", "recorded"));
  if (story.meta.note) nodes.push(make("span", "", story.meta.note));
  return [make("b", "tnb-model", story.meta.model ?? ""), ...nodes];
}

function legend(story) {
  const { meta } = story;
  const key = (colour, words) => {
    const mark = make("span", "tnb-key");
    mark.style.background = colour;
    return make("span", "", mark, words);
  };
  const failures = story.counts.failed ? [key(PALETTE[5], "outline: requests failed")] : [];
  if (story.sequences) {
    return [make("span", "", "box: a request of the sequence runs, thick left edge START, right edge END; hatched: null request; pale: holds the slot, dotted: silent"), ...failures];
  }
  const words = [make("span", "", `box: a batch, as high as its share of max_batch_size ${meta.max_batch_size || 1}${meta.preferred.length ? `, dashed: preferred ${meta.preferred.join(", ")}` : ""}; the line below it:`)];
  words.push(key(PALETTE[4], "input"), key(PALETTE[0], "infer"), key(PALETTE[1], "output"));
  if ([...story.batches.values()].some((each) => each.differs)) words.push(make("span", "", "≠: not a batch of the other run"));
  words.push(...failures);
  if (meta.priorities) words.push(make("span", "", "requests:"));
  for (let level = 1; level <= Math.min(7, meta.priorities); level += 1) words.push(key(colourOf(level - 1), `priority ${level}`));
  return words;
}

function momentWords(story, time) {
  const running = story.runningAt(time).map((each) => `${each.rows} rows on ${each.instance}`);
  return `${story.depthAt(time)} waiting, ${running.length ? `running: ${running.join(", ")}` : "nothing runs"}`;
}

function table(head, rows) {
  const cells = (tag, values) => values.map((each) => make(tag, "", String(each)));
  return make("table", "", make("thead", "", make("tr", "", ...cells("th", head))), make("tbody", "", ...rows.map((row) => make("tr", "", ...cells("td", row)))));
}

function batchDetails(story, batch) {
  const wait = batch.sent - batch.oldest;
  const times = batch.end === null ? "still running" : `in ${ms(batch.input - batch.start)} + infer ${ms(batch.output - batch.input)} + out ${ms(batch.end - batch.output)} = ${ms(batch.end - batch.start)} ms`;
  const title = `Batch ${batch.n} on ${batch.instance}: ${batch.rows} of at most ${story.meta.max_batch_size || 1} rows; waited ${ms(wait)} ms, ran ${times}; ${batch.depth} left waiting.`;
  const parts = [make("p", "", make("b", "", title)), make("p", "tnb-why", `Why now? ${batch.why}.`)];
  if (batch.failed) parts.push(make("p", "", `${batch.failed} of ${batch.requests} ${batch.requests === 1 ? "request" : "requests"} failed.`));
  if (batch.differs) parts.push(make("p", "", "≠ In the other run these requests are not a batch."));
  if (batch.slots) {
    const flag = (bit) => batch.members.map((each) => (each.length && each[FLAGS] & bit ? 1 : 0));
    parts.push(table(["", ...batch.slots.map((each) => `slot ${each}`)], [
      ["START", ...flag(START)], ["END", ...flag(END)],
      ["READY", ...batch.members.map((each) => (each.length ? 1 : 0))],
      ["CORRID", ...batch.members.map((each) => (each.length ? each[SEQUENCE] : 0))],
    ]));
  } else {
    const shown = batch.members.filter((each) => each.length).slice(0, 12);
    const rows = shown.map((each) => [each[LABEL], each[ROWS], each[PRIORITY] || "–", ms(batch.sent - each[QUEUED])]);
    parts.push(table(["request", "rows", "priority", "waited (ms)"], rows));
    if (batch.requests > shown.length) parts.push(make("p", "tnb-note", `${batch.requests - shown.length} more requests`));
  }
  return parts;
}

const seconds = (time) => (time >= 10_000 ? `${(time / 1000).toFixed(0)} s` : time >= 1000 ? `${(time / 1000).toFixed(1)} s` : `${time.toFixed(0)} ms`);

// Instances x slots: the sequence in each, how many of its requests ran, and how long it may stay silent.
function slotGrid(story, time, live) {
  const { slots, backlog } = story.slotsAt(time);
  if (live && story.seen.owners) {
    for (const [sequence, instance, slot, left] of story.seen.owners) {
      const key = `${instance} ${slot}`;
      const known = slots.get(key);
      slots.set(key, { sequence, ran: known?.sequence === sequence ? known.ran : 0, left: left - (time - story.now) });
    }
  }
  const grid = make("div", "tnb-grid");
  for (const [instance, slot] of lanesOf(story)) {
    const held = slots.get(`${instance} ${slot}`);
    const cell = make("div", held ? "tnb-cell tnb-held" : "tnb-cell", make("span", "tnb-note", `${instance} · ${slot}`));
    if (held) {
      cell.style.borderColor = sequenceColour(story, held.sequence);
      const left = Math.max(0, held.left);
      cell.append(make("b", "", String(held.sequence)), make("span", "", `${held.ran} run`), make("span", "tnb-note", `idle in ${seconds(left)}`));
      const bar = make("span", "tnb-bar");
      bar.style.width = `${Math.min(100, (100 * left) / (story.meta.idle || 1))}%`;
      bar.title = `loses the slot if it is silent for ${seconds(left)} more`;
      cell.append(bar);
    } else cell.append(make("span", "tnb-note", "free"));
    grid.append(cell);
  }
  const waiting = live ? story.seen.backlog ?? backlog : backlog;
  const behind = live && story.seen.behind ? ` and ${story.seen.behind} more` : "";
  const words = `backlog: ${waiting.length ? waiting.join(", ") : "empty"}${behind}`;
  return make("div", "", make("p", "tnb-note", `${story.meta.strategy} strategy${story.meta.states?.length ? `; state ${story.meta.states.join(", ")}` : ""}; ${words}`), grid);
}
