// Draws a story on a surface: lanes of instances or of slots, the requests that wait, depth and delay budget.

const RIGHT = 12, TOP = 8, AXIS = 22;
const FEW = 14;
const TALLEST = 8000; // of all slots together: a browser draws nothing on what is much taller
const LANE = 66, LABELS = 15, QUEUE = 110, BAND = 44, GAP = 12;

class Scale {
  constructor(surface, from, span, left) {
    Object.assign(this, { from, span, to: from + span, left, width: surface.width - left - RIGHT });
  }
  x(time) { return this.left + ((time - this.from) / this.span) * this.width; }
  clamp(time) { return Math.min(Math.max(this.x(time), this.left - 4), this.left + this.width + 4); }
}

function laneHeights(story) {
  if (story.sequences) {
    const slots = Math.max(1, lanesOf(story).length);
    const lane = Math.max(Math.min(15, TALLEST / slots), Math.min(26, 340 / slots));
    return { lane, lanes: slots * lane, queue: 26 + 13 * Math.max(1, backlogRows(story)), bands: BAND };
  }
  const count = Math.max(1, story.instances.length);
  const lane = Math.max(14, Math.min(LANE, 280 / count));
  return { lane, lanes: count * (lane + LABELS), queue: QUEUE, bands: story.meta.delay ? 2 * BAND + GAP : BAND };
}

function heightOf(story) {
  const { lanes, queue, bands } = laneHeights(story);
  return TOP + lanes + GAP + queue + GAP + bands + GAP + AXIS;
}

// Slots of many are shown up to the highest that was used.
function lanesOf(story) {
  const used = new Map(story.instances.map((each) => [each, 0]));
  for (const [, instance, slot] of story.stays.values()) used.set(instance, Math.max(used.get(instance) ?? 0, slot));
  for (const [, instance, slot] of story.seen.owners ?? []) used.set(instance, Math.max(used.get(instance) ?? 0, slot));
  const count = story.meta.slots ?? 1;
  return story.instances.flatMap((instance) =>
    Array.from({ length: count <= 8 ? count : used.get(instance) + 1 }, (_, slot) => [instance, slot]));
}

// Room for the longest name, within reason.
function gutterOf(surface, story) {
  const names = story.sequences ? lanesOf(story).map((lane) => lane.join(" · ")) : story.instances;
  return Math.min(240, Math.max(100, ...names.map((each) => surface.measure(each, 11) + 16)));
}

// As much of a name's end as there is room for: it tells instances from each other.
function ending(surface, name, room) {
  let words = name;
  while (words.length > 2 && surface.measure(words, 11) > room) words = `…${words.slice(2)}`;
  return words;
}

function backlogRows(story) {
  return Math.min(8, Math.max([...story.stays.values()].filter((each) => each[4] > each[3]).length, (story.seen.backlog ?? []).length, 1));
}

// By priority where there are any; a few requests have a colour each.
function requestColour(story, member) {
  if (story.meta.priorities) return member[PRIORITY] ? colourOf(member[PRIORITY] - 1) : PALETTE[4];
  if (story.counts.requests > FEW) return PALETTE[4];
  story.few ??= new Map();
  if (!story.few.has(member[LABEL])) story.few.set(member[LABEL], story.few.size);
  return colourOf(story.few.get(member[LABEL]));
}

const sequenceColour = (story, sequence) => colourOf(story.numberOf(sequence));

