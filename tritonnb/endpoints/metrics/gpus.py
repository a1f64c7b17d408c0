"""The use of GPUs, if NVIDIA's management library is installed."""

from __future__ import annotations

from collections.abc import Callable

try:
    import pynvml
except ImportError:  # the package nvidia-ml-py is optional
    pynvml = None


class Gpus:
    """All GPUs of the driver; none without `pynvml`."""

    def __init__(self) -> None:
        self._devices: list[tuple[str, object, float]] = []
        if pynvml is None:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:  # the driver is missing
            return
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            # Some GPUs do not report energy; their counter is then absent, and its start does not matter.
            self._devices.append((pynvml.nvmlDeviceGetUUID(handle), handle, _query(_energy, handle) or 0.0))

    @property
    def uuids(self) -> list[str]:
        """The UUIDs by device number."""
        return [uuid for uuid, _, _ in self._devices]

    def read(self) -> dict[str, dict[str, float]]:
        """Return the current values of each GPU by its UUID; values that its driver does not report are left out.

        The values have the metric names as keys: utilization in [0, 1], memory in bytes, power in watts, energy in
        joules since the server started.
        """
        return {uuid: _read_gpu(handle, started) for uuid, handle, started in self._devices}


def _read_gpu(handle: object, energy_at_start: float) -> dict[str, float]:
    energy = _query(_energy, handle)
    # Each value is asked for alone, because a GPU may support some of these queries only.
    values = {
        "nv_gpu_utilization": _query(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        "nv_gpu_memory_total_bytes": _query(lambda: float(pynvml.nvmlDeviceGetMemoryInfo(handle).total)),
        "nv_gpu_memory_used_bytes": _query(lambda: float(pynvml.nvmlDeviceGetMemoryInfo(handle).used)),
        "nv_gpu_power_usage": _query(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        "nv_gpu_power_limit": _query(lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000),
        "nv_energy_consumption": None if energy is None else energy - energy_at_start,
    }
    return {name: value for name, value in values.items() if value is not None}


def _energy(handle: object) -> float:
    return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000


def _query(function: Callable[..., float], *arguments: object) -> float | None:
    """Query the driver; None if the GPU does not support the query."""
    try:
        return float(function(*arguments))
    except pynvml.NVMLError:
        return None
