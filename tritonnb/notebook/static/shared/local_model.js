// What a widget's model is to its view, on a page without a kernel: `send` does nothing unless a page overrides it.
class LocalModel {
  /** @param {Record<string, any>} state the traits */
  constructor(state) {
    this.state = state;
    this.listeners = new Map();
  }

  /** @param {string} name */
  get(name) {
    return this.state[name];
  }

  /** @param {string} name @param {any} value */
  set(name, value) {
    this.state[name] = value;
    for (const listener of this.listeners.get(`change:${name}`) ?? []) listener();
  }

  /** @param {string} event @param {Listener} listener */
  on(event, listener) {
    this.listeners.set(event, [...(this.listeners.get(event) ?? []), listener]);
  }

  /** @param {string} event @param {Listener} listener */
  off(event, listener) {
    this.listeners.set(event, (this.listeners.get(event) ?? []).filter((known) => known !== listener));
  }

  /** @param {object} _message */
  send(_message) {}

  save_changes() {}
}

// Follow the colour scheme of the browser, as JupyterLab's themes are followed in a notebook.
function followColourScheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.body.dataset.jpThemeLight = String(!dark.matches);
    document.body.dataset.tnbTheme = dark.matches ? "dark" : "light"; // of what is no widget
  };
  dark.addEventListener("change", apply);
  apply();
}

export { LocalModel, followColourScheme };
