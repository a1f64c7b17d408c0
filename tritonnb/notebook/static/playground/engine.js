// Asks the worker: each message gets its answer; of simulations that wait, only the newest is run.

class Engine {
  constructor({ onLoaded, onFailed }) {
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.waiting = new Map(); // the answers to come, by number
    this.number = 0;
    this.running = false;
    this.newest = null;
    this.worker.onerror = (event) => onFailed(event.message ?? "the worker cannot be started");
    this.worker.onmessage = ({ data }) => {
      if (data.loaded !== undefined) onLoaded(data.loaded);
      else if (data.failed !== undefined) onFailed(data.failed);
      else this.receive(data);
    };
  }

  receive({ id, answer }) {
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    const { result, error } = JSON.parse(answer);
    if (error === undefined) resolve(result);
    else reject(new Error(error));
  }

  ask(message, files = null) {
    this.number += 1;
    const id = this.number;
    this.worker.postMessage({ id, message, files });
    return new Promise((resolve, reject) => { this.waiting.set(id, { resolve, reject }); });
  }

  // Simulate the newest scenario; calls `onResult(result, ms)` with the result of the last one at least.
  async simulate(scenario, onResult) {
    this.newest = { scenario, onResult, asked: performance.now() };
    if (this.running) return;
    this.running = true;
    while (this.newest) {
      const job = this.newest;
      this.newest = null;
      const answer = this.ask({ do: "simulate", scenario: job.scenario });
      const result = await answer.catch(({ message }) => ({ error: message }));
      job.onResult(result, performance.now() - job.asked);
    }
    this.running = false;
  }
}

export { Engine };