// Draws everything; returns what can be clicked: [x, y, width, height, batch number].
function drawStory(surface, story, { from, span, end, cursor, selected }) {
  story.gutter = gutterOf(surface, story);
  const scale = new Scale(surface, from, span, story.gutter);
  const sizes = laneHeights(story);
  const batches = story.between(from, scale.to);
  const targets = [];
  const frame = { surface, story, scale, sizes, batches, targets, end, selected };
  const queueTop = TOP + sizes.lanes + GAP;
  drawLabels(frame, queueTop);
  surface.clip(scale.left - 4, 0, scale.width + 8, surface.height - AXIS + 2, () => {
    if (story.sequences) {
      drawSlots(frame);
      drawBacklog(frame, queueTop);
    } else {
      drawQueue(frame, queueTop);
      drawBatches(frame, queueTop);
    }
    drawBands(frame, queueTop + sizes.queue + GAP);
    if (cursor !== null) surface.line(scale.x(cursor), 0, scale.x(cursor), surface.height - AXIS, { stroke: surface.theme.accent, line: 1.5 });
  });
  drawAxis(frame);
  return targets;
}

function drawLabels({ surface, story, scale, sizes }, queueTop) {
  const label = (words, y, faint) => surface.text(ending(surface, words, scale.left - 12), scale.left - 8, y, { align: "right", size: 11, fill: faint ? surface.theme.faint : surface.theme.ink });
  if (story.sequences) {
    const named = Math.ceil(11 / sizes.lane); // of many, every n-th has room for a name
    lanesOf(story).forEach(([instance, slot], at) => at % named || label(`${instance} · ${slot}`, TOP + (at + 0.5) * sizes.lane));
    label("backlog", queueTop + 8);
  } else {
    story.instances.forEach((instance, at) => label(instance, TOP + at * (sizes.lane + LABELS) + LABELS + sizes.lane / 2));
    label("waiting", queueTop + 8);
  }
  const bands = queueTop + sizes.queue + GAP;
  const most = largest(story.depths, ([time, depth]) => (time >= scale.from && time <= scale.to ? depth : 1), Math.max(1, story.depthAt(scale.from)));
  story.most = most;
  label("queue depth", bands + BAND / 2);
  label(String(most), bands + 5, true);
  label("0", bands + BAND - 3, true);
  if (!story.sequences && story.meta.delay) {
    label("delay budget", bands + BAND + GAP + BAND / 2);
    label(`${story.meta.delay} ms`, bands + BAND + GAP + 5, true);
  }
}

function drawBatches(frame, queueTop) {
  const { surface, story, scale, sizes, batches, targets, end, selected } = frame;
  const theme = surface.theme;
  const full = Math.max(1, story.meta.max_batch_size || 1);
  const members = batches.reduce((sum, each) => sum + each.members.length, 0);
  story.instances.forEach((instance, at) => {
    const top = TOP + at * (sizes.lane + LABELS) + LABELS, bottom = top + sizes.lane;
    surface.rect(scale.left, top, scale.width, sizes.lane, { fill: theme.panel, alpha: 0.6 });
    for (const size of story.meta.preferred) {
      if (size < full) surface.line(scale.left, bottom - (size / full) * sizes.lane, scale.left + scale.width, bottom - (size / full) * sizes.lane, { stroke: theme.faint, dash: [4, 4], alpha: 0.7 });
    }
    surface.line(scale.left, bottom, scale.left + scale.width, bottom, { stroke: theme.line });
    for (const batch of batches) {
      if (batch.instance !== instance) continue;
      const begin = batch.start ?? batch.sent;
      const left = scale.clamp(begin), right = Math.max(scale.clamp(batch.end ?? end), left + 1);
      const height = Math.max(2, (Math.min(batch.rows, full) / full) * sizes.lane);
      drawSlices(frame, batch, left, right, bottom, height, members < 150 ? queueTop : null);
      const chosen = batch.n === selected;
      surface.rect(left, bottom - height, right - left, height, { stroke: chosen ? theme.accent : outline(batch, PALETTE[0]), line: chosen ? 3 : batch.failed ? 2 : 1 });
      drawParts(frame, batch, left, right, bottom);
      drawBatchLabel(surface, batch, left, right - left, bottom - height);
      if (batch.differs && right - left > 16 && height > 14) surface.text("≠", right - 4, bottom - height + 9, { size: 15, align: "right", bold: true });
      targets.push([left - 2, top - LABELS, right - left + 4, sizes.lane + LABELS, batch.n]);
    }
  });
}

