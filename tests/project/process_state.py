"""Write the state of a process before, while and after a server runs in it: ``process_state.py REPOSITORY``."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import anywidget  # noqa: F401  # what libraries change when they are imported is not the server's
import grpc  # noqa: F401
import matplotlib as mpl
import numpy as np
import onnxruntime  # noqa: F401
import pandas as pd  # noqa: F401
import torch

MODELS = ["add_sub", "accumulator_onnx", "identity_fp32", "digits"]
META_PATH = list(sys.meta_path)
ASYNCIO = (asyncio, asyncio.events, asyncio.BaseEventLoop, asyncio.Task, asyncio.Future)


def state() -> dict[str, Any]:
    """The state of the whole process, by subject."""
    loggers = [logging.root, *map(logging.getLogger, logging.root.manager.loggerDict)]
    configured = [logger for logger in loggers if logger.handlers or logger.level]
    names = [thread.name for thread in threading.enumerate()]
    modules = {name.partition(".")[0].rstrip("0123456789") for name in sys.modules}
    return {
        "garbage collector": [gc.get_threshold(), gc.isenabled(), repr(gc.callbacks), gc.get_freeze_count()],
        "switch interval": sys.getswitchinterval(),
        "signal handlers": {str(number): repr(signal.getsignal(number)) for number in signal.valid_signals()},
        "wakeup descriptor": signal.set_wakeup_fd(-1),
        "environment": dict(os.environ),
        "warnings": [repr(warnings.filters), repr(warnings.showwarning)],
        "matplotlib": repr(dict(mpl.rcParams)),
        "asyncio": [repr(asyncio.get_event_loop_policy()), *(repr(sorted(vars(of).items())) for of in ASYNCIO)],
        "numpy": [np.geterr(), repr(np.get_printoptions())],
        "hooks": repr([sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook]),
        "tracing": repr([sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()]),
        "faults": faulthandler.is_enabled(),
        "logging": [[logger.name, repr(logger.handlers), logger.level] for logger in configured],
        "loggers": repr([logging.getLoggerClass(), logging.getLogRecordFactory(), logging.root.manager.disable]),
        "streams": repr([sys.stdin, sys.stdout, sys.stderr]),
        "random numbers": [hash(random.getstate()), repr(np.random.get_state()), repr(torch.get_rng_state().tolist())],
        "torch": [torch.get_num_threads(), torch.get_num_interop_threads(), repr(torch.get_default_dtype())],
        "processes": multiprocessing.get_start_method(allow_none=True),
        "sockets": socket.getdefaulttimeout(),
        "limits": [sys.getrecursionlimit(), threading.stack_size(), *map(resource.getrlimit, range(16))],
        "directory": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "imports": [sys.dont_write_bytecode, sys.meta_path == META_PATH],
        "path": list(sys.path),
        "path hooks": len(sys.path_hooks),
        "modules of models": sorted(name for name in modules if name.startswith(("triton_python", "tritonnb_model"))),
        # Threads of a finished load end by themselves, a moment later.
        "threads": sorted({name.partition(" ")[0] for name in names if not name.startswith("tritonnb-load")}),
    }


def main(repository: str) -> None:
    """Use a server in many ways."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell of a test may have it ignored
    states = [state()]
    import tritonnb as tnb

    tensors = {"INPUT0": [[1, 2, 3, 4]], "INPUT1": [[1, 1, 1, 1]]}
    options = {"port": 0, "grpc_port": 0, "metrics_port": 0, "model_control_mode": "explicit", "load_models": MODELS}
    with tnb.serve(repository, **options) as server:  # type: ignore[arg-type]
        model, view = server["add_sub"], server["add_sub"].watch()
        with server.record() as recording:
            for _ in range(3):
                model(tensors)
            asyncio.run(model.infer_async(tensors))
            tnb.load(f"{server.url}/v2/models/add_sub", requests=10, clients=2).wait()
        editor, remote = model.edit(), tnb.connect(server.url)
        remote["add_sub"].stats()
        states.append(state())
        editor.close()
        view.close()
        remote.close()
        recording.debug().view()
        recording.plot.timeline()
        recording.to_html("recording.html")
        tnb.simulate("max_batch_size: 1", [(0, 1)], tnb.fixed(1))
    for thread in threading.enumerate():  # a thread says that it has finished its work just before it ends
        if thread.name.startswith("tritonnb"):
            thread.join(10)
    states.append(state())
    Path("states.json").write_text(json.dumps(states))


if __name__ == "__main__":
    main(sys.argv[1])
