// Decodes what the kernel sends, as its metadata describe it: lists of values become objects, ticks milliseconds.

class Decoder {
  /** @param {Encoding} encoding */
  constructor(encoding) {
    this.encoding = encoding;
    this.times = new Set(encoding.times);
  }

  /** @param {number | null} ticks */
  time(ticks) {
    return ticks === null ? null : ticks / this.encoding.ticks;
  }

  /** @param {string} name @param {any} value */
  value(name, value) {
    return this.times.has(name) ? this.time(value) : value;
  }

  /** @param {string[]} names @param {Encoded} values @returns {any} */
  record(names, values) {
    return Object.fromEntries(names.map((name, index) => [name, this.value(name, values[index])]));
  }

  // A null request is an empty list.
  /** @param {Encoded} values @returns {Member | null} */
  member(values) {
    return values.length ? this.record(this.encoding.member, values) : null;
  }

  // An empty list is a request that generated nothing.
  /** @param {Encoded} values @returns {Generation | null} */
  generation(values) {
    return values.length ? this.record(this.encoding.generation, values) : null;
  }

  // Batches are sent as one list per field.
  /** @param {Record<string, any[]>} columns @returns {any[]} */
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

  /** @param {Packed} packed @returns {Delivery} */
  delivery(packed) {
    return {
      ...packed,
      now: this.time(packed.now),
      pending: packed.pending.map((values) => this.member(values)),
      batches: this.batches(packed.batches),
      done: this.batches(packed.done),
      refused: packed.refused.map((values) => this.record(this.encoding.refusal, values)),
      depths: packed.depths.map(([ticks, depth]) => [this.time(ticks), depth]),
      responses: packed.responses.map(([n, place, ticks]) => [n, place, this.time(ticks)]),
      occupancy: packed.occupancy.map((values) => this.record(this.encoding.occupancy, values)),
      running: packed.running.map(([instance, ticks, rows]) => ({ instance, sent: this.time(ticks), rows })),
      since: this.time(packed.since ?? null),
      exact: this.time(packed.exact ?? null),
      spans: packed.spans?.map(([from, to]) => [this.time(from), this.time(to)]),
    };
  }
}

export { Decoder };