const outline = (batch, colour) => (batch.failed ? PALETTE[5] : colour);

// A batch's box in slices, one for each request as high as its rows, and lines from where those waited.
function drawSlices(frame, batch, left, right, bottom, height, queueTop) {
  const { surface, story, scale, sizes } = frame;
  const slices = slicesOf(story, batch, height, right - left);
  const step = queueStep(sizes, frame.lines);
  let y = bottom;
  for (const [member, part, colour, label] of slices) {
    surface.rect(left, y - part, right - left, part, { fill: colour ?? surface.theme.faint, alpha: 0.55 });
    if (label && part >= 12 && right - left > surface.measure(label, 10) + 6) surface.text(label, left + 4, y - part / 2, { size: 10 });
    if (part >= 3) surface.line(left, y, right, y, { stroke: surface.theme.paper, line: 1 });
    if (member && queueTop !== null) {
      surface.line(scale.clamp(batch.sent), queueTop + 6 + member[LINE] * step, left, y - part / 2, { stroke: colour, alpha: 0.5 });
    }
    y -= part;
  }
}

// [member, height, colour, label] from below; where that is too small to see, one slice for each colour.
function slicesOf(story, batch, height, width) {
  const rows = batch.members.reduce((sum, each) => sum + (each.length ? each[ROWS] : 1), 0);
  const slices = batch.members.map((each) => (each.length
    ? [each, (height * each[ROWS]) / rows, requestColour(story, each), each[LABEL]]
    : [null, height / rows, null, ""]));
  if ((height / rows >= 3 && width >= 5) || slices.length <= 1) return slices;
  const parts = new Map();
  for (const [, part, colour] of slices) parts.set(colour, (parts.get(colour) ?? 0) + part);
  return [...parts].map(([colour, part]) => [null, part, colour, ""]);
}

// Input, inference and output as a strip below the box.
function drawParts({ surface, scale }, batch, left, right, bottom) {
  if (batch.end === null || batch.input === undefined || right - left < 12) return;
  const marks = [batch.start, batch.input, batch.output, batch.end].map((each) => scale.clamp(each));
  [PALETTE[4], PALETTE[0], PALETTE[1]].forEach((fill, at) => surface.rect(marks[at], bottom, marks[at + 1] - marks[at], 3, { fill }));
}

const ms = (value) => (value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2));

function drawBatchLabel(surface, batch, left, width, top) {
  const rows = batch.rows === 1 ? "1 row" : `${batch.rows} rows`;
  const requests = batch.requests === 1 ? "1 request" : `${batch.requests} requests`;
  const waited = `waited ${ms(batch.sent - batch.oldest)}`;
  const ran = batch.end === null ? "runs" : `ran ${ms(batch.end - batch.start)} ms`;
  const words = [`${requests}, ${rows} · ${waited}, ${ran}`, `${requests}, ${rows}`, rows, `${batch.rows}`];
  const fitting = words.find((each) => surface.measure(each, 10) <= width - 3);
  if (fitting) surface.text(fitting, left + 1, top - 7, { size: 10, halo: true });
}

const queueStep = (sizes, most) => Math.min(13, (sizes.queue - 12) / (most + 1));

