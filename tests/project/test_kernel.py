"""The server in a real Jupyter kernel: interrupts, restarts, and nested event loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


class Kernel:
    """A kernel and its client."""

    def __init__(self) -> None:
        # Sockets are files: another process may take the ports that a kernel has chosen.
        self.manager = KernelManager(kernel_name="python3", transport="ipc")
        self.manager.start_kernel()
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str) -> str:
        """Run a cell; what it printed, or the name of its error."""
        printed: list[str] = []

        def output(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        content = {"status": "aborted"}
        while content["status"] == "aborted":  # what comes right after an interrupt is not run
            content = self.client.execute_interactive(code, output_hook=output, timeout=60)["content"]
        return "".join(printed) if content["status"] == "ok" else content["ename"]

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextmanager
def started() -> Iterator[Kernel]:
    kernel = Kernel()
    try:
        yield kernel
    finally:
        kernel.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with started() as kernel:
        yield kernel


@pytest.fixture(scope="module")
def shared() -> Iterator[Kernel]:
    """A kernel for the tests that begin with a new server and change nothing else."""
    with started() as kernel:
        yield kernel


def interrupted(kernel: Kernel, code: str) -> tuple[str, list[str]]:
    """Interrupt a cell once it shows something; the name of its error, and all it showed."""
    message = kernel.client.execute(code)
    shown: list[str] = []
    idle = False
    while not idle:
        published = kernel.client.get_iopub_msg(timeout=30)
        kind, content = published["msg_type"], published["content"]
        if published["parent_header"].get("msg_id") != message:
            continue
        idle = kind == "status" and content["execution_state"] == "idle"
        text = content.get("text", content.get("data", {}).get("text/html", ""))
        if text and not any(shown):
            kernel.manager.interrupt_kernel()
        if kind in ("stream", "display_data", "update_display_data"):
            shown.append(text)
    while (reply := kernel.client.get_shell_msg(timeout=30))["parent_header"]["msg_id"] != message:
        pass
    return reply["content"].get("ename", ""), shown


def test_interrupting_a_cell_leaves_the_server_serving(shared: Kernel) -> None:
    shared.run(SERVE.format(port=0))
    error, _ = interrupted(shared, "print('busy', flush=True)\nwhile True:\n    pass")
    assert error == "KeyboardInterrupt"
    assert shared.run(ASK) == ANSWER


GATED = """
import threading
gate = threading.Event()

@server.model
def gated(X: tnb.FP32[1]) -> tnb.FP32[1]:
    gate.wait()
    return X
"""


def test_interrupting_a_call_that_waits_for_its_response_leaves_the_server_serving(shared: Kernel) -> None:
    shared.run(SERVE.format(port=0))
    shared.run(GATED)
    error, _ = interrupted(shared, "print('busy', flush=True)\nserver['gated'](X=[1.0])")
    assert error == "KeyboardInterrupt"
    assert shared.run(ASK) == ANSWER
    assert shared.run("gate.set(); server.stop()") == ""


def test_waiting_for_a_load_shows_progress_and_an_interrupt_keeps_the_measurements(shared: Kernel) -> None:
    shared.run(SERVE.format(port=0))
    error, shown = interrupted(shared, 'load = tnb.load(server["add_sub"], clients=1)\nload.wait()')
    assert error == "KeyboardInterrupt"
    progress = [row for row in shown if row]
    assert progress
    assert all(" sent, " in line for line in progress)
    assert shown[-1] == ""
    assert shared.run("load.wait(60); print(load.done, load.completed == load.sent)") == "True True\n"
    assert shared.run(ASK) == ANSWER


def test_waiting_for_a_finished_load_shows_nothing(shared: Kernel) -> None:
    shared.run(SERVE.format(port=0))
    shown: list[str] = []
    cell = 'print(tnb.load(server["add_sub"], clients=1, requests=1).wait().sent)'
    shared.client.execute_interactive(cell, output_hook=lambda message: shown.append(message["msg_type"]), timeout=60)
    assert "stream" in shown
    assert "display_data" not in shown


def test_sweep_shows_one_line_of_plain_text(shared: Kernel) -> None:
    shared.run(SERVE.format(port=0))
    shown: list[dict[str, Any]] = []
    cell = (
        'sweep = tnb.sweep(server["add_sub"], count=[1, 2], rate=100, requests=40, live=True)\n'
        "print(len(sweep.wait().trials))"
    )
    shared.client.execute_interactive(cell, output_hook=shown.append, timeout=60)
    kinds = [row["msg_type"] for row in shown]
    assert kinds.count("display_data") == 1
    texts = [row["content"]["data"]["text/plain"] for row in shown if "data" in row["content"]]
    assert texts[0].startswith("sweep: ")
    assert not any("object" in text for text in texts)


def test_rerunning_the_cell_reuses_the_port(shared: Kernel) -> None:
    shared.run(SERVE.format(port=0))
    port = int(shared.run(PORT))
    for _ in range(3):
        shared.run(SERVE.format(port=port))
        assert shared.run(ASK) == ANSWER
        assert int(shared.run(PORT)) == port


def test_restarting_the_kernel_frees_the_port(kernel: Kernel) -> None:
    kernel.run(SERVE.format(port=0))
    port = int(kernel.run(PORT))
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=60)
    kernel.run(SERVE.format(port=port))
    assert kernel.run(ASK) == ANSWER


def test_top_level_await_works(shared: Kernel) -> None:
    shared.run(SERVE.format(port=0))
    ask = 'outputs = await server["add_sub"].infer_async(INPUT0=[[1, 2, 3, 4]], INPUT1=[[1, 1, 1, 1]])\n'
    assert shared.run(ask + 'print(outputs["OUTPUT0"].tolist())') == ANSWER


def test_nested_event_loops_lose_no_cell(kernel: Kernel) -> None:
    kernel.run(SERVE.format(port=0) + "tnb.allow_nested()\nimport asyncio")
    nested = 'print(asyncio.run(server["add_sub"].infer_async(INPUT0=[[1] * 4], INPUT1=[[1] * 4]))["OUTPUT0"].tolist())'
    messages = [kernel.client.execute(nested) for _ in range(5)]
    replies: set[str] = set()
    while len(replies) < len(messages):
        reply = kernel.client.get_shell_msg(timeout=30)
        if reply["parent_header"]["msg_id"] in messages:
            assert reply["content"]["status"] == "ok"
            replies.add(reply["parent_header"]["msg_id"])


def test_cells_run_with_the_settings_of_the_kernel_while_a_server_and_a_view_run(kernel: Kernel) -> None:
    kernel.run("import gc, signal, sys")
    settings = "print(sys.getswitchinterval(), gc.get_threshold(), gc.isenabled(), signal.getsignal(signal.SIGINT))"
    before = kernel.run(settings)
    kernel.run(SERVE.format(port=0) + 'view = server["add_sub"].watch(); display(view)')
    assert kernel.run(f"{ASK}; {settings}") == ANSWER + before
