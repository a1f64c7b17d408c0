"""Each flag of ``tritonnb serve`` is applied or refused, with and without ``--ray``: none is ignored.

The flags come from the parser, so a new one fails until it has an effect, is refused, or warns that it has no effect.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_triton_options import ALSO, OPTIONS
from tritonnb.cli.flags import FlagParser, add_flags, warnings
from tritonnb.cli.serve import ray_keywords
from tritonnb.cli.server_options import log_settings, server_options
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.endpoint_set import ListenOptions
from tritonnb.engine.options import EngineOptions
from tritonnb.scale.endpoint_settings import APPLIED as APPLIED_OPTIONS
from tritonnb.scale.endpoint_settings import EngineSettings
from tritonnb.scale.ray import application, cluster
from tritonnb.scale.start import scale
from tritonnb.scheduling.resources import Resource
from tritonnb.telemetry.log_settings import LogSettings
from tritonnb.telemetry.trace_settings import TraceOptions

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "scale-with-ray.md"
#: Values of the flags that Triton does not have.
OWN_OPTIONS: dict[str, tuple[str, ...]] = {
    "address": ("127.0.0.1:6379",),
    "allow-file-override": ("false",),
    "allow-openai": ("false",),
    "default-max-tokens": ("100",),
    "every-node": ("",),
    "http-allow-foreign": ("true",),
    "isolate-models": ("m",),
    "model-repository": ("{other}",),
    "openai-address": ("127.0.0.2",),
    "openai-api-key": ("secret",),
    "openai-port": ("9000",),
    "ray": ("",),
    "replicas": ("2",),
}
SWITCHES = ("disable-auto-complete-config",)
#: What a flag needs beside it on a single server.
ALSO_ALONE = {"openai-address": ("--openai-port=9000",)}
APPLIED, REFUSED, NO_EFFECT, IGNORED = "applied", "refused", "has no effect, and says so", "ignored"

Decide = Callable[..., object]


def make_parser() -> FlagParser:
    parser = FlagParser()
    add_flags(parser)
    return parser


FLAGS = [action.option_strings[0].removeprefix("--") for action in make_parser()._actions if action.dest != "help"]


def samples(flag: str) -> tuple[str, ...]:
    """Values of a flag, among them one that differs from its default."""
    values = OWN_OPTIONS.get(flag) or OPTIONS.get(flag) or (("",) if flag in SWITCHES else ())
    assert values, f"--{flag} has no value in this test"
    # Features that are not supported have only the value that disables them.
    return (*values, "true") if set(values) <= {"false", "0"} else values


def single_server(options: argparse.Namespace) -> object:
    """The arguments of `Server`."""
    return options.ray, server_options(options), log_settings(options)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[object]]:
    """Calls `scale`, and returns what Ray and its deployments get."""
    calls: list[object] = []

    def record(result: Any = None) -> Callable[..., Any]:
        def call(*arguments: object) -> Any:
            calls.append(arguments)
            return result

        return call

    monkeypatch.setattr(application, "_application", record())
    monkeypatch.setattr(cluster, "connect_ray", record(False))
    monkeypatch.setattr(cluster, "start_serve", record((8000, 8001)))
    monkeypatch.setattr(cluster, "run", record())

    def start(**arguments: Any) -> list[object]:
        calls.clear()
        scale(**arguments)
        return list(calls)

    return start


@pytest.fixture
def deployment(start: Callable[..., list[object]]) -> Decide:
    """The arguments of Ray and its deployments."""
    return lambda options: start(**ray_keywords(options, {**server_options(options), "log": log_settings(options)}))


def outcome(decide: Decide, flag: str, repository: Path, always: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The effect of a flag."""
    needed = [*ALSO.get(flag, ()), *(ALSO_ALONE.get(flag, ()) if "--ray" not in always else ())]
    common = [f"--model-repository={repository}", *always, *needed]
    parser = make_parser()
    default = decide(parser.parse_args(common))
    assert decide(parser.parse_args(common)) == default  # else every flag would seem to be applied
    other = repository.parent / "other"
    other.mkdir(exist_ok=True)
    for sample in samples(flag):
        value = sample.format(other=other) if "{other}" in sample else sample
        try:
            options = parser.parse_args([*common, f"--{flag}={value}" if value else f"--{flag}"])
            if any(text == f"'--{flag}' has no effect here" for text in warnings(options)):
                return NO_EFFECT
            if decide(options) != default:
                return APPLIED
        except (InvalidArgumentError, SystemExit) as error:
            text = str(error) + capsys.readouterr().err
            assert re.search(rf"--{flag}\b(?!-)", text), f"the error of --{flag} does not name it: {text}"
            return REFUSED
    return IGNORED


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repository" / "m").mkdir(parents=True)
    return tmp_path / "repository"


