"""Changing a served model in place, without reloading it: its scheduling settings and its instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from tritonnb.backends.devices import cuda_devices
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.backend_selection import ENSEMBLE
from tritonnb.model_config.diff import changed_fields, completed
from tritonnb.model_config.load import finalize_config
from tritonnb.model_config.model_files import check_data_files
from tritonnb.model_config.normalize import with_instance_groups
from tritonnb.model_config.write import BACKUP
from tritonnb.runtime.execution.instance import Instance
from tritonnb.runtime.models.scheduler_driver import SchedulerDriver
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.runtime.repository.directories import ModelSource
from tritonnb.runtime.repository.loader import ModelLoader
from tritonnb.runtime.repository.table import RepositoryModel


def effective_config(source: ModelSource, written: pb.ModelConfig, running: pb.ModelConfig) -> pb.ModelConfig:
    """Return a model's configuration, completed with the fields that its backend added to the running one.

    Parameters
    ----------
    source : ModelSource
        With the new configuration, as written and normalised.
    written, running : inference.ModelConfig
        The configuration that the running model was loaded with, as written, and as the backend completed it.

    Raises
    ------
    TritonError
        If the configuration is invalid.
    """
    config = with_instance_groups(
        completed(source.config, written, running), gpus=cuda_devices(), default_instance_count=lambda kind: 1
    )
    config = finalize_config(config, source.directory)
    check_data_files(config, source.directory)
    return config


async def reconfigure(configs: Mapping[ServedModel, pb.ModelConfig], loader: ModelLoader) -> None:
    """Change the configurations of versions of a model in place.

    Raises
    ------
    TritonError
        If an instance cannot be created; nothing is changed.
    """
    added: dict[ServedModel, list[Instance]] = {}
    try:
        for served, config in configs.items():
            instances = _driver_of(served).instances
            added[served] = await instances.create(instances.missing(config), loader.pool)
    except BaseException:
        for served, created in added.items():
            await _driver_of(served).instances.discard(created)
        raise
    for served, created in added.items():
        _driver_of(served).reconfigure(configs[served], created)


async def wait_until_instances_removed(versions: Sequence[ServedModel]) -> None:
    """Wait until removed instances have stopped, except those whose slots belong to sequences."""
    for driver in map(_driver_of, versions):
        await driver.instances.removed(driver.scheduler.uses)


def _driver_of(served: ServedModel) -> SchedulerDriver:
    assert isinstance(served.driver, SchedulerDriver)
    return served.driver


def unchanged_versions(model: RepositoryModel, source: ModelSource) -> list[int]:
    """Return the versions that continue to serve when a model is loaded again, perhaps with other instances.

    As in Triton, these are the versions whose files have not changed, unless a file outside the directories of versions
    has changed, or more of the configuration than its instances and its version policy. They keep their statistics and
    sequences.
    """
    served = model.source
    if served is None or not model.files or source.config.platform == ENSEMBLE:
        return []
    if not changed_fields(served.config, source.config) <= {"instance_group", "version_policy"}:
        return []
    files = {path for path, _, _ in model.files ^ model.tried if not path.endswith((".pbtxt", f".pbtxt{BACKUP}"))}
    changed = {PurePath(path).parts[0] for path in files}
    if not all(name.isdecimal() for name in changed):
        return []
    return [version for version in model.ready_versions() if version in source.versions and str(version) not in changed]
