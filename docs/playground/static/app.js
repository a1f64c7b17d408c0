// The playground: a scenario on the left, its result on the right; everything is computed in the browser.

import { make } from "../shared/dom.js";
import { followColourScheme } from "../shared/local_model.js";
import { createArrivals } from "./arrivals.js";
import { createEditor } from "./editor.js";
import { Engine } from "./engine.js";
import { decodeFragment, encodeScenario } from "./link.js";
import { createQuiz } from "./quiz.js";
import { createResults } from "./results.js";
import { createService } from "./service.js";

const FIRST = "five-requests";
const LINK_AFTER_MS = 300;
/** @type {<Id extends string>(id: Id) => Id extends keyof PageParts ? PageParts[Id] : HTMLElement} */
const part = (id) => /** @type {any} */ (document.getElementById(id));

class Playground {
  constructor() {
    this.engine = new Engine({
      onLoaded: (ms) => this.say(`Ready: the simulator was loaded in ${(ms / 1000).toFixed(1)} s.`),
      onFailed: (message) => this.fail(`The simulator cannot be loaded: ${message}`),
    });
    this.results = createResults((blame) => this.engine.ask({ do: "blame", ...blame }));
    this.service = createService((service) => this.change({ service }));
    this.arrivals = createArrivals((arrivals) => this.change({ arrivals }));
    this.quiz = createQuiz({
      newSheet: (settings) => this.engine.ask({ do: "worksheet", scenario: this.scenario, ...settings }),
      gradeAnswer: (action, answer) => this.engine.ask({ do: "grade", action, answer }),
    });
    this.quiz.element.hidden = true;
  }

  async start() {
    followColourScheme();
    document.body.classList.toggle("tnb-embedded", new URLSearchParams(location.search).has("embed"));
    this.say("Loading the simulator …");
    this.showFirst();
    const { schema, presets } = await this.engine.ask({ do: "describe" });
    this.presets = presets;
    this.editor = createEditor({
      schema,
      text: "",
      onText: (config) => this.change({ config }),
      setField: async (path, value) => {
        const text = await this.engine.ask({ do: "set_field", text: this.scenario.config, path, value })
          .catch((error) => this.results.showError(error.message));
        if (text !== undefined) this.editor.replace(text);
      },
    });
    part("config").append(this.editor.element);
    part("arrivals").append(this.arrivals.element);
    part("service").append(this.service.element);
    part("quiz").append(this.quiz.element);
    this.listPresets();
    this.listen();
    await this.openFragment();
    document.body.dataset.ready = "true";
  }

  // The first scenario was simulated when the page was made, so it is shown while the simulator is loaded.
  async showFirst() {
    part("results").append(this.results.element);
    if (location.hash.length > 1 && location.hash !== `#preset=${FIRST}`) return;
    const response = await fetch("first.json").catch(() => null);
    const first = response?.ok ? await response.json() : null;
    if (first && !this.scenario) this.results.show(first.result.shown);
  }

  listPresets() {
    const groups = groupPresets(this.presets);
    part("preset").append(...[...groups].map(([label, entries]) =>
      make("optgroup", { label }, ...entries.map(([value, { title }]) => make("option", { value }, title)))));
    part("preset").append(make("option", { value: "", hidden: true }, "your own"));
    part("preset").disabled = false;
  }

