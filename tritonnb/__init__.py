"""An NVIDIA-Triton-compatible inference server inside the Jupyter kernel."""

from tritonnb.core.version import VERSION as __version__

__all__ = ["__version__"]
