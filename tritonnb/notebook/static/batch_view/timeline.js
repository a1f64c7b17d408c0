// What is known of a model's batches: the deliveries of the kernel merged, and queries on them. Times are in ms.

import { Decoder } from "./encoding.js";

const KEPT = 6000; // batches, refused requests, slot occupancies and colour numbers of sequences

class Timeline {
  constructor() {
    this.meta = {};
    this.instances = [];
    this.batches = new Map();
    this.pending = [];
    this.refused = new Map();
    this.depths = [];
    this.occupancy = new Map();
    this.colourNumbers = new Map();
    this.numbered = 0;
    this.counts = { requests: 0, refused: 0, failed: 0, batches: 0, rows: 0, nulls: 0 };
    this.depth = 0;
    this.now = 0;
    this.slotState = {};
    this.drawn = 1;
    this.sortedEvents = null;
  }

  // A history has everything that is kept, a delivery what is new; both may repeat what is known.
  merge(packed) {
    if (packed.now === undefined) return;
    if (packed.meta) this.meta = packed.meta;
    const delivery = new Decoder(this.meta.encoding).delivery(packed);
    this.sortedEvents = null;
    for (const batch of delivery.batches) {
      if (!this.batches.has(batch.n)) this.batches.set(batch.n, batch);
      else if (batch.end !== null) Object.assign(this.batches.get(batch.n), batch);
      if (batch.drawn) this.drawn = batch.drawn[0] * batch.drawn[1];
    }
    for (const execution of delivery.done) {
      const batch = this.batches.get(execution.n);
      if (batch) Object.assign(batch, execution);
    }
    for (const refusal of delivery.refused) this.refused.set(`${refusal.queued} ${refusal.label}`, refusal);
    const last = this.depths.length ? this.depths[this.depths.length - 1][0] : -Infinity;
    this.depths.push(...delivery.depths.filter(([time]) => time > last));
    for (const held of delivery.occupancy) this.occupancy.set(`${held.instance} ${held.slot} ${held.assigned}`, held);
    if (delivery.now >= this.now) {
      const { pending, depth, counts, now } = delivery;
      Object.assign(this, { pending, depth, counts, now });
      if (delivery.slot_state) this.slotState = delivery.slot_state;
    }
    for (const known of [this.batches, this.refused, this.occupancy, this.colourNumbers]) {
      while (known.size > KEPT) known.delete(known.keys().next().value); // the oldest
    }
    if (this.depths.length > 20 * KEPT) this.depths.splice(0, KEPT);
    this.instances = this.allInstances(delivery.instances);
  }

  // An instance that was removed keeps its lane as long as something on it can be shown.
  allInstances(present) {
    const names = new Set(present);
    for (const batch of this.batches.values()) names.add(batch.instance);
    for (const { instance } of this.occupancy.values()) names.add(instance);
    return [...names].sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
  }

  // Sequences are numbered in the order in which they are first drawn, to choose their colours.
  colourNumber(sequence) {
    if (!this.colourNumbers.has(sequence)) this.colourNumbers.set(sequence, this.numbered++);
    return this.colourNumbers.get(sequence);
  }

  get sequences() {
    return this.meta.batcher === "sequence";
  }

  get begin() {
    const first = this.batches.values().next().value;
    return Math.min(first ? first.oldest : this.now, this.depths.length ? this.depths[0][0] : this.now);
  }

  // When everything that is known has ended.
  get end() {
    let end = this.now;
    for (const batch of this.batches.values()) end = Math.max(end, batch.end ?? 0);
    return end;
  }

  batchesBetween(from, to) {
    return [...this.batches.values()].filter((batch) => batch.oldest <= to && (batch.end ?? Infinity) >= from);
  }

  occupancyBetween(from, to) {
    return [...this.occupancy.values()].filter((held) => held.arrived <= to && (held.released ?? Infinity) >= from);
  }

