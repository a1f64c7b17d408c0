// The traffic panel: the settings of a load, a button that sends it, and what was measured.
// The browser changes `settings` and `sending`; the kernel sends `status`, with the revision that it has applied.

import { connect, createBusyHint, make } from "../shared/dom.js";
import { drawLatencies, formatMs } from "./latencies.js";

const LOOPS = {
  "open loop": "Requests arrive independently of the responses",
  "closed loop": "Each client waits for its response before it sends the next request",
};
const MOST_DECADES = 4; // of the slider: from 1 to 10,000 requests/s

/** @param {string} text @param {HTMLElement} control */
function labelled(text, control) {
  return make("label", {}, text, control);
}

/** @param {NumberSetting} name @param {string} text @param {number} most @param {ChangeNumber} change */
function createNumber(name, text, most, change) {
  const control = make("input", { type: "number", min: 1, max: most, step: 1, onchange: () => change(name, control) });
  return { row: labelled(text, control), show: (settings) => showNumber(control, settings[name]) };
}

// A number that is not allowed stays until it is corrected.
/** @param {HTMLInputElement} control @param {number} number */
function showNumber(control, number) {
  if (control.getAttribute("aria-invalid") !== "true") control.value = String(number);
}

// The rate: a logarithmic slider, and a field for the exact number.
/** @param {ChangeNumber} change */
function createRate(change) {
  const name = "requests per second";
  const slider = make("input", { type: "range", min: 0, max: MOST_DECADES, step: 0.05, aria: { label: name } });
  const field = make("input", { type: "number", min: 1, max: 10 ** MOST_DECADES, step: "any", aria: { label: name } });
  const describe = () => slider.setAttribute("aria-valuetext", `${field.value} ${name}`);
  slider.addEventListener("input", () => {
    field.value = String(Math.round(10 ** Number(slider.value)));
    describe();
  });
  for (const control of [slider, field]) control.addEventListener("change", () => change("rate", field));
  return {
    row: make("span", { class: "tnb-choice" }, make("span", { aria: { hidden: "true" } }, "requests/s "),
      slider, field),
    show({ rate }) {
      showNumber(field, Math.round(rate * 100) / 100);
      slider.value = String(Math.log10(rate));
      describe();
    },
  };
}

/** @param {(changes: Partial<TrafficSettings>) => void} set */
function createLoops(set) {
  const buttons = Object.entries(LOOPS).map(([loop, title]) =>
    make("button", { type: "button", title, onclick: () => set({ loop }) }, loop));
  return {
    row: make("span", { class: "tnb-choice", role: "group", aria: { label: "kind of load" } }, ...buttons),
    show: ({ loop }) => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.textContent === loop));
    },
  };
}

/**
 * @param {VariableInput[]} inputs @param {(changes: Partial<TrafficSettings>) => void} set
 * @param {() => Record<string, string>} shapesNow
 */
function createShapes(inputs, set, shapesNow) {
  const fields = inputs.map(({ name, dims }) => {
    const text = dims.join(", ").replaceAll("-1", "?");
    const control = make("input", {
      type: "text", class: "tnb-shape", placeholder: text, inputMode: "numeric",
      title: `The shape of ${name}, without the batch dimension: ${text}. Enter a number for each ?`,
      onchange: () => set({ shapes: { ...shapesNow(), [name]: control.value } }),
    });
    return { name, control, row: labelled(`shape of ${name}`, control) };
  });
  return {
    rows: fields.map(({ row }) => row),
    show: ({ shapes }) => {
      for (const { name, control } of fields) control.value = shapes[name] ?? "";
    },
    // The first field that still lacks a value.
    missing: () => fields.find(({ control }) => control.value.trim() === "")?.control ?? null,
  };
}

