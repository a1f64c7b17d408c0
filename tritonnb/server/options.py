"""The keyword options of `Server`, `serve` and `ModelHandle`, typed once and visible to completion in notebooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from os import PathLike
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar, cast, get_type_hints

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.endpoint_set import ListenOptions
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.engine.options import EngineOptions
from tritonnb.scheduling.resources import Resource
from tritonnb.telemetry.log_settings import LogSettings
from tritonnb.telemetry.trace_settings import TraceOptions

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

StrPath = str | PathLike[str]


class EngineKeywords(TypedDict, total=False):
    """The fields of `tritonnb.engine.options.EngineOptions` that are keywords of `Server`."""

    model_control_mode: str
    repository_poll_secs: float
    load_models: Sequence[str]
    allow_file_override: bool
    allow_client_shm: bool
    auto_complete_config: bool
    model_config_name: str
    backend_config: Mapping[str, Mapping[str, str]]
    backend_directory: Path | None
    cache_config: Mapping[str, Mapping[str, str]]
    rate_limit: str
    rate_limit_resources: Sequence[Resource]
    isolate: bool | Sequence[str]
    strict_readiness: bool
    model_load_threads: int
    model_load_retries: int
    exit_on_error: bool | None
    exit_timeout: float
    wait_for_sequences: bool
    server_id: str
    trace: TraceOptions
    log: LogSettings


class ServerKeywords(EngineKeywords, total=False):
    """The keywords of `Server` except ``port``: fields of `ListenOptions`, and the engine's keywords."""

    host: str
    allow_http: bool
    http: HttpOptions | None
    grpc_port: int | None
    grpc_host: str
    grpc: GrpcOptions | None
    metrics_port: int | None
    metrics_host: str
    metrics: MetricsOptions | None
    openai_port: int | None
    openai_host: str
    openai: OpenAiOptions | None


class KeywordsWithPort(ServerKeywords, total=False):
    """All keywords of `Server` and of `serve`. The port is usually given apart from a `ServerKeywords`."""

    port: int | None


def with_server_keywords(function: F) -> F:
    """Show the keywords of `Server` in the signature of a function, in place of ``**options``.

    Type checkers read ``Unpack[...]``; `inspect.signature`, and so completion in IPython, does not.

    Examples
    --------
    >>> import inspect
    >>> @with_server_keywords
    ... def start(name, **options): ...
    >>> str(inspect.signature(start).parameters["host"])
    "host: str = '127.0.0.1'"
    """
    options = (*fields(ListenOptions), *fields(EngineOptions))
    defaults = {option.name: option.default for option in options if option.default is not MISSING}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, ...), annotation=hint)
        for name, hint in get_type_hints(KeywordsWithPort).items()
    ]
    signature = inspect.signature(function)
    *parameters, variadic = signature.parameters.values()
    assert variadic.kind is inspect.Parameter.VAR_KEYWORD
    _set_signature(function, signature.replace(parameters=[*parameters, *added]))
    return function


def with_parameters_of(
    pattern: Callable[Concatenate[Any, Any, P], object],
) -> Callable[[Callable[Concatenate[S, ...], T]], Callable[Concatenate[S, P], T]]:
    """Give a method, which takes ``*args`` or ``**options``, the parameters of another function after its first two.

    Examples
    --------
    >>> import inspect
    >>> def pattern(spec, version, inputs=None, /, *, id=""): ...
    >>> class Model:
    ...     @with_parameters_of(pattern)
    ...     def infer(self, inputs=None, /, **options): ...
    >>> inspect.signature(Model.infer)
    <Signature (self, inputs=None, /, *, id='')>
    """
    _, _, *parameters = inspect.signature(pattern).parameters.values()

    def decorate(method: Callable[Concatenate[S, ...], T]) -> Callable[Concatenate[S, P], T]:
        signature = inspect.signature(method)
        this = next(iter(signature.parameters.values())).replace(kind=inspect.Parameter.POSITIONAL_ONLY)
        _set_signature(method, signature.replace(parameters=[this, *parameters]))
        return cast("Callable[Concatenate[S, P], T]", method)

    return decorate


def _set_signature(function: Callable[..., object], signature: inspect.Signature) -> None:
    function.__signature__ = signature  # type: ignore[attr-defined]


def paths_of(repositories: StrPath | Sequence[StrPath]) -> tuple[Path, ...]:
    """Return one path or several.

    Raises
    ------
    InvalidArgumentError
        If it is neither.
    """
    paths = [repositories] if isinstance(repositories, (str, PathLike)) else repositories
    try:
        return tuple(Path(path).expanduser() for path in paths)
    except TypeError:
        raise InvalidArgumentError(
            f"model_repository: expected a path or a sequence of paths, got {repositories!r}"
        ) from None