  listen() {
    part("preset").addEventListener("change", () => {
      this.openPreset(part("preset").value);
      if (!this.quiz.element.hidden) this.quiz.openScenario();
    });
    part("keep").addEventListener("click", () => this.change({ baseline: this.scenario.config }));
    part("swap").addEventListener("click", () => {
      const { config, baseline } = this.scenario;
      this.open({ ...this.scenario, config: baseline, baseline: config });
    });
    part("copy-link").addEventListener("click", async () => {
      await this.updateLink();
      this.copy(location.href, "The link contains the whole scenario.");
    });
    part("copy-python").addEventListener("click", async () => {
      try {
        this.copy(await this.engine.ask({ do: "python", scenario: this.scenario }), "Copied as a Python program.");
      } catch (error) {
        this.results.showError(error.message);
      }
    });
    part("copy-config").addEventListener("click", () => this.copy(this.scenario.config, "Copied config.pbtxt."));
    part("quiz-toggle").addEventListener("click", () => this.toggleQuiz());
    part("file").addEventListener("change", () => this.openFiles([...part("file").files]));
    part("open-file").addEventListener("click", () => part("file").click());
    window.addEventListener("hashchange", () => {
      if (location.hash !== this.hash) this.openFragment();
    });
    document.addEventListener("dragover", (event) => {
      if (event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
    document.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.openFiles([...event.dataTransfer.files]);
    });
    const full = part("full");
    full.addEventListener("click", () => { full.href = `${location.pathname}${location.hash}`; });
  }

  // --- scenarios --------------------------------------------------------------------------------

  async openFragment() {
    const opened = await decodeFragment(location.hash).catch(() => null);
    if (opened?.scenario) this.open(opened.scenario);
    else this.openPreset(opened?.preset in this.presets ? opened.preset : FIRST);
  }

  /** @param {string} name */
  openPreset(name) {
    const { scenario, about, title } = this.presets[name];
    this.open(scenario);
    part("preset").value = name;
    part("about").textContent = about;
    document.title = `${title} – tritonnb playground`;
    this.hash = `#preset=${name}`;
    history.replaceState(null, "", `${location.search}${this.hash}`);
    clearTimeout(this.linkTimer);
  }

  /** @param {Scenario} scenario */
  open(scenario) {
    this.scenario = { baseline: "", ...scenario };
    part("preset").value = "";
    part("about").textContent = "";
    this.editor.setText(scenario.config);
    this.service.show(scenario.service);
    this.arrivals.show(scenario.arrivals, scenario.config);
    this.update();
  }

  /** @param {Partial<Scenario>} changed */
  change(changed) {
    this.scenario = { ...this.scenario, ...changed };
    part("preset").value = "";
    if (changed.config !== undefined) this.arrivals.showConfig(changed.config);
    this.update();
  }

  update() {
    const { scenario } = this;
    const isSame = !scenario.baseline || scenario.baseline === scenario.config;
    part("baseline").textContent = isSame ? "No other configuration to compare with."
      : "Compared with the other configuration.";
    part("swap").disabled = isSame;
    clearTimeout(this.linkTimer);
    this.linkTimer = setTimeout(() => this.updateLink(), LINK_AFTER_MS);
    document.body.ariaBusy = "true";
    this.engine.simulate(scenario, (result, ms) => this.show(result, ms));
  }

  async updateLink() {
    clearTimeout(this.linkTimer);
    const isPreset = part("preset").value !== "";
    this.hash = isPreset ? `#preset=${part("preset").value}` : await encodeScenario(this.scenario);
    history.replaceState(null, "", `${location.search}${this.hash}`);
  }

  /** @param {SimulationResult} result @param {number} ms */
  show({ report, shown, error }, ms) {
    if (report) this.editor.showReport(report);
    const problem = report?.problems[0];
    if (shown) {
      this.arrivals.showGenerated(shown.arrivals);
      this.results.show(shown);
      this.say(`Simulated in ${ms.toFixed(0)} ms.`);
    } else if (problem) {
      this.results.showError(`config.pbtxt${problem.line ? `, line ${problem.line}` : ""}: ${problem.message}`);
    } else {
      this.results.showError(error);
    }
    document.body.dataset.simulations = String(Number(document.body.dataset.simulations ?? 0) + 1);
    document.body.dataset.milliseconds = ms.toFixed(1);
    document.body.ariaBusy = String(this.engine.isWaiting);
  }

  // --- files, quiz, clipboard ---------------------------------------------------------------------

  /** @param {File[]} files */
  async openFiles(files) {
    this.say(`Reading ${files.map(({ name }) => name).join(", ")} …`);
    try {
      const message = { do: "open", config: this.scenario.config };
      const { scenario, shown, model, agreement } = await this.engine.ask(message, files);
      if (scenario) {
        this.scenario = scenario;
        this.editor.setText(scenario.config);
        this.service.show(scenario.service);
        this.arrivals.show(scenario.arrivals, scenario.config);
        this.editor.showReport({ text: scenario.config, problems: [], form: null });
      }
      const about = [`Model ${model} as recorded.`];
      if (agreement) about.push(agreement);
      about.push(scenario ? "An edit simulates these arrivals with the median execution times."
        : "It cannot be simulated without the configuration of the model: drop its config.pbtxt with the file.");
      part("preset").value = "";
      part("about").textContent = about.join(" ");
      this.results.show(shown, `${files[0].name}: as recorded`);
      this.say("The file was read in this page; nothing was uploaded.");
      document.body.dataset.opened = files[0].name;
    } catch (error) {
      this.results.showError(error.message);
    }
  }

  toggleQuiz() {
    const isOpen = this.quiz.element.hidden;
    this.quiz.element.hidden = !isOpen;
    part("scenario").hidden = isOpen;
    part("results").hidden = isOpen;
    part("quiz-toggle").setAttribute("aria-pressed", String(isOpen));
    if (isOpen) this.quiz.open();
  }

  /** @param {string} text @param {string} message */
  async copy(text, message) {
    try {
      await navigator.clipboard.writeText(text);
      this.say(message);
    } catch {
      part("copied").value = text;
      part("copied").hidden = false;
      part("copied").select();
      this.say("The browser does not allow copying: copy the selected text.");
    }
  }

  /** @param {string} message */
  say(message) {
    part("status").textContent = message;
  }

  /** @param {string} message */
  fail(message) {
    this.say("");
    part("failure").textContent = message;
    part("failure").hidden = false;
  }
}

/** @param {Record<string, Preset>} presets @returns {Map<string, [name: string, preset: Preset][]>} */
function groupPresets(presets) {
  const groups = new Map();
  for (const entry of Object.entries(presets)) {
    groups.set(entry[1].group, [...(groups.get(entry[1].group) ?? []), entry]);
  }
  return groups;
}

if ("document" in globalThis) {
  const playground = new Playground();
  playground.start().catch((error) => playground.fail(`The simulator cannot be loaded: ${error.message}`));
}

export { Playground };