@pytest.mark.parametrize("flag", FLAGS)
def test_single_server_ignores_no_flag(repository: Path, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(single_server, flag, repository, [], capsys) != IGNORED


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag != "ray"])
def test_ray_deployment_ignores_no_flag(
    deployment: Decide, repository: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(deployment, flag, repository, ["--ray"], capsys) != IGNORED


def test_guide_lists_the_flags_that_ray_refuses(
    deployment: Decide, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {
        flag: (
            outcome(single_server, flag, repository, [], capsys),
            outcome(deployment, flag, repository, ["--ray"], capsys),
        )
        for flag in FLAGS
        if flag != "ray"
    }
    refused = {flag for flag, (alone, with_ray) in outcomes.items() if with_ray == REFUSED != alone}
    section = GUIDE.read_text().partition("## Restrict access")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `--")]
    assert {flag for cell in cells for flag in re.findall(r"`--([\w-]+)", cell)} == refused


def test_flag_of_ray_is_refused_without_it(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("address", "replicas", "every-node")
    assert {outcome(single_server, flag, repository, [], capsys) for flag in flags} == {REFUSED}


#: Values of options that are not numbers, bools or paths.
VALUES: dict[str, Any] = {
    "host": "0.0.0.0",
    "grpc_host": "0.0.0.0",
    "http.allowed_hosts": ("host",),
    "http.restricted_api": (("health", "key", "value"),),
    "grpc.restricted_protocol": (("health", "key", "value"),),
    "grpc.infer_response_compression_level": "low",
    "grpc.transport": "grpcio",
    "metrics.quantiles": (0.5,),
    "model_control_mode": "poll",
    "rate_limit": "execution_count",
    "load_models": ["n"],
    "backend_config": {"b": {"name": "value"}},
    "cache_config": {"local": {"size": "9"}},
    "rate_limit_resources": [Resource("r", 1)],
    "isolate": ["m"],
    "trace": TraceOptions(rate=7),
    "log": LogSettings(log_info=False),
}


def server_keywords() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every option of `Server`, and the keyword that sets it to another value."""
    for name, default in defaults(ListenOptions):
        kind: Any = type(default)
        if is_dataclass(default):
            for member, value in defaults(kind):
                yield f"{name}.{member}", {name: kind(**{member: changed(f"{name}.{member}", value)})}
        else:
            yield name, {name: changed(name, default)}
    for name, default in defaults(EngineOptions):
        if name != "model_repositories":
            yield name, {name: changed(name, default)}


def defaults(kind: type) -> list[tuple[str, Any]]:
    options: Any = kind()
    return [(field.name, getattr(options, field.name)) for field in fields(kind)]


def changed(name: str, default: Any) -> Any:
    if name in VALUES:
        return VALUES[name]
    if default is None and name.endswith("_port"):
        return 1
    if isinstance(default, bool) or default is None:
        return not default if name != "backend_directory" else Path("backends")
    return default + 1 if isinstance(default, int | float) else "text"


KEYWORDS = dict(server_keywords())
#: Without shared memory, all options of the engine are applied; of the others those that are stated.
REFUSED_OPTIONS = {name for name in KEYWORDS if "." in name} - APPLIED_OPTIONS | {
    *("allow_http", "metrics_port", "metrics_host", "openai_port", "openai_host", "allow_client_shm")
}


@pytest.mark.parametrize("option", KEYWORDS)
def test_scale_applies_every_option_of_a_server_or_names_it(
    start: Callable[..., list[object]], repository: Path, option: str
) -> None:
    def outcome(**options: Any) -> list[object]:
        return start(**{"model_repository": repository, "grpc_port": 0, **options})

    default = outcome()
    if option in REFUSED_OPTIONS:
        with pytest.raises(InvalidArgumentError, match=rf"^{re.escape(option)} .*is not applied behind Ray Serve"):
            outcome(**KEYWORDS[option])
    else:
        assert outcome(**KEYWORDS[option]) != default, f"{option} is ignored"


def test_unknown_option_is_an_error(start: Callable[..., list[object]], repository: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"\.app or tritonnb\.Server, got 'replica'"):
        start(model_repository=repository, replica=2)


def test_option_groups_are_mappings_in_the_configuration_file(
    monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    made: list[EngineSettings] = []
    monkeypatch.setattr(application, "_application", lambda settings, *places: made.append(settings))
    arguments = {"model_repository": str(repository), "openai": {"api_key": "k"}}
    application.build({**arguments, "http": {"restricted_api": [["inference", "key", "secret"]]}})
    assert made[0].endpoints.http.restricted_api == (("inference", "key", "secret"),)
    assert made[0].endpoints.openai.api_key == "k"
    with pytest.raises(InvalidArgumentError, match=r"http: expected allow_foreign, .*, got 'restricted'"):
        application.build({**arguments, "http": {"restricted": []}})
    with pytest.raises(InvalidArgumentError, match=r"grpc\.use_ssl"):
        application.build({**arguments, "grpc": {"use_ssl": True}})
