// The quiz: the worksheet of the notebook, graded by the worker.

import { make } from "../shared/dom.js";
import { LocalModel } from "../shared/local_model.js";
import { render } from "../worksheet.js";
import { choice, numberField } from "./fields.js";

const KINDS = {
  scenario: "this scenario", dynamic: "random: dynamic batcher", direct: "random: direct sequences",
  oldest: "random: oldest sequences",
};

class SheetModel extends LocalModel {
  /**
   * @param {Sheet} sheet
   * @param {GradeAnswer} gradeAnswer
   */
  constructor(sheet, gradeAnswer) {
    super({ sheet, answer: [], result: {} });
    this.gradeAnswer = gradeAnswer;
  }

  /** @param {{ action?: string }} message */
  send({ action }) {
    this.gradeAnswer(action, this.get("answer")).then(
      (result) => this.set("result", result),
      ({ message }) => this.set("result", { ...this.get("result"), text: message, done: false }),
    );
  }
}

// `newSheet(settings)` and `gradeAnswer(action, answer)` ask the worker.
/**
 * @param {QuizQuestions} ask
 */
function createQuiz({ newSheet, gradeAnswer }) {
  const settings = { batcher: "dynamic", seed: 1, requests: 6 };
  const head = make("div", { class: "tnb-fields" });
  const place = make("div", {});
  const message = make("p", { class: "tnb-error", role: "alert" });
  const element = make("section", { class: "tnb-quiz", aria: { label: "Quiz" } },
    make("h2", {}, "Which requests share a batch?"), head, message, place);
  let close = () => {};

  function clear() {
    close();
    close = () => {};
    place.replaceChildren();
    message.textContent = "";
  }

  async function open() {
    clear(); // The worker grades answers to its newest exercise, so nobody may answer the one before.
    try {
      const sheet = await newSheet(settings);
      clear();
      close = render({ model: new SheetModel(sheet, gradeAnswer), el: place });
    } catch (error) {
      message.textContent = error.message;
    }
  }

  const set = (values) => {
    Object.assign(settings, values);
    open();
  };

  function draw() {
    const another = make("button", { type: "button" }, "Another one");
    another.addEventListener("click", () => {
      set({ seed: settings.seed + 1 });
      draw();
    });
    const random = [
      numberField({ label: "seed", value: settings.seed, step: 1 }, (seed) => set({ seed })),
      numberField({ label: "requests", value: settings.requests, min: 3, step: 1 }, (requests) => set({ requests })),
      another,
    ];
    head.replaceChildren(
      choice("Exercise", settings.batcher, KINDS, (batcher) => {
        set({ batcher });
        draw();
      }),
      ...(settings.batcher === "scenario" ? [] : random),
    );
  }

  function openScenario() {
    set({ batcher: "scenario" });
    draw();
  }

  draw();
  return { element, open, openScenario };
}

export { createQuiz };
