// What is known of a model: the deliveries of the kernel merged, and queries on them. Times are in ms.
//
// Every batch is known in the `spans`; of all other times only the counters are. In the `gaps` nothing is known:
// deliveries were lost, or the page was opened after them.

import { Counters } from "./counters.js";
import { Decoder } from "./encoding.js";
import { sortedEvents } from "./events.js";

const ROUNDING = 1e-6; // ms
const SLOWEST = 5; // requests
const KEPT = 6000; // batches, refused requests, slot occupancies and colour numbers of sequences

// When a request of a batch was answered: at the end, or with the last response that followed it.
/** @param {Batch} batch @param {number} place */
function answeredAt({ end, responses = [] }, place) {
  return responses.reduce((last, [of, time]) => (of === place ? Math.max(last, time) : last), end);
}

// What was known of a batch at a time after it was sent.
/** @param {Batch} batch @param {number} time @returns {Batch} */
function batchUpTo(batch, time) {
  const start = batch.start !== null && batch.start <= time ? batch.start : null;
  const responses = batch.responses?.filter(([, at]) => at <= time);
  if (batch.end !== null && batch.end <= time) return { ...batch, responses };
  return { ...batch, start, end: null, failed: 0, generated: null, responses: undefined, last: undefined };
}

class Timeline {
  constructor() {
    this.meta = /** @type {Meta} */ ({}); // until something is received
    /** @type {string[]} */ this.instances = [];
    /** @type {Map<number, Batch>} */ this.batches = new Map();
    /** @type {Member[]} */ this.pending = [];
    /** @type {Running[]} */ this.running = [];
    /** @type {Map<string, Refusal>} */ this.refused = new Map();
    /** @type {[time: number, depth: number][]} */ this.depths = [];
    /** @type {Span[]} */ this.spans = [];
    /** @type {Span[]} */ this.gaps = [];
    /** @type {Map<string, Occupancy>} */ this.occupancy = new Map();
    // That were ever used, by instance: the number of lanes never falls.
    /** @type {Map<string, number>} */ this.highestSlots = new Map();
    /** @type {Map<number | string, number>} */ this.colourNumbers = new Map();
    this.numbered = 0;
    /** @type {Counts} */
    this.counts = { requests: 0, refused: 0, failed: 0, batches: 0, rows: 0, nulls: 0 };
    /** @type {Counters | null} */ this.counters = null;
    this.number = -1; // of the last delivery
    this.depth = 0;
    this.now = 0;
    this.firstArrival = Infinity;
    /** @type {SlotState} */ this.slotState = {};
    /** @type {RecentNumbers | null} */ this.recent = null; // the numbers of the last seconds
    /** @type {TimelineEvent[] | null} */ this.knownEvents = null;
    /** @type {SlowRequest[] | null} */ this.knownSlowest = null;
    this.kept = 0; // the time from which on the kernel keeps the events: it can explain requests that arrived later
    this.gutter = 0; // px: the width of the names of lanes, when it was drawn last
  }

  // A copy that later deliveries do not change.
  snapshot() {
    const copy = Object.assign(new Timeline(), this);
    const maps = ["batches", "refused", "occupancy", "highestSlots", "colourNumbers"];
    for (const name of maps) copy[name] = new Map(this[name]);
    for (const name of ["depths", "gaps"]) copy[name] = [...this[name]];
    copy.spans = this.spans.map((span) => [...span]);
    copy.counters = this.counters?.copy() ?? null;
    return copy;
  }