function drawQueue(frame, top) {
  const { surface, story, scale, sizes, batches, end, selected } = frame;
  const lines = [];
  for (const batch of batches) {
    for (const member of batch.members) if (member.length) lines.push([member, batch.sent, batch.n]);
  }
  for (const member of story.pending) lines.push([member, Math.max(end, member[QUEUED]), null]);
  const gone = [...story.refused.values()].filter(([begin, time]) => time >= scale.from && begin <= scale.to);
  const most = largest(gone, ([, , , line]) => line, largest(lines, ([member]) => member[LINE], 5));
  const step = queueStep(sizes, most);
  frame.lines = most;
  const kinds = new Map(); // colour -> [lines, beginnings]
  const named = [], words = [];
  for (const [member, until, number] of lines) {
    const y = top + 6 + member[LINE] * step;
    const colour = requestColour(story, member);
    const begin = scale.clamp(member[QUEUED]), left = scale.clamp(until);
    if (!kinds.has(colour)) kinds.set(colour, [[], []]);
    const [waits, beginnings] = kinds.get(colour);
    waits.push([begin, y, left, y]);
    beginnings.push([begin, y]);
    if (number !== null && number === selected) surface.line(begin, y, left, y, { stroke: colour, line: 4 });
    const room = step >= 10 && lines.length < 200 && begin - (named[member[LINE]] ?? -Infinity) > surface.measure(member[LABEL], 10) + 14;
    if (room) words.push([member[LABEL], begin - 5, y]);
    named[member[LINE]] = Math.max(begin, named[member[LINE]] ?? -Infinity);
  }
  const radius = Math.min(lines.length > 150 ? 1.8 : 3.5, Math.max(1.2, step * 0.36));
  for (const [colour, [waits, beginnings]] of kinds) {
    surface.lines(waits, { stroke: colour, line: Math.min(2, Math.max(0.5, step * 0.6)) });
    surface.dots(beginnings, radius, colour);
  }
  for (const [label, x, y] of words) surface.text(label, x, y, { size: 10, align: "right", halo: true });
  drawRefused(frame, gone, top, step);
}

function drawRefused({ surface, scale }, gone, top, step) {
  for (const [begin, time, , line] of gone) {
    const x = scale.clamp(time), y = top + 6 + line * step;
    surface.line(scale.clamp(begin), y, x, y, { stroke: surface.theme.faint });
    surface.line(x - 4, y - 4, x + 4, y + 4, { stroke: PALETTE[5], line: 2 });
    surface.line(x - 4, y + 4, x + 4, y - 4, { stroke: PALETTE[5], line: 2 });
  }
}

function drawSlots(frame) {
  const { surface, story, scale, sizes, batches, targets, end, selected } = frame;
  const theme = surface.theme;
  const places = new Map(lanesOf(story).map(([instance, slot], at) => [`${instance} ${slot}`, TOP + at * sizes.lane]));
  lanesOf(story).forEach(([instance], at) => {
    const shade = story.instances.indexOf(instance) % 2;
    surface.rect(scale.left, TOP + at * sizes.lane, scale.width, sizes.lane, { fill: shade ? theme.panel : theme.paper });
    surface.line(scale.left, TOP + at * sizes.lane, scale.left + scale.width, TOP + at * sizes.lane, { stroke: theme.line });
  });
  const named = new Set(); // bands with a box that is large enough for the name
  for (const batch of batches) {
    if (scale.clamp(batch.end ?? end) - scale.clamp(batch.start ?? batch.sent) < 20) continue;
    batch.slots?.forEach((slot, at) => named.add(`${batch.instance} ${slot} ${batch.members[at]?.[SEQUENCE]}`));
  }
  for (const stay of story.staysBetween(scale.from, scale.to)) {
    const [sequence, instance, slot, , assigned, released, how, , last] = stay;
    const y = places.get(`${instance} ${slot}`);
    if (y === undefined) continue;
    const left = scale.clamp(assigned), right = scale.clamp(released ?? end);
    surface.rect(left, y, right - left, sizes.lane, { fill: sequenceColour(story, sequence), alpha: 0.2 });
    if (released === null) drawIdle(frame, y, last, right);
    if (!named.has(`${instance} ${slot} ${sequence}`) && right - left > 30) {
      surface.text(String(sequence), Math.max(left, scale.left) + 6, y + sizes.lane / 2, { size: 10, bold: true });
    }
    if (how === "idle") surface.text("idle ✕", right - 3, y + sizes.lane / 2, { size: 10, align: "right", fill: PALETTE[5], halo: true });
  }
  for (const batch of batches) {
    if (!batch.slots) continue;
    const begin = batch.start ?? batch.sent;
    const left = scale.clamp(begin), right = Math.max(scale.clamp(batch.end ?? end), left + 2);
    const ys = batch.slots.map((slot) => places.get(`${batch.instance} ${slot}`));
    batch.members.forEach((member, at) => drawMember(frame, member, left, right, ys[at]));
    const top = Math.min(...ys), bottom = Math.max(...ys) + sizes.lane;
    const chosen = batch.n === selected;
    if (story.meta.strategy === "direct" || chosen) {
      surface.rect(left, top + 1, right - left, bottom - top - 2, { stroke: chosen ? theme.accent : outline(batch, theme.ink), line: chosen ? 3 : batch.failed ? 2 : 1 });
    } else if (ys.length > 1) {
      surface.line(left, top + sizes.lane / 2, left, bottom - sizes.lane / 2, { stroke: theme.ink, line: 1.5 });
      ys.forEach((y) => surface.dot(left, y + sizes.lane / 2, 3, theme.ink));
    }
    targets.push([left - 2, top, right - left + 4, bottom - top, batch.n]);
  }
}

