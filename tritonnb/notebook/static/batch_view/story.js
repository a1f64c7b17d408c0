// What is known of a model's batches: deliveries from the kernel merged into one story, and questions to it.
// A member of a batch is [label, rows, priority, queued, line, sequence, flags], or [] for a null request.

const LABEL = 0, ROWS = 1, PRIORITY = 2, QUEUED = 3, LINE = 4, SEQUENCE = 5, FLAGS = 6;
const START = 1, END = 2;
const MOST = 6000; // batches, refused requests and stays that are kept

// Times come as whole ten-thousandths of a millisecond, batches as one list for each of their fields.
const TICKS = 10000;
const TIMES = { sent: true, start: true, input: true, output: true, end: true, oldest: true };
const time = (ticks) => (ticks === null ? null : ticks / TICKS);
const request = (told) => told.map((value, at) => (at === QUEUED ? time(value) : value));

function objects(columns) {
  const names = Object.keys(columns);
  if (!names.length) return [];
  return columns[names[0]].map((_, row) => {
    const found = {};
    for (const name of names) found[name] = TIMES[name] ? time(columns[name][row]) : columns[name][row];
    if (found.members) found.members = found.members.map(request);
    return found;
  });
}

function unpacked(told) {
  return {
    ...told,
    now: time(told.now),
    pending: told.pending.map(request),
    batches: objects(told.batches),
    done: objects(told.done),
    refused: told.refused.map(([begin, end, ...rest]) => [time(begin), time(end), ...rest]),
    depths: told.depths.map(([at, depth]) => [time(at), depth]),
    stays: told.stays.map(([sequence, instance, slot, arrived, assigned, released, ended, ran, last]) =>
      [sequence, instance, slot, time(arrived), time(assigned), time(released), ended, ran, time(last)]),
  };
}

class Story {
  constructor() {
    this.meta = {};
    this.instances = [];
    this.batches = new Map();
    this.pending = [];
    this.refused = new Map();
    this.depths = [];
    this.stays = new Map();
    this.counts = { requests: 0, refused: 0, failed: 0, batches: 0, rows: 0, nulls: 0, sizes: [] };
    this.depth = 0;
    this.now = 0;
    this.seen = {};
    this.drawn = 1;
    this.steps = null;
  }

  // A history holds all that is kept, a tick what is new; both may tell what is known already.
  merge(packed) {
    if (packed.now === undefined) return;
    const told = unpacked(packed);
    this.steps = null;
    if (told.meta) this.meta = told.meta;
    for (const batch of told.batches) {
      if (!this.batches.has(batch.n)) this.batches.set(batch.n, batch);
      else if (batch.end !== null) Object.assign(this.batches.get(batch.n), batch);
      if (batch.drawn) this.drawn = batch.drawn[0] * batch.drawn[1];
    }
    for (const done of told.done) {
      const batch = this.batches.get(done.n);
      if (batch) Object.assign(batch, done);
    }
    for (const each of told.refused) this.refused.set(`${each[0]} ${each[2]}`, each);
    const last = this.depths.length ? this.depths[this.depths.length - 1][0] : -Infinity;
    this.depths.push(...told.depths.filter(([time]) => time > last));
    for (const each of told.stays) this.stays.set(`${each[1]} ${each[2]} ${each[4]}`, each);
    if (told.now >= this.now) {
      Object.assign(this, { pending: told.pending, depth: told.depth, counts: told.counts, now: told.now });
      if (told.seen) this.seen = told.seen;
    }
    for (const known of [this.batches, this.refused, this.stays]) {
      while (known.size > MOST) known.delete(known.keys().next().value); // the oldest
    }
    if (this.depths.length > 20 * MOST) this.depths.splice(0, MOST);
    this.instances = this.instancesWith(told.instances);
  }

  // An instance that was taken away keeps its lane as long as something on it can be seen.
  instancesWith(present) {
    const found = new Set(present);
    for (const batch of this.batches.values()) found.add(batch.instance);
    for (const [, instance] of this.stays.values()) found.add(instance);
    return [...found].sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
  }

  get sequences() {
    return this.meta.batcher === "sequence";
  }

