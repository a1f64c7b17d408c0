"""The options of a server: the supported options of ``tritonserver``, with the same names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.option_types import check_types
from tritonnb.core.paths import fixed_path
from tritonnb.core.suggestions import similar_name_hint
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
        ``--model-repository``, which may be repeated. Paths are absolute from here on.
    model_control_mode : str
        ``"none"`` (all models are loaded at start), ``"explicit"``, or ``"poll"`` (changed models are reloaded).
    repository_poll_secs : float
        The interval of ``"poll"`` in seconds; 0 for never.
    load_models : sequence of str
        ``--load-model``: the models that mode ``"explicit"`` loads at start; ``"*"`` for all models.
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
        ``--backend-directory``: a folder in it that contains a *model.py*, or a library ``libtriton_<folder>.so``, is a
        backend with the name of the folder; None for */opt/tritonserver/backends*, as on Triton.
    cache_config : mapping of str to mapping of str to str
        ``--cache-config=<cache>,<setting>=<value>``; the only cache is ``local``, with the setting ``size`` in bytes.
    rate_limit : str
        ``"off"`` or ``"execution_count"``.
    rate_limit_resources : sequence of Resource
        ``--rate-limit-resource=<name>:<count>[:<device>]``.
    isolate : bool or sequence of str
        ``--isolate-models``: models whose instances run in their own processes, by name, in addition to models of C++
        backends; True for all models of the repositories, False for none. The parameter ``EXECUTION_PROCESS`` of a
        model takes precedence.
    strict_readiness : bool
        Whether the server is ready only when all models are.
    model_load_threads : int
        The number of threads that load models.
    model_load_retries : int
        ``--model-load-retry-count``: the number of further attempts to create a version.
    exit_on_error : bool or None
        True: the start fails if a model cannot be loaded. False: the server starts without the model, and even
        without its repositories, but then it is neither live nor ready. None: only the repositories are required.
    exit_timeout : float
        ``--exit-timeout-secs``: the longest time in seconds that a stopping server waits for accepted requests.
    wait_for_sequences : bool
        Whether a stopping server also waits for sequences to end or to exceed the maximum idle time, and serves them.
    server_id : str
        ``--id``: the name in the server metadata.
    trace : TraceOptions
        ``--trace-config``: the trace settings at start.
    log : LogSettings
        ``--log-info`` and the other log settings, which clients may change.
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
    isolate: bool | Sequence[str] = ()
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
        check_types(self, "")
        if self.model_load_threads < 0 or self.model_load_retries < 0:
            raise InvalidArgumentError(
                "model_load_threads, model_load_retries: expected numbers of at least 0, got "
                f"{self.model_load_threads}, {self.model_load_retries}"
            )
        for name, choices in (("model_control_mode", CONTROL_MODES), ("rate_limit", RATE_LIMITS)):
            value = getattr(self, name)
            if value not in choices:
                raise InvalidArgumentError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
        for name in ("repository_poll_secs", "exit_timeout"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and value >= 0):
                raise InvalidArgumentError(f"{name}: expected a number >= 0, got {value!r}")
        for name in ("backend_config", "cache_config"):
            value = getattr(self, name)
            if not (isinstance(value, Mapping) and all(isinstance(settings, Mapping) for settings in value.values())):
                raise InvalidArgumentError(f"{name}: expected a dict of dicts, got {value!r}")
        resources = self.rate_limit_resources
        if not isinstance(resources, Sequence) or not all(isinstance(resource, Resource) for resource in resources):
            raise InvalidArgumentError(f"rate_limit_resources: expected a list of Resource(...), got {resources!r}")
        if self.backend_directory is not None:
            if not isinstance(self.backend_directory, (str, Path)):
                raise InvalidArgumentError(f"backend_directory: expected a path, got {self.backend_directory!r}")
            object.__setattr__(self, "backend_directory", fixed_path(self.backend_directory))
        # Absolute from here on: after an `os.chdir`, a relative repository served another model without a word.
        object.__setattr__(self, "model_repositories", tuple(map(fixed_path, self.model_repositories)))
        for name, kind in (("trace", TraceOptions), ("log", LogSettings)):
            require_options(name, getattr(self, name), kind)
        # A str is a sequence of names as well: "ab" would isolate the models a and b.
        if isinstance(self.isolate, str):
            raise InvalidArgumentError(f"isolate: expected True, False or a list of names, got {self.isolate!r}")
        if self.load_models and self.model_control_mode != "explicit":
            raise InvalidArgumentError(
                f"load_models: expected model_control_mode='explicit', got {self.model_control_mode!r}"
            )
        if "*" in self.load_models and set(self.load_models) != {"*"}:
            raise InvalidArgumentError(
                "Wildcard model name '*' must be the ONLY startup model if specified at all."  # Triton's text
            )

    def settings_of(self, backend: str) -> dict[str, str]:
        """Return the ``--backend-config`` settings of a backend, including global settings."""
        return {**self.backend_config.get("", {}), **self.backend_config.get(backend, {})}

    @property
    def cache_size(self) -> int:
        """The size of the response cache in bytes; 0 if there is none.

        Raises
        ------
        InvalidArgumentError
            If ``cache_config`` configures anything except the size of one cache ``local``.
        """
        if len(self.cache_config) > 1:
            raise InvalidArgumentError(
                "found multiple cache configurations, but only a single cache is currently supported"
            )
        for cache, settings in self.cache_config.items():
            if cache != "local":
                raise InvalidArgumentError(f"cache_config: expected the cache 'local', got '{cache}'")
            if settings.keys() != {"size"} or not settings["size"].isdigit():
                raise InvalidArgumentError(
                    f"cache 'local': expected only the setting 'size', a number of bytes, got {dict(settings)}"
                )
            return int(settings["size"])
        return 0


def require_options(name: str, value: object, kind: type) -> None:
    """Check the type of a group of options.

    Raises
    ------
    InvalidArgumentError
        If it has another type, such as dict.
    """
    if not isinstance(value, kind):
        raise InvalidArgumentError(f"{name}: expected {kind.__name__}(...), got {value!r}")


def require_directories(repositories: Iterable[Path]) -> None:
    """Reject a model repository that is not a directory.

    Raises
    ------
    InvalidArgumentError
        With its absolute path, and a directory with a similar name, if there is such a directory.
    """
    for repository in repositories:
        if repository.is_dir():
            continue
        path = repository.absolute()
        reason = "is a file" if path.exists() else "does not exist"
        beside = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
        raise InvalidArgumentError(
            f"model repository '{path}' is not a directory: it {reason}", hint=similar_name_hint(path.name, beside)
        )
