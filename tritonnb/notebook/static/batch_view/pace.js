// The pace of deliveries: how far the picture is behind, so that it moves steadily. In ms.

const DELIVERY_INTERVAL = 100;
const LAG_MARGIN = 30;

class Pace {
  constructor() {
    this.receivedAt = 0;
    this.lag = DELIVERY_INTERVAL + LAG_MARGIN;
  }

  // Since the delivery before, `passed` ms have passed.
  /** @param {number} passed */
  received(passed) {
    this.receivedAt = performance.now();
    if (passed > 50 && passed < 900) this.lag = passed + LAG_MARGIN;
  }

  get sinceDelivery() {
    return performance.now() - this.receivedAt;
  }

  // The newest time that is shown when everything up to `now` was received.
  /** @param {number} now */
  endAt(now) {
    return Math.min(now, now + this.sinceDelivery - this.lag);
  }
}

export { Pace };
