// Creates elements of HTML and SVG, and connects a view to the traits of its widget.

import { followKernel } from "./kernel.js";
import { followTheme } from "./theme.js";

const SVG = "http://www.w3.org/2000/svg";

const CONTROLS = ["button", "input", "select", "summary", "textarea"];

// An element: `data` and `aria` are sets of attributes, other properties are those of the DOM.
// JupyterLab must not take the keys of what can have the focus; it looks for the attribute from there upwards.
/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {Properties<Tag>} properties @param {(Child | null)[]} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
function make(tag, properties = {}, ...children) {
  const { class: name, data, aria, role, ...rest } = properties;
  const node = Object.assign(document.createElement(tag), rest);
  if (name) node.className = name;
  if (role) node.setAttribute("role", role);
  Object.assign(node.dataset, data ?? {});
  if (CONTROLS.includes(tag) || "tabIndex" in properties) node.dataset.lmSuppressShortcuts = "true";
  for (const [key, value] of Object.entries(aria ?? {})) node.setAttribute(`aria-${key}`, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

// An element with a class and nothing else.
/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {string} className @param {Child[]} children
 */
function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** @param {string} tag @param {Record<string, unknown>} attributes @param {(Child | null)[]} children */
function makeSvg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children.filter((child) => child !== null));
  return node;
}

// Calls `listeners` by event now and later, and keeps the theme of `el` up to date; returns a function that ends both.
/** @param {WidgetModel<any>} model @param {Record<string, Listener>} listeners @param {HTMLElement} el */
function listen(model, listeners, el) {
  const stopFollowingTheme = followTheme(el);
  for (const [event, listener] of Object.entries(listeners)) {
    model.on(event, listener);
    listener();
  }
  return () => {
    stopFollowingTheme();
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
  };
}

// Like `listen`; without its kernel, nothing can be done with the elements in `el`.
/** @param {WidgetModel<any>} model @param {Record<string, Listener>} listeners @param {HTMLElement} el */
function connect(model, listeners, el) {
  const children = /** @type {HTMLCollectionOf<HTMLElement>} */ (el.children);
  const stopFollowing = followKernel(model, el, () => { for (const child of children) child.inert = true; });
  const stopListening = listen(model, listeners, el);
  return () => {
    stopFollowing();
    stopListening();
  };
}

/** @type {(el: HTMLElement) => boolean} */
const isDisconnected = (el) => el.querySelector(":scope > .tnb-disconnected") !== null;

// Shows a hint if the kernel does not react to an action soon: while a cell runs, it cannot.
/** @param {string} text */
function createBusyHint(text, delayMs = 700) {
  const node = make("span", { class: "tnb-hint", role: "status" });
  let timer = null;
  return {
    node,
    wait() {
      timer ??= setTimeout(() => { node.textContent = text; }, delayMs);
    },
    done() {
      clearTimeout(timer);
      timer = null;
      node.textContent = "";
    },
  };
}

export { connect, createBusyHint, element, isDisconnected, listen, make, makeSvg };
