"""An NVIDIA-Triton-compatible inference server inside the Jupyter kernel.

>>> import tritonnb as tnb
>>> server = tnb.serve("model_repository")  # doctest: +SKIP
>>> server["digits"](image=images)  # doctest: +SKIP
"""

from tritonnb.core.errors import TritonError
from tritonnb.core.version import VERSION as __version__
from tritonnb.doctor import doctor
from tritonnb.nesting import allow_nested
from tritonnb.server import Server, serve
from tritonnb.telemetry.recording import Recording

__all__ = [
    "Recording",
    "Server",
    "TritonError",
    "__version__",
    "allow_nested",
    "doctor",
    "serve",
]
