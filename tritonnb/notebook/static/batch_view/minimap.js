// The minimap: the busy share of the whole time, and the part of it that is shown. It is moved with pointer and keys.

import { columnLevel } from "./columns.js";
import { CanvasSurface } from "./surface.js";

const HEIGHT = 26; // px

class Minimap {
  /**
   * @param {HTMLCanvasElement} canvas @param {{ show: (time: number) => void, pan: (share: number) => void }} actions
   */
  constructor(canvas, { show, pan }) {
    this.canvas = canvas;
    this.begin = 0; // ms
    this.end = 1;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      show(this.timeAt(event.offsetX));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.buttons & 1) show(this.timeAt(event.offsetX));
    });
    canvas.addEventListener("keydown", (event) => {
      const share = { ArrowLeft: -0.25, ArrowRight: 0.25, PageUp: -1, PageDown: 1 }[event.key];
      if (!share) return;
      event.preventDefault();
      event.stopPropagation();
      pan(share);
    });
  }

  /** @param {number} x */
  timeAt(x) {
    const share = Math.min(1, Math.max(0, x / Math.max(1, this.canvas.clientWidth)));
    return this.begin + share * (this.end - this.begin);
  }

  /** @param {Timeline} timeline @param {Theme} theme @param {TimeWindow} window */
  draw(timeline, theme, { from, span }) {
    const width = this.canvas.parentElement.clientWidth;
    if (width < 20 || !timeline.counters) return;
    this.begin = timeline.begin;
    this.end = Math.max(timeline.end, timeline.begin + 1);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${HEIGHT}px`;
    const surface = new CanvasSurface(this.canvas, width, HEIGHT, theme);
    surface.rect(0, 0, width, HEIGHT, { fill: theme.panel });
    this.drawBusy(surface, timeline);
    const x = (time) => ((time - this.begin) / (this.end - this.begin)) * width;
    const left = Math.max(1, Math.min(width - 4, x(from)));
    const right = Math.min(width - 1, Math.max(left + 3, x(from + span)));
    surface.rect(left, 1, right - left, HEIGHT - 2, { fill: theme.selection, alpha: 0.18 });
    surface.rect(left, 1, right - left, HEIGHT - 2, { stroke: theme.selection, line: 1.5 });
    this.describe(from, span);
  }

  /** @param {CanvasSurface} surface @param {Timeline} timeline */
  drawBusy(surface, timeline) {
    const { width, theme } = surface;
    const scale = { from: this.begin, span: this.end - this.begin, width };
    const { level, width: length } = columnLevel(timeline, scale);
    const lanes = [...timeline.counters.lanes.values()];
    for (const [begin, , index] of timeline.counters.intervals(this.begin, this.end, level)) {
      const busy = lanes.reduce((sum, lane) => sum + (lane.total(level, index, index)?.busy ?? 0), 0);
      const height = Math.min(1, busy / 1e6 / length / Math.max(1, timeline.instances.length)) * (HEIGHT - 4);
      const left = ((begin - this.begin) / scale.span) * width;
      const right = left + Math.max(1, (length / scale.span) * width);
      surface.rect(left, HEIGHT - 1 - height, right - left, height, { fill: theme.compute });
    }
  }

  /** @param {number} from @param {number} span */
  describe(from, span) {
    const seconds = (time) => (Math.max(0, time) / 1000).toFixed(2);
    const text = `${seconds(from)} to ${seconds(Math.min(this.end, from + span))} of ${seconds(this.end)} s`;
    const values = { valuemin: 0, valuemax: seconds(this.end), valuenow: seconds(from), valuetext: text };
    for (const [name, value] of Object.entries(values)) this.canvas.setAttribute(`aria-${name}`, String(value));
  }
}

export { Minimap };