  depthAt(time) {
    let low = 0;
    let high = this.depths.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.depths[middle][0] <= time) low = middle + 1;
      else high = middle;
    }
    return low ? this.depths[low - 1][1] : 0;
  }

  runningAt(time) {
    const runs = (batch) => batch.start !== null && batch.start <= time && (batch.end ?? Infinity) > time;
    return this.batchesBetween(time, time).filter(runs);
  }

  flagNames({ flags }) {
    const { sequence_start: start, sequence_end: end } = this.meta.encoding;
    return (flags & start ? " START" : "") + (flags & end ? " END" : "");
  }

  // Everything that happened, in order: [time, description, batch number]. The buttons step through these.
  get events() {
    this.sortedEvents ??= [
      ...this.pending.map((request) => this.arrivalEvent(request)),
      ...[...this.batches.values()].flatMap((batch) => this.batchEvents(batch)),
      ...[...this.refused.values()].map(({ refused, label, message }) =>
        [refused, `request ${label} is refused: ${message}`, null]),
      ...[...this.occupancy.values()].flatMap((held) => this.slotEvents(held)),
    ].sort((one, other) => one[0] - other[0]);
    return this.sortedEvents;
  }

  arrivalEvent(request) {
    const rows = `${request.rows} ${request.rows === 1 ? "row" : "rows"}`;
    const of = request.sequence ? ` of sequence ${request.sequence}` : "";
    return [request.queued, `request ${request.label}${of} arrives (${rows}${this.flagNames(request)})`, null];
  }

  batchEvents(batch) {
    const events = batch.members.filter(Boolean).map((member) => this.arrivalEvent(member));
    events.push([batch.sent, `batch of ${batch.rows} sent to ${batch.instance}: ${batch.why}`, batch.n]);
    if (batch.end !== null) events.push([batch.end, `batch of ${batch.rows} is done on ${batch.instance}`, batch.n]);
    return events;
  }

  slotEvents({ sequence, instance, slot, arrived, assigned, released, ended_by: endedBy }) {
    const events = [];
    if (assigned > arrived) {
      events.push([assigned, `sequence ${sequence} leaves the backlog for slot ${slot} of ${instance}`, null]);
    }
    if (released !== null) {
      const reason = endedBy === "idle" ? "was idle for too long" : "has ended";
      events.push([released, `slot ${slot} of ${instance} is free: sequence ${sequence} ${reason}`, null]);
    }
    return events;
  }

  // The sequences in slots, each with the requests executed and the idle time left in ms, and the backlog.
  slotsAt(time) {
    const slots = new Map();
    const backlog = [];
    for (const held of this.occupancy.values()) {
      const { sequence, instance, slot, arrived, assigned, released } = held;
      if (arrived <= time && time < assigned) backlog.push(sequence);
      if (assigned > time || (released ?? Infinity) <= time) continue;
      const members = this.membersOf(held, time);
      const last = Math.max(assigned, ...members.map(([, member]) => member.queued).filter((queued) => queued <= time));
      const executed = members.filter(([batch]) => batch.sent <= time).length;
      slots.set(`${instance} ${slot}`, { sequence, executed, left: this.meta.idle - (time - last) });
    }
    return { slots, backlog };
  }

  // The requests that a sequence ran in its slot until a time: [batch, member].
  membersOf({ sequence, instance, slot, arrived }, time) {
    const members = [];
    for (const batch of this.batches.values()) {
      if (batch.instance !== instance || batch.oldest > time || !batch.slots) continue;
      const member = batch.members[batch.slots.indexOf(slot)];
      if (member && member.sequence === sequence && member.queued >= arrived) members.push([batch, member]);
    }
    return members;
  }

  describe() {
    const { requests, batches, rows, nulls, refused, failed } = this.counts;
    const mean = batches ? ((rows - nulls) / batches).toFixed(1) : "0";
    const counts = [
      `${requests} requests`, `${batches} batches`, `${mean} rows in a batch on average`,
      nulls && `${nulls} null rows`, refused && `${refused} refused`, failed && `${failed} failed`,
    ];
    return `${this.meta.model}: ${counts.filter(Boolean).join(", ")}; ${this.depth} waiting.`;
  }
}

export { Timeline };
