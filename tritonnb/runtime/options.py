"""How a server is set up: the options of ``tritonserver`` that exist here, under the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.scheduling.resources import Resource
from tritonnb.telemetry.log_settings import LogSettings
from tritonnb.telemetry.trace_settings import TraceOptions

CONTROL_MODES = ("none", "explicit", "poll")
RATE_LIMITS = ("off", "execution_count")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of the engine; names follow tritonserver's command line.

    Attributes
    ----------
    model_repositories : sequence of pathlib.Path
        ``--model-repository``, which may be repeated.
    model_control_mode : str
        ``"none"`` (every model is loaded at start), ``"explicit"``, or ``"poll"`` (changes on disk are followed).
    repository_poll_secs : float
        How often ``"poll"`` looks, in seconds; 0 for never.
    load_models : sequence of str
        ``--load-model``: what explicit mode loads at start; ``"*"`` is every model.
    allow_file_override : bool
        Whether a load request may bring the model's files with it: they are code.
    allow_client_shm : bool
        ``--allow-client-shm``: whether clients may register shared memory regions for their tensors. In-process
        inference does not use such regions and does not need it.
    auto_complete_config : bool
        False with ``--disable-auto-complete-config``.
    model_config_name : str
        ``--model-config-name``: custom configurations in ``configs/``.
    backend_config : mapping of str to mapping of str to str
        ``--backend-config=<backend>,<setting>=<value>``; settings of the backend ``""`` are global.
    backend_directory : pathlib.Path or None
        ``--backend-directory``: a folder in it with a *model.py* is a backend of its name.
    cache_config : mapping of str to mapping of str to str
        ``--cache-config=<cache>,<setting>=<value>``; there is the cache ``local`` with the setting ``size`` in bytes.
    rate_limit : str
        ``"off"`` or ``"execution_count"``.
    rate_limit_resources : sequence of Resource
        ``--rate-limit-resource=<name>:<count>[:<device>]``.
    strict_readiness : bool
        Whether the server is ready only when every model is.
    model_load_threads : int
        Models whose versions are loaded at the same time.
    model_load_retries : int
        ``--model-load-retry-count``: how often a version that cannot be created is tried again.
    exit_on_error : bool or None
        True: a server that does not get all its models at start ends. False: it goes on without them, even
        without its repositories, but then it is neither live nor ready. None: it needs its repositories only.
    exit_timeout : float
        ``--exit-timeout-secs``: how long a stopping server waits for accepted work, in seconds.
    wait_for_sequences : bool
        A stopping server waits also for sequences to end, or to be idle for too long, and serves them meanwhile.
    server_id : str
        ``--id``, the name in the server metadata.
    trace : TraceOptions
        ``--trace-config``: what is traced at start.
    log : LogSettings
        ``--log-info`` and its like; clients may change them.
    """

    model_repositories: Sequence[Path] = ()
    model_control_mode: str = "none"
    repository_poll_secs: float = 15.0
    load_models: Sequence[str] = ()
    allow_file_override: bool = False
    allow_client_shm: bool = False
    auto_complete_config: bool = True
    model_config_name: str = ""
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    backend_directory: Path | None = None
    cache_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rate_limit: str = "off"
    rate_limit_resources: Sequence[Resource] = ()
    strict_readiness: bool = True
    model_load_threads: int = 4
    model_load_retries: int = 0
    exit_on_error: bool | None = None
    exit_timeout: float = 30.0
    wait_for_sequences: bool = False
    server_id: str = "triton"
    trace: TraceOptions = field(default_factory=TraceOptions)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        for name, choices in (("model_control_mode", CONTROL_MODES), ("rate_limit", RATE_LIMITS)):
            value = getattr(self, name)
            if value not in choices:
                raise InvalidArgumentError(f"{name} cannot be {value!r}: one of {', '.join(map(repr, choices))}")
        for name in ("repository_poll_secs", "exit_timeout"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and value >= 0):
                raise InvalidArgumentError(f"{name} must be a number from 0 on, got {value!r}")
        for name in ("backend_config", "cache_config"):
            value = getattr(self, name)
            if not (isinstance(value, Mapping) and all(isinstance(each, Mapping) for each in value.values())):
                raise InvalidArgumentError(f"{name} must be a dict of dicts, got {value!r}")
        for name, kind in (("trace", TraceOptions), ("log", LogSettings)):
            require_options(name, getattr(self, name), kind)
        if isinstance(self.load_models, str):
            raise InvalidArgumentError(f"load_models must be a list of names, got {self.load_models!r}")
        if self.load_models and self.model_control_mode != "explicit":
            raise InvalidArgumentError("load_models needs model_control_mode='explicit'")

    def settings_of(self, backend: str) -> dict[str, str]:
        """The ``--backend-config`` settings that a backend sees, global ones included."""
        return {**self.backend_config.get("", {}), **self.backend_config.get(backend, {})}

    @property
    def cache_size(self) -> int:
        """Bytes of the response cache; 0 where there is none.

        Raises
        ------
        InvalidArgumentError
            If ``cache_config`` is not that of one cache ``local`` with a size.
        """
        if len(self.cache_config) > 1:
            raise InvalidArgumentError(
                "found multiple cache configurations, but only a single cache is currently supported"
            )
        for cache, settings in self.cache_config.items():
            if cache != "local":
                raise InvalidArgumentError(f"there is no cache '{cache}', only 'local'")
            if settings.keys() != {"size"} or not settings["size"].isdigit():
                raise InvalidArgumentError(
                    "the cache 'local' needs the setting 'size', a number of bytes, and no other"
                )
            return int(settings["size"])
        return 0


def require_options(name: str, value: object, kind: type) -> None:
    """See that an option which is a group of options is one.

    Raises
    ------
    InvalidArgumentError
        If it is something else, such as a dict.
    """
    if not isinstance(value, kind):
        raise InvalidArgumentError(f"{name} must be {kind.__name__}(...), got {value!r}")