// How much of the idle time is over: a line that fills the slot's lower edge.
function drawIdle({ surface, story, scale, sizes, end }, y, last, right) {
  if (!story.meta.idle) return;
  const share = Math.min(1, Math.max(0, (end - last) / story.meta.idle));
  const left = scale.clamp(last);
  surface.line(left, y + sizes.lane - 2, right, y + sizes.lane - 2, { stroke: share > 0.8 ? PALETTE[5] : surface.theme.faint, line: 2, dash: [2, 2] });
}

function drawMember({ surface, story, sizes }, member, left, right, y) {
  if (y === undefined) return;
  const margin = Math.min(3, sizes.lane / 4);
  const top = y + margin, height = sizes.lane - 2 * margin, width = right - left;
  if (!member.length) {
    surface.rect(left, top, width, height, { fill: surface.theme.paper, stroke: surface.theme.faint, hatch: true });
    if (width > 26) surface.text("null", left + width / 2, y + sizes.lane / 2, { size: 10, align: "center", halo: true });
    return;
  }
  const colour = sequenceColour(story, member[SEQUENCE]);
  surface.rect(left, top, width, height, { fill: colour, alpha: 0.65 });
  if (member[FLAGS] & START) surface.line(left, top, left, top + height, { stroke: surface.theme.ink, line: 4 });
  if (member[FLAGS] & END) surface.line(right, top, right, top + height, { stroke: surface.theme.ink, line: 4 });
  const words = String(member[SEQUENCE]);
  if (surface.measure(words, 10) + 6 < width) surface.text(words, left + width / 2, y + sizes.lane / 2, { size: 10, align: "center", bold: true });
}

function drawBacklog(frame, top) {
  const { surface, story, scale, end } = frame;
  const waited = story.staysBetween(scale.from - 1e9, scale.to).filter((each) => each[4] > each[3] && each[4] >= scale.from);
  const now = (story.seen.backlog ?? []).map((sequence) => {
    const first = story.pending.find((each) => each[SEQUENCE] === sequence);
    return [sequence, "", 0, first ? first[QUEUED] : end, end];
  });
  const free = [];
  const rows = [...waited, ...now].map((stay) => {
    let row = free.findIndex((until) => until <= stay[3]);
    if (row < 0) row = free.length;
    free[row] = stay[4] + (40 / scale.width) * scale.span;
    return [stay, row];
  });
  const step = Math.min(13, 104 / free.length), named = Math.ceil(10 / step); // of many, every n-th has room for a name
  for (const [[sequence, , , arrived, assigned], row] of rows) {
    const y = top + 10 + row * step, name = row % named ? "" : String(sequence);
    const begin = Math.max(scale.clamp(arrived), scale.left + surface.measure(name, 10) + 6);
    const left = Math.max(begin, scale.clamp(assigned));
    surface.line(begin, y, left, y, { stroke: sequenceColour(story, sequence), line: Math.max(1, Math.min(4, step - 2)) });
    if (name) surface.text(name, begin - 4, y, { size: 10, align: "right", halo: true });
  }
  for (const [begin, time, , , , sequence] of story.refused.values()) {
    if (time < scale.from || begin > scale.to) continue;
    surface.text(`✕ ${sequence || ""}`, scale.clamp(time), top + 10, { size: 11, fill: PALETTE[5], halo: true, align: "center" });
  }
}

