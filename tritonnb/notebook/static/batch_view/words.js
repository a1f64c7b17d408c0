// Numbers and times in words.

/** @type {(count: number, noun: string, nouns?: string) => string} */
const pluralize = (count, noun, nouns = `${noun}s`) => `${count} ${count === 1 ? noun : nouns}`;

/** @type {(value: number) => string} */
const formatMs = (value) => (value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2));

/** @param {number} time */
function formatDuration(time) {
  if (time < 1000) return `${formatMs(time)} ms`;
  return `${(time / 1000).toFixed(time < 10_000 ? 1 : 0)} s`;
}

// A length of time without needless digits: 40 ms, 1.28 s.
/** @param {number} time */
function formatLength(time) {
  const short = (value) => Number(value.toPrecision(3));
  return time < 1000 ? `${short(time)} ms` : `${short(time / 1000)} s`;
}

// All times of a timeline have the same unit.
/** @type {(timeline: Timeline) => boolean} */
const usesSeconds = ({ now }) => now >= 10_000;

/** @type {(time: number, timeline: Timeline) => string} */
const formatTime = (time, timeline) =>
  (usesSeconds(timeline) ? `${(time / 1000).toFixed(4)} s` : `${time.toFixed(3)} ms`);

/** @type {(share: number) => string} */
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

// The mark of the rule that sent a batch, and what it means; a file may name any rule.
/** @type {(meta: Meta, rule: string) => [mark: string, words: string]} */
const markOf = ({ marks }, rule) => marks[rule] ?? ["?", rule];

export { formatDuration, formatLength, formatMs, formatTime, markOf, percent, pluralize, usesSeconds };