  get begin() {
    const first = this.batches.values().next().value;
    return Math.min(first ? first.oldest : this.now, this.depths.length ? this.depths[0][0] : this.now);
  }

  // Where everything that is known has ended.
  get end() {
    let end = this.now;
    for (const batch of this.batches.values()) end = Math.max(end, batch.end ?? 0);
    return end;
  }

  between(from, to) {
    const found = [];
    for (const batch of this.batches.values()) {
      if (batch.oldest <= to && (batch.end ?? Infinity) >= from) found.push(batch);
    }
    return found;
  }

  staysBetween(from, to) {
    return [...this.stays.values()].filter(([, , , arrived, , released]) => arrived <= to && (released ?? Infinity) >= from);
  }

  depthAt(time) {
    let low = 0, high = this.depths.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.depths[middle][0] <= time) low = middle + 1;
      else high = middle;
    }
    return low ? this.depths[low - 1][1] : 0;
  }

  runningAt(time) {
    return this.between(time, time).filter((each) => each.start !== null && each.start <= time && (each.end ?? Infinity) > time);
  }

  // Everything that happened, in order: what one steps through.
  get events() {
    if (this.steps) return this.steps;
    const steps = [];
    const arrival = (each) => {
      const rows = `${each[ROWS]} ${each[ROWS] === 1 ? "row" : "rows"}`;
      const of = each[SEQUENCE] ? ` of sequence ${each[SEQUENCE]}` : "";
      const flags = (each[FLAGS] & START ? " START" : "") + (each[FLAGS] & END ? " END" : "");
      steps.push([each[QUEUED], `request ${each[LABEL]}${of} arrives (${rows}${flags})`, null]);
    };
    for (const batch of this.batches.values()) {
      batch.members.filter((each) => each.length).forEach(arrival);
      steps.push([batch.sent, `batch of ${batch.rows} sent to ${batch.instance}: ${batch.why}`, batch.n]);
      if (batch.end !== null) steps.push([batch.end, `batch of ${batch.rows} is done on ${batch.instance}`, batch.n]);
    }
    this.pending.forEach(arrival);
    for (const [, time, label, , message] of this.refused.values()) steps.push([time, `request ${label} is refused: ${message}`, null]);
    for (const [sequence, instance, slot, arrived, assigned, released, how] of this.stays.values()) {
      if (assigned > arrived) steps.push([assigned, `sequence ${sequence} leaves the backlog for slot ${slot} of ${instance}`, null]);
      if (released !== null) steps.push([released, `slot ${slot} of ${instance} is free: sequence ${sequence} ${how === "idle" ? "was idle for too long" : "has ended"}`, null]);
    }
    this.steps = steps.sort((one, other) => one[0] - other[0]);
    return this.steps;
  }

  // The sequences in slots, and those in the backlog, at a time: [sequence, requests run, idle left in ms].
  slotsAt(time) {
    const slots = new Map();
    const backlog = [];
    for (const [sequence, instance, slot, arrived, assigned, released] of this.stays.values()) {
      if (arrived <= time && time < assigned) backlog.push(sequence);
      if (assigned > time || (released ?? Infinity) <= time) continue;
      let ran = 0, last = assigned;
      for (const batch of this.batches.values()) {
        if (batch.instance !== instance || batch.oldest > time) continue;
        const member = batch.slots ? batch.members[batch.slots.indexOf(slot)] : undefined;
        if (!member?.length || member[SEQUENCE] !== sequence || member[QUEUED] < arrived) continue;
        if (batch.sent <= time) ran += 1;
        if (member[QUEUED] <= time) last = Math.max(last, member[QUEUED]);
      }
      slots.set(`${instance} ${slot}`, { sequence, ran, left: this.meta.idle - (time - last) });
    }
    return { slots, backlog };
  }

  describe() {
    const { requests, batches, rows, nulls, refused, failed } = this.counts;
    const mean = batches ? ((rows - nulls) / batches).toFixed(1) : "0";
    return `${this.meta.model}: ${requests} requests, ${batches} batches, ${mean} rows in a batch on average` +
      `${nulls ? `, ${nulls} null rows` : ""}${refused ? `, ${refused} refused` : ""}${failed ? `, ${failed} failed` : ""}; ${this.depth} waiting.`;
  }
}
