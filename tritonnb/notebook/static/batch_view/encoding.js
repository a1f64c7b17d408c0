// Decodes what the kernel sends, as its metadata describe it: lists of values become objects, ticks milliseconds.

class Decoder {
  constructor(encoding) {
    this.encoding = encoding;
    this.times = new Set(encoding.times);
  }

  time(ticks) {
    return ticks === null ? null : ticks / this.encoding.ticks;
  }

  value(name, value) {
    return this.times.has(name) ? this.time(value) : value;
  }

  record(names, values) {
    return Object.fromEntries(names.map((name, index) => [name, this.value(name, values[index])]));
  }

  // A null request is an empty list.
  member(values) {
    return values.length ? this.record(this.encoding.member, values) : null;
  }

  // An empty list is a request that generated nothing.
  generation(values) {
    return values.length ? this.record(this.encoding.generation, values) : null;
  }

  // Batches are sent as one list per field.
  batches(columns) {
    const names = Object.keys(columns);
    if (!names.length) return [];
    return columns[names[0]].map((_, row) => {
      const batch = Object.fromEntries(names.map((name) => [name, this.value(name, columns[name][row])]));
      if (batch.members) batch.members = batch.members.map((values) => this.member(values));
      if (batch.generated) batch.generated = batch.generated.map((values) => this.generation(values));
      return batch;
    });
  }

  delivery(packed) {
    return {
      ...packed,
      now: this.time(packed.now),
      pending: packed.pending.map((values) => this.member(values)),
      batches: this.batches(packed.batches),
      done: this.batches(packed.done),
      refused: packed.refused.map((values) => this.record(this.encoding.refusal, values)),
      depths: packed.depths.map(([ticks, depth]) => [this.time(ticks), depth]),
      occupancy: packed.occupancy.map((values) => this.record(this.encoding.occupancy, values)),
      running: packed.running.map(([instance, ticks, rows]) => ({ instance, sent: this.time(ticks), rows })),
      since: this.time(packed.since ?? null),
      exact: this.time(packed.exact ?? null),
      spans: packed.spans?.map((span) => span.map((ticks) => this.time(ticks))),
    };
  }
}

export { Decoder };