function drawBands(frame, top) {
  const { surface, story, scale, batches, end } = frame;
  const height = (depth) => top + BAND - (depth / story.most) * (BAND - 4);
  const points = [[scale.left, height(story.depthAt(scale.from))]];
  for (const [time, depth] of story.depths) {
    if (time < scale.from || time > scale.to) continue;
    const x = scale.x(time);
    points.push([x, points[points.length - 1][1]], [x, height(depth)]);
  }
  const right = scale.clamp(Math.min(end, scale.to));
  if (right > scale.left) {
    points.push([right, points[points.length - 1][1]]);
    surface.path([[scale.left, top + BAND], ...points, [right, top + BAND]], { fill: PALETTE[4], alpha: 0.35 });
    surface.path(points, { stroke: PALETTE[0] });
  }
  surface.line(scale.left, top + BAND, scale.left + scale.width, top + BAND, { stroke: surface.theme.line });
  if (!story.sequences && story.meta.delay) drawBudget(frame, top + BAND + GAP);
}

// How much of max_queue_delay the oldest request of each batch had used while the batch formed.
function drawBudget({ surface, story, scale, batches, end }, top) {
  const used = (waited) => top + BAND - Math.min(1.15, waited / story.meta.delay) * (BAND - 6);
  surface.line(scale.left, used(story.meta.delay), scale.left + scale.width, used(story.meta.delay), { stroke: PALETTE[5], dash: [4, 4] });
  for (const batch of batches) {
    const full = Math.min(batch.sent, batch.oldest + 1.15 * story.meta.delay);
    const shape = [[scale.x(batch.oldest), top + BAND], [scale.x(full), used(full - batch.oldest)], [scale.x(batch.sent), used(batch.sent - batch.oldest)], [scale.x(batch.sent), top + BAND]];
    surface.path(shape, { fill: PALETTE[1], alpha: 0.35 });
    surface.path(shape.slice(0, 3), { stroke: PALETTE[1] });
  }
  if (story.pending.length) {
    const oldest = Math.min(...story.pending.map((each) => each[QUEUED]));
    surface.path([[scale.x(oldest), top + BAND], [scale.clamp(end), used(Math.max(0, end - oldest))]], { stroke: PALETTE[1], line: 2 });
  }
  surface.line(scale.left, top + BAND, scale.left + scale.width, top + BAND, { stroke: surface.theme.line });
}

function drawAxis({ surface, scale }) {
  const y = surface.height - AXIS;
  surface.line(scale.left, y, scale.left + scale.width, y, { stroke: surface.theme.line });
  const raw = scale.span / Math.max(2, scale.width / 110);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const seconds = scale.to >= 10000;
  for (let time = Math.max(0, Math.ceil(scale.from / step) * step); time <= scale.to; time += step) {
    surface.line(scale.x(time), y, scale.x(time), y + 4, { stroke: surface.theme.line });
    const digits = Math.max(0, -Math.floor(Math.log10(seconds ? step / 1000 : step)));
    const words = seconds ? `${(time / 1000).toFixed(digits)} s` : `${time.toFixed(digits)} ms`;
    if (scale.x(time) < surface.width - 24) surface.text(words, scale.x(time), y + 12, { size: 10, align: "center", fill: surface.theme.faint });
  }
}