  // A copy of what had happened until a time: requests of batches that were sent later still wait.
  /** @param {number} time */
  upTo(time) {
    const copy = Object.assign(new Timeline(), this, { now: time, knownEvents: null, knownSlowest: null });
    const batches = [...this.batches.values()];
    const sent = batches.filter((batch) => batch.sent <= time).map((batch) => batchUpTo(batch, time));
    const later = batches.filter((batch) => batch.sent > time).flatMap(({ members }) => members.filter(Boolean));
    copy.batches = new Map(sent.map((batch) => [batch.n, batch]));
    copy.pending = [...later, ...this.pending].filter(({ queued }) => queued <= time);
    copy.running = sent.filter(({ end }) => end === null);
    copy.refused = new Map([...this.refused].filter(([, { refused }]) => refused <= time));
    copy.depths = this.depths.slice(0, this.depthIndex(time));
    copy.depth = this.depthAt(time);
    const held = [...this.occupancy].filter(([, { assigned }]) => assigned <= time)
      .map(([key, value]) => [key, value.released > time ? { ...value, released: null, ended_by: "" } : value]);
    copy.occupancy = new Map(/** @type {[string, Occupancy][]} */ (held));
    return copy;
  }

  // A history has everything that is kept, a delivery what is new; both may repeat batches that are known.
  /** @param {Packed} packed */
  merge(packed) {
    if (packed.now === undefined) return;
    if (packed.meta) this.meta = packed.meta;
    const delivery = new Decoder(this.meta.encoding).delivery(packed);
    this.knownEvents = null;
    this.knownSlowest = null;
    if (packed.levels) this.mergeHistory(packed, delivery);
    else this.mergeDelivery(packed, delivery);
    for (const batch of delivery.batches) {
      if (!this.batches.has(batch.n)) this.batches.set(batch.n, batch);
      else if (batch.end !== null) this.batches.set(batch.n, batch);
    }
    for (const execution of delivery.done) {
      const batch = this.batches.get(execution.n);
      if (batch) this.batches.set(batch.n, { ...batch, ...execution });
    }
    for (const response of delivery.responses) this.addResponse(...response);
    if (delivery.now >= this.now) this.endLostBatches(delivery.running);
    for (const refusal of delivery.refused) this.refused.set(`${refusal.queued} ${refusal.label}`, refusal);
    const last = this.depths.length ? this.depths[this.depths.length - 1][0] : -Infinity;
    this.depths.push(...delivery.depths.filter(([time]) => time > last));
    for (const held of delivery.occupancy) {
      this.occupancy.set(`${held.instance} ${held.slot} ${held.assigned}`, held);
      this.useSlot(held.instance, held.slot);
    }
    // In the order of arrival, as in figures.
    for (const { sequence } of [...delivery.occupancy].sort((one, other) => one.arrived - other.arrived)) {
      this.colourNumber(sequence);
    }
    if (delivery.now >= this.now) {
      const { pending, running, depth, counts, now } = delivery;
      Object.assign(this, { pending, running, depth, counts, now });
      if (delivery.recent) this.recent = delivery.recent;
      if (delivery.slot_state) this.slotState = delivery.slot_state;
      for (const [, instance, slot] of this.slotState.owners ?? []) this.useSlot(instance, slot);
    }
    const requests = [...delivery.refused, ...delivery.pending];
    for (const arrived of [...delivery.batches.map(({ oldest }) => oldest), ...requests.map(({ queued }) => queued)]) {
      this.firstArrival = Math.min(this.firstArrival, arrived);
    }
    this.forget();
    this.instances = this.allInstances(delivery.instances);
  }

  // A decoupled model has sent a response after the execution: to the request at a place in its batch.
  /** @param {number} n @param {number} place @param {number} time */
  addResponse(n, place, time) {
    const batch = this.batches.get(n);
    const responses = batch?.responses ?? [];
    if (!batch || responses.some(([of, at]) => of === place && at === time)) return;
    this.batches.set(n, { ...batch, responses: [...responses, [place, time]], last: Math.max(batch.last ?? 0, time) });
  }

  // A batch that is not among the running ones has ended, in a delivery that was not received. It is known to have run
  // until then.
  /** @param {Running[]} running */
  endLostBatches(running) {
    const isSame = (one, other) => one.instance === other.instance && Math.abs(one.sent - other.sent) < ROUNDING;
    for (const batch of this.batches.values()) {
      if (batch.end !== null || running.some((other) => isSame(batch, other))) continue;
      this.batches.set(batch.n, { ...batch, end: Math.max(batch.start ?? batch.sent, this.now), lost: true });
    }
  }

