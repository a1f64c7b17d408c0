// Exact counters of each interval of time, as the kernel counts them, merged into longer and longer intervals.
// Level n has intervals of 2^n times the shortest width; each level keeps the newest KEPT_INTERVALS of them.

const LEVELS = 24;
const KEPT_INTERVALS = 2048;
const sum = (one, other) => one + other;
/** @type {Record<string, Merges>} */
const MERGES = {
  lanes: { busy: sum, batches: sum, rows: sum, largest: Math.max },
  slots: { busy: sum, nulls: sum },
  queue: { depth: Math.max, waited: sum, refused: sum, wait: Math.max },
};

// The counters of one lane, slot or queue: for each level, values by the index of their interval.
class Series {
  /** @param {Merges} merges @param {Map<number, CounterValues>[]} levels */
  constructor(merges, levels = Array.from({ length: LEVELS }, () => new Map())) {
    this.names = Object.keys(merges);
    this.merges = merges;
    this.levels = levels;
  }

  // Values are never changed in place: a copy shares them.
  copy() {
    return new Series(this.merges, this.levels.map((level) => new Map(level)));
  }

  // Columns as encoded, of intervals of one level; they are part of this level and all longer ones.
  /** @param {CounterColumns} columns */
  add(columns, first = 0) {
    columns.at.forEach((at, row) => {
      const values = Object.fromEntries(this.names.map((name) => [name, columns[name][row]]));
      for (let level = first; level < LEVELS; level += 1) {
        this.merge(this.levels[level], Math.floor(at / 2 ** (level - first)), values);
      }
    });
  }

  /** @param {Map<number, CounterValues>} level @param {number} index @param {CounterValues} values */
  merge(level, index, values) {
    const known = level.get(index);
    level.set(index, known ? this.mergeInto({ ...known }, values) : values);
  }

  /** @param {CounterValues} target @param {CounterValues} values */
  mergeInto(target, values) {
    for (const name of this.names) target[name] = this.merges[name](target[name], values[name]);
    return target;
  }

  /** @param {number} newest */
  prune(newest) {
    this.levels.forEach((level, number) => {
      const first = Math.floor(newest / 2 ** number) - KEPT_INTERVALS;
      for (const index of level.keys()) {
        if (index >= first) break;
        level.delete(index);
      }
    });
  }

  // The merged values of intervals of a level from one index to another, or null if they are all empty.
  /** @param {number} level @param {number} first @param {number} last @returns {CounterValues | null} */
  total(level, first, last) {
    if (first === last) return this.levels[level].get(first) ?? null;
    let merged = null;
    for (let index = first; index <= last; index += 1) {
      const values = this.levels[level].get(index);
      if (values) merged = merged ? this.mergeInto(merged, values) : { ...values };
    }
    return merged;
  }
}

// The counters of a model. Times are in ms, counted times in ns.
class Counters {
  /** @param {number} width */
  constructor(width) {
    this.width = width; // ms of the shortest interval
    this.queue = new Series(MERGES.queue);
    /** @type {Map<string, Series>} */ this.lanes = new Map();
    /** @type {Map<string, Series>} */ this.slots = new Map();
    /** @type {number[]} */
    this.first = Array(LEVELS).fill(0); // the first index of which each level has everything
    this.newest = 0;
  }

  copy() {
    const copy = new Counters(this.width);
    const copied = (group) => new Map([...group].map(([name, series]) => [name, series.copy()]));
    Object.assign(copy, { queue: this.queue.copy(), lanes: copied(this.lanes), slots: copied(this.slots) });
    return Object.assign(copy, { first: [...this.first], newest: this.newest });
  }

  // What a delivery has counted since the one before.
  /** @param {CounterGroups<CounterColumns>} counters @param {number} now */
  add({ queue, lanes, slots }, now) {
    this.queue.add(queue);
    for (const [name, columns] of Object.entries(lanes)) this.series("lanes", name).add(columns);
    for (const [name, columns] of Object.entries(slots)) this.series("slots", name).add(columns);
    this.prune(now);
  }

  // Everything that the kernel has kept: longer intervals where it is old.
  /** @param {CounterGroups<CounterColumns[]>} levels @param {number} now */
  load({ queue, lanes, slots }, now) {
    this.loadSeries(this.queue, queue);
    for (const [name, levels] of Object.entries(lanes)) this.loadSeries(this.series("lanes", name), levels);
    for (const [name, levels] of Object.entries(slots)) this.loadSeries(this.series("slots", name), levels);
    this.prune(now);
  }

  /** @param {Series} series @param {CounterColumns[]} levels */
  loadSeries(series, levels) {
    levels.forEach((columns, level) => {
      series.add(columns, level);
      this.first[level] = Math.max(this.first[level], columns.from[0]);
    });
  }

  /** @param {"lanes" | "slots"} group @param {string} name */
  series(group, name) {
    if (!this[group].has(name)) this[group].set(name, new Series(MERGES[group]));
    return this[group].get(name);
  }

  /** @param {number} now */
  prune(now) {
    this.newest = Math.floor(now / this.width);
    for (const series of [this.queue, ...this.lanes.values(), ...this.slots.values()]) series.prune(this.newest);
    this.first = this.first.map((first, level) =>
      Math.max(first, Math.floor(this.newest / 2 ** level) - KEPT_INTERVALS));
  }

  // The shortest intervals that are at least so long (ms) and are all kept from this time on.
  /** @param {number} length @param {number} from */
  levelFor(length, from) {
    let level = 0;
    while (level < LEVELS - 1 && (this.widthOf(level) < length || this.beginOf(level) > Math.max(0, from))) level += 1;
    return level;
  }

  /** @param {number} level */
  widthOf(level) {
    return this.width * 2 ** level;
  }

  // The time from which a level has everything.
  /** @param {number} level */
  beginOf(level) {
    return this.first[level] * this.widthOf(level);
  }

  /** @param {number} time @param {number} level */
  indexAt(time, level) {
    return Math.floor(time / this.widthOf(level));
  }

  // The intervals of a level between two times: [begin, end, index].
  /** @param {number} from @param {number} to @param {number} level @returns {Interval[]} */
  intervals(from, to, level) {
    const width = this.widthOf(level);
    const first = Math.max(0, Math.floor(from / width));
    const count = Math.max(0, Math.ceil(to / width) - first);
    return Array.from({ length: count }, (_, at) => [(first + at) * width, (first + at + 1) * width, first + at]);
  }
}

export { Counters, Series };