/** @param {TrafficStatus} status */
function measured(status) {
  if (status.outcome) return [make("span", { class: status.level ? "tnb-error" : "" }, status.outcome)];
  const counts = `${status.sent.toLocaleString()} sent · ${status.in_flight.toLocaleString()} in flight · ` +
    `${status.failed.toLocaleString()} failed`;
  const { latency } = status;
  const n = latency && `n = ${latency.n.toLocaleString()}, last 2 s`;
  if (!latency) return [make("span", {}, counts, " · no successful response in the last 2 s")];
  return [
    make("span", {}, counts),
    make("span", {}, make("b", {}, Math.round(status.rate).toLocaleString()), " responses/s"),
    ...(latency.p50_ms === undefined ? [make("span", {}, `too few responses for percentiles (${n})`)] : [
      make("span", {}, "seen by the client: p50 ", make("b", {}, formatMs(latency.p50_ms)), " · p99 ",
        make("b", {}, formatMs(latency.p99_ms)), ` (${n})`),
      drawLatencies(latency),
    ]),
  ];
}

/** @param {WidgetContext<TrafficState>} context */
function render({ model, el }) {
  const settings = () => model.get("settings");
  const hint = createBusyHint("The kernel is busy: this takes effect when the running cell ends.");
  const set = (changes, sending = model.get("sending")) => {
    model.set("settings", { ...settings(), ...changes, revision: settings().revision + 1 });
    model.set("sending", sending);
    model.save_changes();
    hint.wait();
  };
  const problem = make("span", { class: "tnb-error", role: "alert" });
  const wrongFields = () => {
    const fields = /** @type {NodeListOf<HTMLInputElement>} */ (el.querySelectorAll('input[aria-invalid="true"]'));
    return [...fields].filter((field) => field.checkVisibility());
  };
  const change = (name, control) => {
    const isValid = control.value !== "" && control.checkValidity();
    control.setAttribute("aria-invalid", String(!isValid));
    if (isValid) set({ [name]: Number(control.value) });
    problem.textContent = wrongFields().map(({ min, max, step, value }) =>
      `Expected ${step === "1" ? "an integer" : "a number"} from ${min} to ${max}, got ${value || "none"}. `).join("");
  };

  const { sequences, max_rows: maxRows, variable_inputs: variable, remote } = model.get("limits");
  const send = make("button", { type: "button", class: "tnb-send", title: "Start or stop the traffic" });
  const loops = createLoops(set);
  const arrivals = make("select", { onchange: () => set({ arrivals: arrivals.value }), aria: { label: "arrivals" } },
    ...["poisson", "constant", "burst"].map((value) => make("option", { value }, value)));
  const rate = createRate(change);
  const burst = createNumber("burst", "per burst", 1000, change);
  const clients = createNumber("clients", "clients", 128, change);
  const rows = createNumber("rows", "rows per request", maxRows, change);
  const length = createNumber("sequence_length", "requests per sequence", 100_000, change);
  const http = make("input", { type: "checkbox", onchange: () => set({ http: http.checked }) });
  const shapes = createShapes(variable, set, () => settings().shapes);
  const numbers = make("div", { class: "tnb-measured" });

  send.addEventListener("click", () => {
    const sending = !model.get("sending");
    const wrong = sending ? wrongFields()[0] : undefined;
    (wrong ?? (sending ? shapes.missing() : null))?.focus();
    if (!wrong) set({}, sending);
  });

  function drawSettings() {
    const now = settings();
    const open = now.loop === "open loop";
    for (const part of [loops, rate, burst, clients, rows, length, shapes]) part.show(now);
    arrivals.value = now.arrivals;
    http.checked = now.http;
    for (const part of [arrivals, rate.row]) part.hidden = !open;
    burst.row.hidden = !open || now.arrivals !== "burst";
    clients.row.hidden = open;
    length.row.hidden = !sequences;
    drawSending();
  }

  function drawSending() {
    const sending = model.get("sending");
    send.textContent = sending ? "■ Stop" : "▶ Send";
  }

  function drawStatus() {
    const status = model.get("status");
    if (status.revision >= settings().revision) hint.done();
    numbers.replaceChildren(...measured(status));
  }

  el.append(make(
    "div", { class: "tnb-traffic tnb-controls", role: "group",
      aria: { label: `Traffic on ${model.get("model")}` } },
    make("div", { class: "tnb-settings" }, send, loops.row, arrivals, rate.row, burst.row, clients.row, rows.row,
      length.row, ...shapes.rows, ...(remote ? [] : [labelled("over HTTP", http)]), problem, hint.node),
    numbers,
  ));
  return connect(model, {
    "change:settings": drawSettings, "change:sending": drawSending, "change:status": drawStatus,
  }, el);
}

export default { render };
