"""``tritonnb.doctor()``: a description of this environment for bug reports."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from tritonnb import compiled
from tritonnb.backends.devices import cuda_devices
from tritonnb.backends.location import BACKEND_DIRECTORY, REQUIREMENTS
from tritonnb.backends.native.build import find_compiler
from tritonnb.backends.native.library import find_shim
from tritonnb.core.version import TRITON_VERSION, VERSION, installed_version

#: The packages that the server uses, and their purpose.
_PACKAGES = {
    "numpy": "tensors",
    "tornado": "HTTP application",
    "httptools": "fast HTTP transport (otherwise Tornado's)",
    "uvloop": "fast event loop (otherwise asyncio's)",
    "tritonclient": "protobuf schema, client",
    "anywidget": "notebook views",
    "matplotlib": "plots",
    **{
        package: f'{backend} backend: pip install "tritonnb[{extra}]"'
        for backend, (package, extra) in REQUIREMENTS.items()
    },
    "ipykernel": "Jupyter",
}


@dataclass(frozen=True, slots=True)
class InstallationReport:
    """The result of `doctor`: pairs of a subject and a finding."""

    findings: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        width = max(len(subject) for subject, _ in self.findings)
        return "\n".join(f"{subject:<{width}}  {finding}" for subject, finding in self.findings)


def doctor(backend_directory: Path = BACKEND_DIRECTORY) -> InstallationReport:
    """Describe this environment: versions, devices, and packages, installed or missing.

    Parameters
    ----------
    backend_directory : pathlib.Path, optional
        Its C++ backends are listed.

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
        ("C++ backends", _native_backends(backend_directory)),
    ]
    for package, purpose in _PACKAGES.items():
        version = installed_version(package) or installed_version(f"{package}-cpu")  # its build for CPUs
        findings.append((package, version or f"missing; {purpose}"))
    return InstallationReport(tuple(findings))


def _native_backends(directory: Path) -> str:
    """Describe whether C++ backends can be loaded, and those in a backend directory."""
    compiler = find_compiler()
    if compiler is None and not find_shim().is_file():
        return "cannot be loaded: install a C++ compiler, such as g++"
    names = sorted(library.parent.name for library in directory.glob("*/libtriton_*.so"))
    return f"can be loaded, compiler: {compiler or 'none'}; in {directory}: {', '.join(names) or 'none'}"
