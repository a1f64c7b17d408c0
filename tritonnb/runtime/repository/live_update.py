"""Changing a served model in place, without reloading it: its scheduling settings and its instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.backend_selection import ENSEMBLE
from tritonnb.model_config.diff import changed_fields, completed
from tritonnb.model_config.load import finalize_config, with_instance_groups
from tritonnb.model_config.model_files import check_data_files
from tritonnb.model_config.write import BACKUP
from tritonnb.runtime.devices import cuda_devices
from tritonnb.runtime.execution.instance import Instance
from tritonnb.runtime.models.served_base import Served
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.runtime.repository.loader import ModelLoader, ModelSource
from tritonnb.runtime.repository.table import Model


def effective_config(source: ModelSource, written: pb.ModelConfig, running: pb.ModelConfig) -> pb.ModelConfig:
    """The effective configuration of a model: completed with the fields that its backend added to the running one.

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


async def reconfigure(configs: Mapping[Served, pb.ModelConfig], loader: ModelLoader) -> None:
    """Change the configurations of versions of a model in place.

    Raises
    ------
    TritonError
        If an instance cannot be created; nothing is changed.
    """
    added: dict[ServedModel, list[Instance]] = {}
    try:
        for served, config in configs.items():
            assert isinstance(served, ServedModel)
            added[served] = await loader.create_instances(served, served.missing_instances(config))
    except BaseException:
        for served, instances in added.items():
            for instance in instances:
                await instance.stop()
            served.unregister_from_rate_limiter(instance.spec.index for instance in instances)
        raise
    for served, instances in added.items():
        served.reconfigure(configs[served], instances)


async def wait_until_instances_removed(versions: Sequence[Served]) -> None:
    """Wait until the instances that `reconfigure` removed have completed their last executions."""
    for served in versions:
        assert isinstance(served, ServedModel)
        await served.wait_until_instances_removed()


def unchanged_versions(model: Model, source: ModelSource) -> list[int]:
    """The versions of a served model that continue to serve when it is loaded again, perhaps with other instances.

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
