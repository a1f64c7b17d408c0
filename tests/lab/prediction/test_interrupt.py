"""A real Ctrl-C, at a random time, during each of the long operations: promptly ended, nothing left running."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

PROGRAM = """
import json, sys, threading, time
import tritonnb as tnb

with tnb.Server(port=0) as server:

    @server.model(max_batch_size=4, dynamic_batching={})
    def sleeps(X: tnb.FP32[1]) -> tnb.FP32[1]:
        time.sleep(0.003)
        return X

    model, service = server["sleeps"], tnb.linear(1, 3)
    before = model.config.text
    twin = tnb.simulate(before, tnb.poisson(150, 4, seed=1), tnb.jittered(service, sigma=0.2)).twin()
    times_us = [*range(0, 60_000_000, 10_000), 3_600_000_000]
    operations = {
        "load": lambda: tnb.load(model, rate=100, duration=3600).wait(),
        "predict": lambda: twin.predict(rate=200),
        "plan": lambda: twin.plan("p90 < 40 ms", rate=2000),
        "sweep": lambda: tnb.sweep(model, constraint="p99 < 40 ms", max_batch_size=[1, 2, 4], service=service).wait(),
        "live sweep": lambda: tnb.sweep(model, max_batch_size=[1, 2], rate=50, requests=200_000, live="all").wait(),
        "verify": lambda: twin.verify(model, max_batch_size=2, arrivals=[(time_us, 1) for time_us in times_us]),
    }
    print("ready", flush=True)
    try:
        outcome = repr(operations[sys.argv[1]]())
    except KeyboardInterrupt:
        outcome = "KeyboardInterrupt"
    print(json.dumps(outcome), flush=True)
    for thread in threading.enumerate():  # of a sweep or a load
        if thread.name.startswith(("tritonnb-sweep", "tritonnb-verify")):
            thread.join(60)
    print(json.dumps(model.config.text == before), flush=True)
"""


@pytest.mark.timeout(180)
@pytest.mark.slow
@pytest.mark.parametrize("operation", ["load", "predict", "plan", "sweep", "live sweep", "verify"])
def test_interrupt_at_any_time_ends_the_operation_and_restores_the_model(operation: str) -> None:
    after_s = random.uniform(0, 4)
    command = [sys.executable, "-c", PROGRAM, operation]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child, ExitStack() as ending:
        ending.callback(child.kill)  # if the interrupt did not end the hour of requests within the test's time limit
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            child.wait(after_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
        outcome, restored = (json.loads(child.stdout.readline()) for _ in range(2))
        assert restored, after_s
        assert outcome == "KeyboardInterrupt" or operation in {"predict", "plan", "sweep", "verify"}, (after_s, outcome)
        # An operation may end just before the interrupt, which then ends the interpreter while it shuts down.
        assert child.wait(60) in ({0} if outcome == "KeyboardInterrupt" else {0, -signal.SIGINT}), after_s
