// One undo history for everything that changes the text: typing, the form, fixes, completions, and the kernel.

const JOIN_MS = 1000;

class UndoHistory {
  /** @param {string} text */
  constructor(text) {
    this.states = [{ text, caret: text.length }];
    this.now = 0;
    this.kind = "";
    this.time = 0;
  }

  // Typing of one kind without a pause is one step, like in other editors; an empty kind is a separate step.
  /** @param {string} text @param {number} caret */
  record(text, caret, kind = "", time = performance.now()) {
    if (text === this.states[this.now].text) return;
    const joins = kind !== "" && kind === this.kind && time - this.time < JOIN_MS && this.now > 0;
    this.states.length = this.now + 1;
    if (joins) this.states.pop();
    this.states.push({ text, caret });
    this.now = this.states.length - 1;
    this.kind = kind;
    this.time = time;
  }

  // The state after `steps`, which are negative to undo; null if there is none.
  /** @param {number} steps */
  move(steps) {
    const state = this.states[this.now + steps];
    if (!state) return null;
    this.now += steps;
    this.kind = "";
    return state;
  }
}

export { UndoHistory };
