"""``tritonnb.doctor()``: a description of this environment for bug reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from dataclasses import dataclass

from tritonnb import compiled
from tritonnb.backends.registry import REQUIREMENTS
from tritonnb.core.version import TRITON_VERSION, VERSION
from tritonnb.runtime.devices import cuda_devices

#: The packages that the server uses, and their purpose.
_PACKAGES = {
    "numpy": "tensors",
    "tornado": "HTTP application",
    "httptools": "fast HTTP transport (otherwise Tornado's)",
    "uvloop": "fast event loop (otherwise asyncio's)",
    "tritonclient": "protobuf schema, client",
    "ipywidgets": "notebook views",
    "anywidget": "notebook views",
    "matplotlib": "plots",
    **{
        package: f'{backend} backend: pip install "tritonnb[{extra}]"'
        for backend, (package, extra) in REQUIREMENTS.items()
    },
    "ipykernel": "Jupyter",
}


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `doctor`: pairs of a subject and a finding."""

    findings: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        width = max(len(subject) for subject, _ in self.findings)
        return "\n".join(f"{subject:<{width}}  {finding}" for subject, finding in self.findings)


def doctor() -> Report:
    """Describe this environment: versions, devices, and packages, installed or missing.

    Examples
    --------
    >>> import tritonnb
    >>> "python" in repr(tritonnb.doctor())
    True
    """
    findings = [
        ("tritonnb", f"{VERSION}, {compiled.STATE} (behaves as Triton {TRITON_VERSION})"),
        ("python", f"{platform.python_version()} at {sys.executable}"),
        ("system", f"{platform.platform()}, {os.cpu_count()} CPUs"),
        ("CUDA devices", ", ".join(map(str, cuda_devices())) or "none"),
    ]
    for package, purpose in _PACKAGES.items():
        findings.append((package, _version(package) or f"missing; {purpose}"))
    return Report(tuple(findings))


def _version(package: str) -> str:
    """The version of a package, which may be its build for CPUs; empty if it is not installed."""
    for distribution in (package, f"{package}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""
