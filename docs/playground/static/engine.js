// Asks the worker: each message gets its answer; of simulations that wait, only the newest is run, and one that takes
// too long is stopped.

const LONGEST_S = 20; // of a simulation

class Engine {
  /** @param {{ onLoaded: (ms: number) => void, onFailed: (message: string) => void }} listeners */
  constructor(listeners) {
    this.listeners = listeners;
    this.number = 0;
    this.running = false;
    this.newest = null;
    this.startWorker();
  }

  startWorker() {
    const { onLoaded, onFailed } = this.listeners;
    this.waiting = new Map(); // the answers to come, by number
    this.isLoaded = new Promise((resolve) => { this.loaded = resolve; });
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.worker.onerror = (event) => onFailed(event.message ?? "the worker cannot be started");
    this.worker.onmessage = ({ data }) => {
      if (data.id === undefined) this.loaded(); // or failed: then every question is answered with the error
      if (data.loaded !== undefined) onLoaded(data.loaded);
      else if (data.failed !== undefined) onFailed(data.failed);
      else this.receive(data);
    };
  }

  // Stop what the worker does, and start another one.
  /** @param {string} reason */
  restart(reason) {
    const { waiting } = this;
    this.worker.terminate();
    this.startWorker();
    for (const { reject } of waiting.values()) reject(new Error(reason));
  }

  /** @param {{ id: number, answer: string }} message */
  receive({ id, answer }) {
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    const { result, error } = JSON.parse(answer);
    if (error === undefined) resolve(result);
    else reject(new Error(error));
  }

  /** @param {object} message @param {File[] | null} [files] @returns {Promise<any>} */
  ask(message, files = null) {
    this.number += 1;
    const id = this.number;
    this.worker.postMessage({ id, message, files });
    return new Promise((resolve, reject) => { this.waiting.set(id, { resolve, reject }); });
  }

  // Whether a newer scenario than the one that is simulated waits.
  get isWaiting() {
    return this.newest !== null;
  }

  // Simulate the newest scenario; calls `onResult(result, ms)` with the result of the last one at least.
  /** @param {Scenario} scenario @param {(result: SimulationResult, ms: number) => void} onResult */
  async simulate(scenario, onResult) {
    this.newest = { scenario, onResult, asked: performance.now() };
    if (this.running) return;
    this.running = true;
    while (this.newest) {
      const job = this.newest;
      this.newest = null;
      await this.isLoaded;
      const tooLong = `The simulation took longer than ${LONGEST_S} s and was stopped: expected a shorter one.`;
      const timer = setTimeout(() => this.restart(tooLong), 1000 * LONGEST_S);
      const answer = this.ask({ do: "simulate", scenario: job.scenario });
      const result = await answer.catch(({ message }) => ({ error: message }));
      clearTimeout(timer);
      job.onResult(result, performance.now() - job.asked);
    }
    this.running = false;
  }
}

export { Engine };
