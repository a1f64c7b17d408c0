"""The shim in Python: its functions, structures and errors (*shim/host.h*)."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_bool, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from tritonnb.backends.native import build
from tritonnb.core.errors import Status, TritonError, UnsupportedError
from tritonnb.core.forks import fork_safe

#: By number, as libraries return them.
STATUSES = tuple(Status)
#: TRITONSERVER_InstanceGroupKind and TRITONSERVER_MemoryType, by position.
INSTANCE_KINDS = ("KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL")
MEMORY_TYPES = ("CPU", "CPU_PINNED", "GPU")

#: TRITONSERVER_ParameterType.
STRING, INT, BOOL, DOUBLE = range(4)

#: TnbEventKind.
RESPONSE, FLAGS, ABANDONED, RELEASED, LOG = range(5)


class NativeTensor(ctypes.Structure):
    """The C structure ``TnbTensor``."""

    _fields_ = (
        ("name", c_char_p),
        ("datatype", c_int32),
        ("dims_count", c_uint32),
        ("shape", POINTER(c_int64)),
        ("data", c_void_p),
        ("byte_size", c_uint64),
    )


class NativeParameter(ctypes.Structure):
    """The C structure ``TnbParameter``."""

    _fields_ = (
        ("name", c_char_p),
        ("type", c_int32),
        ("boolean", c_int32),
        ("integer", c_int64),
        ("number", c_double),
        ("text", c_char_p),
    )


class NativeResponse(ctypes.Structure):
    """The C structure ``TnbResponse``."""

    _fields_ = (
        ("error_code", c_int32),
        ("output_count", c_uint32),
        ("parameter_count", c_uint32),
        ("reserved", c_uint32),
        ("error_message", c_char_p),
        ("outputs", POINTER(NativeTensor)),
        ("parameters", POINTER(NativeParameter)),
    )


class BatchStatistics(ctypes.Structure):
    """The C structure ``TnbBatchStatistics``."""

    _fields_ = tuple(
        (name, c_uint64)
        for name in ("reports", "batch_size", "exec_start_ns", "compute_start_ns", "compute_end_ns", "exec_end_ns")
    )


class Outcome(ctypes.Structure):
    """The C structure ``TnbOutcome``."""

    _fields_ = (
        ("released", c_int32),
        ("rescheduled", c_int32),
        ("reported", c_int32),
        ("pending", c_int32),
        ("response", c_void_p),
        ("state_count", c_uint32),
        ("final_sent", c_uint32),
        ("states", POINTER(NativeTensor)),
    )


class Event(ctypes.Structure):
    """The C structure ``TnbEvent``."""

    _fields_ = (
        ("kind", c_int32),
        ("flags", c_uint32),
        ("token", c_uint64),
        ("response", c_void_p),
        ("line", c_int64),
        ("text", c_char_p),
        ("file", c_char_p),
    )


#: Result and parameters of each function; a result `_ERROR` is an error that the caller owns.
_ERROR = c_void_p
_FUNCTIONS: dict[str, tuple[Any, Sequence[Any]]] = {
    "TRITONSERVER_ErrorCode": (c_int32, (c_void_p,)),
    "TRITONSERVER_ErrorMessage": (c_char_p, (c_void_p,)),
    "TRITONSERVER_ErrorDelete": (None, (c_void_p,)),
    "tnb_backend_open": (_ERROR, (c_char_p, c_char_p, c_char_p, c_char_p, POINTER(c_void_p))),
    "tnb_backend_close": (_ERROR, (c_void_p,)),
    "tnb_backend_loads_in_parallel": (c_bool, (c_void_p,)),
    "tnb_backend_preferred_count": (c_uint64, (c_void_p, c_int32)),
    "tnb_model_new": (c_void_p, (c_void_p, c_char_p, c_uint64, c_char_p, c_bool)),
    "tnb_model_configure": (None, (c_void_p, c_char_p, c_bool)),
    "tnb_model_add_state": (None, (c_void_p, c_char_p)),
    "tnb_model_initialize": (_ERROR, (c_void_p,)),
    "tnb_model_config": (c_char_p, (c_void_p,)),
    "tnb_model_finalize": (_ERROR, (c_void_p, c_bool)),
    "tnb_instance_new": (c_void_p, (c_void_p, c_char_p, c_int32, c_int32, c_bool, c_char_p)),
    "tnb_instance_initialize": (_ERROR, (c_void_p,)),
    "tnb_instance_execute": (_ERROR, (c_void_p, POINTER(c_void_p), c_uint32, POINTER(BatchStatistics))),
    "tnb_instance_reports_readiness": (c_bool, (c_void_p,)),
    "tnb_instance_ready": (_ERROR, (c_void_p,)),
    "tnb_instance_memory": (c_uint32, (c_void_p, c_uint32, POINTER(c_int32), POINTER(c_int64), POINTER(c_uint64))),
    "tnb_instance_finalize": (_ERROR, (c_void_p, c_bool)),
    "tnb_request_new": (c_void_p, (c_void_p, c_uint64, c_char_p, c_uint64, c_char_p, c_uint32, c_uint64)),
    "tnb_request_add_input": (None, (c_void_p, c_char_p, c_int32, POINTER(c_int64), c_uint32, c_void_p, c_uint64)),
    "tnb_request_add_output": (None, (c_void_p, c_char_p)),
    "tnb_request_add_parameter": (None, (c_void_p, c_char_p, c_int32, c_int64, c_double, c_char_p)),
    "tnb_request_collect": (None, (c_void_p, c_bool, POINTER(Outcome))),
    "tnb_request_finish": (None, (c_void_p,)),
    "tnb_cancel": (None, (c_uint64,)),
    "tnb_response_view": (POINTER(NativeResponse), (c_void_p,)),
    "tnb_response_free": (None, (c_void_p,)),
    "tnb_events_next": (c_bool, (c_void_p, POINTER(Event))),
    "tnb_events_stop": (None, (c_void_p,)),
    "tnb_log_levels": (None, (c_uint32,)),
    "tnb_strategy_open": (_ERROR, (c_char_p, c_void_p, POINTER(c_void_p))),
    "tnb_strategy_batch_new": (_ERROR, (c_void_p, POINTER(c_void_p))),
    "tnb_strategy_include": (_ERROR, (c_void_p, c_void_p, c_void_p, POINTER(c_bool))),
    "tnb_strategy_batch_end": (_ERROR, (c_void_p, c_void_p)),
    "tnb_strategy_close": (_ERROR, (c_void_p,)),
}


@functools.cache
def load_shim() -> Any:
    """Load the shim, whose functions are then visible to the backends that are loaded later.

    Raises
    ------
    UnsupportedError
        If it is not compiled, and a compiler is missing.
    """
    # RTLD_GLOBAL and the SONAME together make the loader use this library where a backend asks for libtritonserver.so.
    library = ctypes.CDLL(str(shim_path()), mode=ctypes.RTLD_GLOBAL)
    for name, (result, parameters) in _FUNCTIONS.items():
        function = getattr(library, name)
        # Declared once: without them, ctypes would pass a pointer as a 32-bit integer.
        function.restype, function.argtypes = result, parameters
    return library


def shim_path() -> Path:
    """Return the compiled shim, which is compiled if necessary.

    Raises
    ------
    UnsupportedError
        If that is not possible.
    """
    path = find_shim()
    if not path.is_file():
        try:
            build.compile_shim(path)
        except build.CompileError as error:
            raise UnsupportedError(
                f"C++ backends (libtriton_<name>.so) need a part of tritonnb that is written in C++: {error}",
                hint="install g++, or a wheel of tritonnb that was built with a compiler",
            ) from None
    return path


def find_shim() -> Path:
    """Return the path of the compiled shim: with its sources, or in the user's cache, where it may not exist yet."""
    sources = build.shim_sources()
    compiled = build.INCLUDE.parent / build.SHIM
    # Elsewhere, an installer wrote the files in any order.
    is_checkout = (build.INCLUDE.parents[3] / "hatch_build.py").is_file()
    if compiled.is_file() and not (
        is_checkout and any(source.stat().st_mtime_ns > compiled.stat().st_mtime_ns for source in sources)
    ):
        return compiled
    # By contents and flags, so that two versions of the package can share the cache without using each other's library.
    content = b"".join(source.read_bytes() for source in sources) + repr(build.extra_flags()).encode()
    digest = hashlib.sha256(content).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tritonnb" / f"shim-{digest}" / build.SHIM


