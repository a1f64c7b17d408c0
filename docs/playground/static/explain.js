// Explains files that people drop or paste: a list of texts, and the answer of the package as Markdown.

import { make } from "../shared/dom.js";
import { followColourScheme } from "../shared/local_model.js";
import { Engine } from "./engine.js";
import { decodeState, encodeState } from "./link.js";

const KEY = "x=";
const MOST_CHARACTERS = 30_000; // of a link: longer links are cut off by chats and mail programs
/** @type {<Id extends string>(id: Id) => Id extends keyof ExplainParts ? ExplainParts[Id] : HTMLElement} */
const part = (id) => /** @type {any} */ (document.getElementById(id));

class ExplainPage {
  constructor() {
    this.engine = new Engine({
      onLoaded: (ms) => this.say(`Ready: loaded in ${(ms / 1000).toFixed(1)} s.`),
      onFailed: (message) => this.fail(`The page cannot be loaded: ${message}`),
    });
    /** @type {ExplainState} */
    this.state = { sources: [], seconds: null };
    this.markdown = "";
    this.number = 0;
  }

  async start() {
    followColourScheme();
    this.say("Loading …");
    this.listen();
    await this.openLink();
    await this.engine.isLoaded;
    document.body.dataset.ready = "true";
  }

  listen() {
    part("pasted").addEventListener("input", () => { part("add").disabled = !part("pasted").value.trim(); });
    part("add").addEventListener("click", () => {
      this.change({ sources: [...this.state.sources, { name: this.freeName(), text: part("pasted").value }] });
      part("pasted").value = "";
      part("add").disabled = true;
    });
    part("open-files").addEventListener("click", () => part("files").click());
    part("files").addEventListener("change", () => this.addFiles([...part("files").files ?? []]));
    part("clear").addEventListener("click", () => this.change({ sources: [] }));
    part("seconds").addEventListener("change", () => {
      this.change({ seconds: part("seconds").validity.valid ? Number(part("seconds").value) || null : null });
    });
    part("copy-markdown").addEventListener("click", () => this.copy(this.markdown, "Copied as Markdown."));
    part("copy-link").addEventListener("click", async () => {
      const link = await this.updateLink();
      if (link) this.copy(link, "The link contains all texts.");
      else this.say("The texts are too long for a link: copy the answer as Markdown.");
    });
    window.addEventListener("hashchange", () => {
      if (location.hash !== this.hash) this.openLink();
    });
    document.addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    document.addEventListener("drop", (event) => {
      const files = [...event.dataTransfer?.files ?? []];
      if (!files.length) return;
      event.preventDefault();
      this.addFiles(files);
    });
  }

  freeName() {
    const names = this.state.sources.map(({ name }) => name);
    let number = names.length + 1;
    while (names.includes(`text ${number}`)) number += 1;
    return `text ${number}`;
  }

  /** @param {File[]} files */
  async addFiles(files) {
    const added = await Promise.all(files.map(async (file) => ({ name: file.name, text: await readText(file) })));
    this.change({ sources: [...this.state.sources, ...added] });
  }

  async openLink() {
    const state = await decodeState(location.hash, KEY).catch(() => null);
    const sources = Array.isArray(state?.sources) ? state.sources : [];
    const isText = (/** @type {any} */ source) => typeof source?.name === "string" && typeof source?.text === "string";
    this.state = { sources: sources.filter(isText), seconds: Number(state?.seconds) || null };
    part("seconds").value = this.state.seconds === null ? "" : String(this.state.seconds);
    await this.update();
  }

  /** @param {Partial<ExplainState>} changed */
  change(changed) {
    this.state = { ...this.state, ...changed };
    this.update();
  }

  async update() {
    this.number += 1;
    const { number } = this;
    const { sources, seconds } = this.state;
    part("given").replaceChildren(...sources.map((source, index) => this.entry(source, index)));
    await this.updateLink();
    let lines;
    if (sources.length) {
      this.say("Explaining …");
      const answer = this.engine.ask({ do: "explain", sources, seconds });
      lines = await answer.then(({ markdown }) => markdown, ({ message }) => message);
    } else {
      lines = "";
    }
    if (number !== this.number) return; // a newer one is on its way
    this.markdown = lines;
    part("answer").replaceChildren(...rendered(lines));
    if (sources.length) this.say("Explained in this page; nothing was uploaded.");
    else if (document.body.dataset.ready) this.say("");
    document.body.dataset.explained = String(sources.length);
  }

  /** @param {{ name: string, text: string }} source @param {number} index */
  entry(source, index) {
    const remove = make("button", { type: "button", aria: { label: `Remove ${source.name}` } }, "Remove");
    remove.addEventListener("click", () => {
      this.change({ sources: this.state.sources.filter((_, place) => place !== index) });
    });
    return make("li", {}, make("code", {}, source.name), ` ${source.text.length} characters `, remove);
  }

  // The address with the state; empty if it would be too long.
  async updateLink() {
    const encoded = this.state.sources.length ? await encodeState(this.state, KEY) : "";
    this.hash = encoded.length > MOST_CHARACTERS ? "" : encoded;
    history.replaceState(null, "", `${location.pathname}${location.search}${this.hash}`);
    return encoded && !this.hash ? "" : location.href;
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

// A text in UTF-8, or in UTF-16 as PowerShell redirects it.
/** @param {File} file */
async function readText(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const encoding = bytes[0] === 0xff && bytes[1] === 0xfe ? "utf-16le" : "utf-8";
  return new TextDecoder(encoding).decode(bytes);
}

// The elements of the Markdown that the package writes: headings, items, bold text and code. Files of strangers are in
// it, so that nothing becomes HTML.
/** @param {string} markdown @returns {HTMLElement[]} */
function rendered(markdown) {
  /** @type {HTMLElement[]} */
  const elements = [];
  for (const line of markdown.split("\n").filter((text) => text)) {
    if (line.startsWith("### ")) {
      elements.push(make("h2", {}, line.slice(4)));
      continue;
    }
    if (!line.startsWith("- ")) {
      elements.push(make("p", {}, line));
      continue;
    }
    if (elements.at(-1)?.tagName !== "UL") elements.push(make("ul", {}));
    elements.at(-1)?.append(make("li", {}, ...inline(line.slice(2))));
  }
  return elements;
}

/** @param {string} text */
function inline(text) {
  return text.split(/(\*\*[^*]+\*\*|`[^`]+`)/).map((piece) => {
    if (piece.length > 4 && piece.startsWith("**")) return make("strong", {}, piece.slice(2, -2));
    return piece.length > 2 && piece.startsWith("`") ? make("code", {}, piece.slice(1, -1)) : piece;
  });
}

if ("document" in globalThis) {
  const page = new ExplainPage();
  page.start().catch((error) => page.fail(`The page cannot be loaded: ${error.message}`));
}

export { ExplainPage, rendered };
