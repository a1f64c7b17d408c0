"""The server in a real Jupyter kernel: interrupts, restarts, and nested event loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

EXAMPLES = Path(__file__).parents[2] / "model_repository"
SERVE = f"""
import tritonnb as tnb
server = tnb.serve({str(EXAMPLES)!r}, port={{port}}, model_control_mode="explicit", load_models=["add_sub"])
"""
PORT = "print(server.port)"
ASK = 'print(server["add_sub"](INPUT0=[[1, 2, 3, 4]], INPUT1=[[1, 1, 1, 1]])["OUTPUT0"].tolist())'
ANSWER = "[[2.0, 3.0, 4.0, 5.0]]\n"
# Says so only when it waits: an interrupt that came before would not be the traffic's.
WAIT = """
load = tnb.load(server["add_sub"], clients=1)
wait = load._finished.result
def result(timeout):
    print("waiting", flush=True)
    return wait(timeout)
load._finished.result = result
load.wait()
"""


class Kernel:
    """A kernel and its client."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str) -> str:
        """Run a cell; what it printed, or the name of its error."""
        printed: list[str] = []

        def output(message: dict) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        content = {"status": "aborted"}
        while content["status"] == "aborted":  # what comes right after an interrupt is not run
            content = self.client.execute_interactive(code, output_hook=output, timeout=60)["content"]
        return "".join(printed) if content["status"] == "ok" else content["ename"]

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


def interrupted(kernel: Kernel, code: str) -> str:
    """Interrupt a cell once it has printed something; the name of its error."""
    message = kernel.client.execute(code)
    while True:
        published = kernel.client.get_iopub_msg(timeout=30)
        if published["parent_header"].get("msg_id") == message and published["msg_type"] == "stream":
            break
    kernel.manager.interrupt_kernel()
    while (reply := kernel.client.get_shell_msg(timeout=30))["parent_header"]["msg_id"] != message:
        pass
    return reply["content"].get("ename", "")


def test_interrupting_a_cell_leaves_the_server_serving(kernel: Kernel):
    kernel.run(SERVE.format(port=0))
    blocking = "print('blocking', flush=True)\nimport threading\nthreading.Event().wait()"
    assert interrupted(kernel, blocking) == "KeyboardInterrupt"
    assert kernel.run(ASK) == ANSWER


def test_interrupting_a_wait_for_traffic_stops_it_and_keeps_what_was_measured(kernel: Kernel):
    kernel.run(SERVE.format(port=0))
    assert interrupted(kernel, WAIT) == "KeyboardInterrupt"
    assert kernel.run("wait(20); print(load.done, load.answered == load.sent)") == "True True\n"
    assert kernel.run(ASK) == ANSWER


def test_running_the_cell_again_takes_the_same_port(kernel: Kernel):
    kernel.run(SERVE.format(port=0))
    port = int(kernel.run(PORT))
    for _ in range(3):
        kernel.run(SERVE.format(port=port))
        assert kernel.run(ASK) == ANSWER
        assert int(kernel.run(PORT)) == port


def test_restarting_the_kernel_frees_the_port(kernel: Kernel):
    kernel.run(SERVE.format(port=0))
    port = int(kernel.run(PORT))
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=60)
    kernel.run(SERVE.format(port=port))
    assert kernel.run(ASK) == ANSWER


def test_top_level_await_works(kernel: Kernel):
    kernel.run(SERVE.format(port=0))
    ask = 'outputs = await server["add_sub"].infer_async(INPUT0=[[1, 2, 3, 4]], INPUT1=[[1, 1, 1, 1]])\n'
    assert kernel.run(ask + 'print(outputs["OUTPUT0"].tolist())') == ANSWER


def test_nested_loops_lose_no_cell(kernel: Kernel):
    kernel.run(SERVE.format(port=0) + "tnb.allow_nested()\nimport asyncio")
    nested = 'print(asyncio.run(server["add_sub"].infer_async(INPUT0=[[1] * 4], INPUT1=[[1] * 4]))["OUTPUT0"].tolist())'
    messages = [kernel.client.execute(nested) for _ in range(5)]
    replies = set()
    while len(replies) < len(messages):
        reply = kernel.client.get_shell_msg(timeout=30)
        if reply["parent_header"]["msg_id"] in messages:
            assert reply["content"]["status"] == "ok"
            replies.add(reply["parent_header"]["msg_id"])


def test_a_busy_cell_lets_the_server_in_more_often(kernel: Kernel):
    interval = "print(round(sys.getswitchinterval() * 1e6))"
    kernel.run(SERVE.format(port=0) + "import sys")
    assert kernel.run(interval) == "500\n"
    assert kernel.run(f"get_ipython().run_cell({interval!r}); {interval}") == "500\n500\n"
    assert kernel.run("1 / 0") == "ZeroDivisionError"


def test_a_sweep_tells_its_progress_on_a_line_that_goes_away(kernel: Kernel):
    kernel.run(SERVE.format(port=0))
    shown: list[str] = []

    def output(message: dict) -> None:
        if message["msg_type"] in ("display_data", "update_display_data"):
            shown.append(message["content"]["data"]["text/html"])

    sweep = 'tnb.sweep(server["add_sub"], count=[1, 2], clients=2, requests=9, service=tnb.fixed(1)).wait(); None'
    kernel.client.execute_interactive(sweep, output_hook=output, timeout=60)
    assert shown[0] == shown[-1] == ""
    assert all(" of 3 configurations tried" in each for each in shown[1:-1])
    assert len(shown) > 2