  /** @param {Packed} packed @param {Delivery} delivery */
  mergeHistory(packed, delivery) {
    const isOlder = packed.number < this.number || (packed.number === this.number && !this.gaps.length);
    if (this.counters && isOlder) return; // everything in it is known
    this.counters = new Counters(packed.interval);
    this.counters.load(packed.levels, delivery.now);
    this.number = packed.number;
    this.gaps = [];
    this.keepFrom(delivery.kept ?? 0);
    for (const span of delivery.spans) this.addSpan(...span);
  }

  /** @param {Packed} packed @param {Delivery} delivery */
  mergeDelivery(packed, delivery) {
    if (packed.number !== this.number + 1) this.gaps.push([this.now, delivery.since]);
    this.number = packed.number;
    this.counters.add(packed.counters, delivery.now);
    this.addSpan(delivery.since, delivery.exact);
  }

  /** @param {string} instance @param {number} slot */
  useSlot(instance, slot) {
    this.highestSlots.set(instance, Math.max(this.highestSlots.get(instance) ?? 0, slot));
  }

  /** @param {number} from @param {number} to */
  addSpan(from, to) {
    const last = this.spans[this.spans.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else if (to > from) this.spans.push([from, to]);
  }

  // Forget the oldest of what is too much, and the spans of which not every batch is known any more.
  forget() {
    let forgotten = -Infinity;
    const forget = (known, timeOf) => {
      while (known.size > KEPT) {
        const [key, value] = known.entries().next().value;
        forgotten = Math.max(forgotten, timeOf(value));
        known.delete(key);
      }
    };
    forget(this.batches, (batch) => batch.end ?? batch.sent);
    forget(this.refused, ({ refused }) => refused);
    forget(this.occupancy, () => -Infinity);
    forget(this.colourNumbers, () => -Infinity);
    if (this.depths.length > 4 * KEPT) {
      const [[time]] = this.depths.splice(0, KEPT).slice(-1);
      forgotten = Math.max(forgotten, time);
    }
    if (this.gaps.length > KEPT) this.gaps.splice(0, KEPT / 2);
    while (this.spans.length && (this.spans[0][1] <= forgotten || this.spans.length > KEPT)) this.spans.shift();
    if (this.spans.length) this.spans[0][0] = Math.max(this.spans[0][0], forgotten);
  }

  // An instance that was removed keeps its lane as long as something on it can be shown.
  /** @param {string[]} present */
  allInstances(present) {
    const names = new Set(present);
    for (const batch of this.batches.values()) names.add(batch.instance);
    for (const { instance } of this.occupancy.values()) names.add(instance);
    return [...names].sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
  }

  // Sequences are numbered in the order in which they are first drawn, to choose their colours.
  /** @param {number | string} sequence */
  colourNumber(sequence) {
    if (!this.colourNumbers.has(sequence)) this.colourNumbers.set(sequence, this.numbered++);
    return this.colourNumbers.get(sequence);
  }

  get sequences() {
    return this.meta.batcher === "sequence";
  }

  // Counting begins at 0.
  get begin() {
    return 0;
  }

  // When the first request arrived; now, if there was none.
  get first() {
    return Math.min(this.firstArrival, this.now);
  }

  // When everything that is known has ended.
  get end() {
    let end = this.now;
    for (const batch of this.batches.values()) end = Math.max(end, batch.end ?? 0);
    return end;
  }

  // Whether every batch, request and change of the queue is known between two times.
  /** @param {number} from @param {number} to */
  isExact(from, to) {
    const first = Math.max(this.begin, from);
    const last = Math.min(this.now, to);
    return first >= last || this.spans.some(([begin, end]) => begin <= first + ROUNDING && end >= last - ROUNDING);
  }

  // Whether nothing is known of a time.
  /** @param {number} time */
  isUnknown(time) {
    return this.gaps.some(([from, to]) => from <= time && time < to);
  }

  /** @param {number} from @param {number} to */
  batchesBetween(from, to) {
    return [...this.batches.values()].filter(({ oldest, end, last }) =>
      oldest <= to && (last ?? end ?? Infinity) >= from);
  }

  /** @param {number} from @param {number} to */
  occupancyBetween(from, to) {
    return [...this.occupancy.values()].filter((held) => held.arrived <= to && (held.released ?? Infinity) >= from);
  }

  /** @param {number} time */
  depthAt(time) {
    const index = this.depthIndex(time);
    return index ? this.depths[index - 1][1] : 0;
  }

  /** @param {number} from @param {number} to */
  depthsBetween(from, to) {
    return this.depths.slice(this.depthIndex(from), this.depthIndex(to));
  }

  // The index of the first change of the depth after a time.
  /** @param {number} time */
  depthIndex(time) {
    let low = 0;
    let high = this.depths.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.depths[middle][0] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** @param {number} time */
  runningAt(time) {
    const runs = (batch) => batch.start !== null && batch.start <= time && (batch.end ?? Infinity) > time;
    return this.batchesBetween(time, time).filter(runs);
  }

  // Everything that is known to have happened, in order: { time, text, batch }. The buttons step through these.
  get events() {
    this.knownEvents ??= sortedEvents(this);
    return this.knownEvents;
  }

  // The answered requests with the longest latencies that the kernel can explain: { latency, batch, label }. Of a
  // generation, only steps are known.
  get slowest() {
    if (this.meta.iterative) return [];
    const latencies = (batch) => batch.members.flatMap((member, place) => (member
      ? { latency: answeredAt(batch, place) - member.queued, batch: batch.n, label: member.label } : []));
    this.knownSlowest ??= [...this.batches.values()].filter((batch) => this.isExplained(batch)).flatMap(latencies)
      .sort((one, other) => other.latency - one.latency).slice(0, SLOWEST);
    return this.knownSlowest;
  }

  /** @param {Batch} batch */
  isExplained({ oldest, end, lost }) {
    return end !== null && !lost && oldest >= this.kept;
  }

  // The kernel keeps the events from a time on.
  /** @param {number} ticks */
  keepFrom(ticks) {
    this.kept = ticks / this.meta.encoding.ticks;
    this.knownSlowest = null;
  }

  // The sequences in slots, each with the requests executed and the idle time left in ms, and the backlog.
  /** @param {number} time */
  slotsAt(time) {
    const slots = new Map();
    const waits = this.backlogBetween(time, time).filter(({ assigned }) => time < assigned);
    const backlog = waits.map(({ sequence }) => sequence);
    for (const held of this.occupancy.values()) {
      const { sequence, instance, slot, assigned, released } = held;
      if (assigned > time || (released ?? Infinity) <= time) continue;
      const members = this.membersOf(held, time);
      const last = Math.max(assigned, ...members.map(([, member]) => member.queued).filter((queued) => queued <= time));
      const counted = members.filter(([batch]) => batch.sent <= time).length;
      const executed = this.isExact(assigned, time) ? counted : held.executed;
      slots.set(`${instance} ${slot}`, { sequence, executed, left: this.meta.idle - (time - last) });
    }
    return { slots, backlog };
  }

  // The sequences that waited for a slot; those that have none yet were not assigned at all.
  /** @param {number} from @param {number} to @returns {Wait[]} */
  backlogBetween(from, to) {
    const past = [...this.occupancy.values()].filter(({ arrived, assigned }) =>
      assigned > arrived && assigned >= from && arrived <= to);
    const first = new Map(); // of each sequence, the first request that waits
    for (const request of this.pending) if (!first.has(request.sequence)) first.set(request.sequence, request.queued);
    const waiting = this.slotState.backlog ?? (this.meta.iterative ? [...first.keys()] : []);
    const current = waiting.filter((sequence) => first.get(sequence) <= to)
      .map((sequence) => ({ sequence, arrived: first.get(sequence), assigned: Infinity }));
    return [...past, ...current];
  }

  // The requests that a sequence ran in its slot until a time: [batch, member].
  /** @param {Occupancy} held @param {number} time */
  membersOf({ sequence, instance, slot, arrived }, time) {
    /** @type {[Batch, Member][]} */
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

export { Timeline, answeredAt };
