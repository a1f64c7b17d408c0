// The panel of a debugger: controls, the event, the rule table, the breakpoints, and the quantities for them.

import { connect, element } from "./shared/dom.js";

const ACTIONS = [
  ["restart", "restart", "to the beginning (Home)"],
  ["reverse", "‹ breakpoint", "back to the breakpoint before (Shift+F8)"],
  ["back", "‹ event", "previous event (left arrow)"], ["step", "event ›", "next event (right arrow)"],
  ["resume", "breakpoint ›", "on to the next breakpoint (F8)"],
];
const KEYS = { Home: "restart", ArrowLeft: "back", ArrowRight: "step", F8: "resume", "Shift+F8": "reverse" };

// A text that may continue in the next line after an underscore.
/** @param {string} text */
function breakable(text) {
  return text.split(/(?<=_)/).flatMap((part, index) => (index ? [element("wbr", ""), part] : [part]));
}

/** @param {string[]} head @param {unknown[][]} rows each after its class */
function table(head, rows) {
  const cells = (tag, values) => values.map((value) => element(tag, "", ...breakable(String(value))));
  const body = rows.map(([className, ...values]) => element("tr", String(className), ...cells("td", values)));
  const titles = element("thead", "", element("tr", "", ...cells("th", head)));
  return element("table", "", titles, element("tbody", "", ...body));
}

/** @type {(value: number | null) => string | number} */
const formatted = (value) => (typeof value === "number" && !Number.isInteger(value) ? value.toFixed(3) : value ?? "–");

class Panel {
  /** @param {WidgetModel<DebuggerState>} model @param {HTMLElement} root */
  constructor(model, root) {
    this.model = model;
    this.root = root;
    root.classList.add("tnb-debugger", "tnb-controls");
    root.dataset.lmSuppressShortcuts = "true"; // JupyterLab ignores keys that are pressed here
    this.event = element("p", "tnb-event");
    this.event.setAttribute("aria-live", "polite");
    this.message = element("p", "tnb-message");
    this.message.setAttribute("role", "status");
    this.rules = element("div", "tnb-rules");
    this.quantities = element("div", "tnb-quantities");
    this.breakpoints = element("ol", "tnb-breakpoints");
    root.append(this.toolbar(), this.message, this.event, this.rules, this.form(), this.breakpoints,
      element("details", "", element("summary", "", "quantities for breakpoints"), this.quantities));
    root.addEventListener("keydown", (event) => this.pressed(event));
  }

  toolbar() {
    const bar = element("div", "tnb-toolbar");
    bar.setAttribute("role", "toolbar");
    bar.setAttribute("aria-label", "events");
    for (const [action, label, title] of ACTIONS) {
      const button = element("button", "", label);
      button.title = title;
      button.setAttribute("aria-label", title);
      button.addEventListener("click", () => this.model.send({ action }));
      bar.append(button);
    }
    this.position = element("span", "tnb-note");
    bar.append(this.position);
    return bar;
  }

  form() {
    const input = element("input", "");
    input.type = "text";
    input.placeholder = "batch < 4 and queue > 2";
    input.setAttribute("aria-label", "condition of a breakpoint");
    const button = element("button", "", "Add breakpoint");
    const add = () => this.model.send({ action: "add", condition: input.value });
    button.addEventListener("click", add);
    input.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") add();
    });
    return element("div", "tnb-form", input, button);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const action = KEYS[event.shiftKey ? `Shift+${event.key}` : event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    this.model.send({ action });
  }

  draw() {
    const { position, total, description, quantities, rules, idle, message, error } = this.model.get("state");
    if (total === undefined) return;
    this.position.textContent = `event ${position} of ${total}`;
    this.event.textContent = description;
    this.message.textContent = message;
    this.message.classList.toggle("tnb-error", error);
    const rows = rules.map(([rule, meaning, numbers, applies]) =>
      [applies ? "tnb-applies" : "", applies ? "▶" : "", rule, numbers, meaning]);
    const busy = "All instances are busy. The rules for the next batch:";
    const title = idle ? "The rules for the requests that wait:" : busy;
    const parts = rows.length ? [table(["", "rule", "now", "meaning"], rows)] : [];
    this.rules.replaceChildren(element("p", "", rows.length ? title : "No request waits."), ...parts);
    const values = quantities.map(([name, value, meaning]) => ["", name, formatted(value), meaning]);
    this.quantities.replaceChildren(table(["name", "now", "meaning"], values));
  }

  drawBreakpoints() {
    this.breakpoints.replaceChildren(...this.model.get("breakpoints").map((condition) => {
      const remove = element("button", "", "×");
      remove.setAttribute("aria-label", `remove the breakpoint ${condition}`);
      remove.addEventListener("click", () => this.model.send({ action: "remove", condition }));
      return element("li", "", element("code", "", condition), remove);
    }));
  }
}

/** @param {WidgetContext<DebuggerState>} context */
function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const panel = new Panel(model, root);
  const disconnect = connect(model, {
    "change:state": () => panel.draw(), "change:breakpoints": () => panel.drawBreakpoints(),
  }, el);
  model.send({ action: "shown" });
  return () => {
    model.send({ action: "removed" });
    disconnect();
  };
}

export default { render };