def check(error: int | None) -> None:
    """Raise the error that a function of the shim has returned, if it has."""
    if error is not None:
        raise take_error(error)


def take_error(error: int) -> TritonError:
    """Return the exception for an error that a function of the shim has returned; the error is deleted."""
    library = load_shim()
    status = status_of(library.TRITONSERVER_ErrorCode(error))
    message = library.TRITONSERVER_ErrorMessage(error).decode(errors="replace")
    library.TRITONSERVER_ErrorDelete(error)
    return TritonError(message, status)


def status_of(code: int) -> Status:
    """Return the status of a TRITONSERVER_Error_Code."""
    return STATUSES[code] if 0 <= code < len(STATUSES) else Status.UNKNOWN


def created(function: Callable[..., int | None], *arguments: Any) -> int | None:
    """Call a function of the shim that returns an object through its last parameter."""
    pointer = c_void_p()
    check(function(*arguments, ctypes.byref(pointer)))
    return pointer.value


_opened: dict[Path, list[tuple[int, int]]] = {}
_opened_lock = fork_safe(threading.Lock())


def unique_path(path: Path) -> str:
    """Return a spelling of a library's path that makes the loader open the file if it was replaced since the last time.

    For a known spelling, the loader returns the loaded library even if the file was replaced. The directory stays the
    same, since libraries find others in it.
    """
    path = path.resolve()
    status = path.stat()
    with _opened_lock:
        # Libraries are never closed, because threads that they started may still run in them; so the list only grows.
        generations = _opened.setdefault(path, [])
        identity = status.st_ino, status.st_mtime_ns
        if identity not in generations:
            generations.append(identity)
        # The loader compares paths as text first: `dir/./lib.so` is another library to it, if the file is another one.
        return f"{path.parent}{'/.' * generations.index(identity)}/{path.name}"
