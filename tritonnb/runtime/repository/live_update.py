"""Changing a served model in place, without reloading it: its scheduling settings and its instances."""

from __future__ import annotations

from collections.abc import Sequence

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


async def reconfigure(versions: Sequence[Served], config: pb.ModelConfig, loader: ModelLoader) -> None:
    """Change the configuration of the versions of a model in place.

    Raises
    ------
    TritonError
        If an instance cannot be created; nothing is changed.
    """
    added: dict[ServedModel, list[Instance]] = {}
    try:
        for served in versions:
            assert isinstance(served, ServedModel)
            added[served] = await loader.create_instances(served, served.missing_instances(config))
    except BaseException:
        for served, instances in added.items():
            for instance in instances:
                await instance.stop()
            served.unregister_from_rate_limiter(instance.spec.index for instance in instances)
        raise
    for served, instances in added.items():
        served.reconfigure(config, instances)


async def wait_until_instances_removed(versions: Sequence[Served]) -> None:
    """Wait until the instances that `reconfigure` removed have completed their last executions."""
    for served in versions:
        assert isinstance(served, ServedModel)
        await served.wait_until_instances_removed()


def only_instances_changed(model: Model, source: ModelSource) -> bool:
    """Whether the files of a model differ from the served model in its instances only.

    Triton changes the instances of such a model in place and keeps its statistics and sequences.
    """
    served = model.source
    if served is None or not model.files or source.versions != tuple(model.ready_versions()):
        return False
    other_files = {path for path, _, _ in model.files ^ model.tried if not path.endswith((".pbtxt", f".pbtxt{BACKUP}"))}
    changed = changed_fields(served.config, source.config)
    return not other_files and changed <= {"instance_group"} and source.config.platform != ENSEMBLE
