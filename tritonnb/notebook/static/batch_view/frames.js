// When frames are drawn: only while something moves, and no more of them than are needed to follow it.

// In ms.
const ANIMATION_TIME = 700; // after a delivery
const FRAME_INTERVAL = 80;
const LONGEST_INTERVAL = 250; // texts and lanes change although the picture hardly moves
const LEAST_MOTION = 2; // px from frame to frame
const SILENCE = 1000;

class Frames {
  /** @param {View} view */
  constructor(view) {
    this.view = view;
    /** @type {number | null} */ this.timer = null;
    /** @type {number | null} */ this.silenceTimer = null;
    this.drawnAt = -Infinity;
  }

  request() {
    const { view } = this;
    if (this.timer || view.closed) return;
    const passed = performance.now() - this.drawnAt;
    const motion = (LEAST_MOTION * view.window.span) / view.drawnWidth;
    const isMoving = !view.window.holds || view.window.isDue(view.received, view.isSilent, performance.now());
    const interval = isMoving ? Math.min(Math.max(FRAME_INTERVAL, motion), LONGEST_INTERVAL) : LONGEST_INTERVAL;
    this.timer = setTimeout(() => requestAnimationFrame(() => this.draw()), interval - passed);
  }

  draw() {
    const { view } = this;
    this.timer = null;
    if (view.closed) return;
    view.draw();
    if (view.replay) this.request();
    if (!view.window.follow) return;
    const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!reducedMotion && view.pace.sinceDelivery < ANIMATION_TIME) this.request();
    else if (!view.isSilent) this.silenceTimer = setTimeout(() => this.request(), SILENCE);
  }

  // Something was received.
  resume() {
    clearTimeout(this.silenceTimer);
    this.request();
  }

  stop() {
    clearTimeout(this.silenceTimer);
    clearTimeout(this.timer);
  }
}

export { Frames, SILENCE };
