"""The flags of ``tritonnb serve``, without a server."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tritonnb.cli.flags import FlagParser, add_flags, warnings
from tritonnb.cli.main import main, make_parser
from tritonnb.cli.server_options import server_options
from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.endpoints.metrics.families import MetricsOptions


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--model-config-name="], 'Bad option: "--model-config-name".\nError: empty argument for --model-config-name'),
        (["--backend-config=,a=1"], "No backend specified. --backend-config option format is"),
        (["--model-load-gpu-limit", "-1:0.6"], "expects device ID >= 0, got -1"),
        (["--model-load-gpu-limit", "0:-0.4"], "expects limit fraction to be in range [0.0, 1.0], got -0.4"),
        (["--cuda-memory-pool-byte-size=5"], "Cannot parse pair option due to incorrect number of inputs"),
        (["--host-policy=a,b=c"], "Unsupported host policy setting 'b' is specified"),
        (["--strict-readiness=maybe"], "invalid value for bool option: maybe"),
        (["--load-model=m"], "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        (["--metrics-config=foo"], "--metrics-config option format is <setting>=<value>. Got foo"),
        (["--grpc-port=7", "--metrics-port=7"], "at the same address and port 127.0.0.1:7"),
        (["--grpc-infer-thread-count=1"], "for --grpc_infer_thread_count. Must be in the range 2 to 128."),
        (["--grpc-infer-thread-count=129"], "for --grpc_infer_thread_count. Must be in the range 2 to 128."),
        (["--grpc-max-response-pool-size=0"], "Error: --grpc-max-response-pool-size must be greater than 0."),
        (["--http-max-input-size=0"], "Error: --http-max-input-size must be greater than 0."),
        (["--allow-client-shm=yes"], "invalid value for bool option: yes"),
        (["--model-namespacing=true"], "models of one name in several repositories are not supported"),
        (["--allow-sagemaker=true"], "the Sagemaker endpoint is not supported"),
        (["--allow-vertex-ai=true"], "the Vertex AI endpoint is not supported"),
    ],
)
def test_invalid_flag_gets_tritons_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], complaint: str
) -> None:
    parser = FlagParser()
    add_flags(parser)

    def read() -> None:
        server_options(parser.parse_args([f"--model-repository={tmp_path}", *flags]))

    with pytest.raises((SystemExit, InvalidArgumentError)) as caught:
        read()
    assert complaint in (capsys.readouterr().err or str(caught.value))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("serve --model-repositry=x", "--model-repositry=x; did you mean '--model-repository'?"),
        ("serve --model-repositry x", "--model-repositry; did you mean '--model-repository'?"),
        ("serve --model-repository x --grpc-prt 5", "--grpc-prt; did you mean '--grpc-port'?"),
        ("export kubernetes --model-repositry x", "--model-repositry; did you mean '--model-repository'?"),
        ("models --colour", "--colour"),
        (
            "serve --model-repository x --tf-allow-soft-placement=1",
            "--tf-allow-soft-placement=1",
        ),
    ],
)
def test_misspelled_flag_is_named_before_a_required_one_that_is_missing(
    capsys: pytest.CaptureFixture[str], arguments: str, text: str
) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(arguments.split())
    assert capsys.readouterr().err.splitlines()[-1] == f"unrecognized arguments: {text}"


def test_flag_may_be_abbreviated() -> None:
    assert make_parser().parse_args(["serve", "--model-repo", "x"]).model_repository == [Path("x")]


@pytest.mark.parametrize(
    ("flags", "isolate"),
    [
        ([], []),
        (["--isolate-models=a,b"], ["a", "b"]),
        (["--isolate-models=a", "--isolate-models", "b"], ["a", "b"]),
        (["--isolate-models=*"], True),
    ],
)
def test_models_are_isolated_by_name_or_all(tmp_path: Path, flags: list[str], isolate: bool | list[str]) -> None:
    parser = FlagParser()
    add_flags(parser)
    assert server_options(parser.parse_args([f"--model-repository={tmp_path}", *flags]))["isolate"] == isolate


def test_obsolete_flags_are_accepted_with_a_warning(tmp_path: Path) -> None:
    parser = FlagParser()
    add_flags(parser)
    flags = ["--strict-model-config=true", "--response-cache-byte-size", "99", "--pinned-memory-pool-byte-size=0"]
    options = parser.parse_args([f"--model-repository={tmp_path}", *flags, "--trace-level=min", "--trace-file=t.json"])
    assert [text.split("'")[1] for text in warnings(options)] == [
        "--trace-file",
        "--trace-level",
        "--response-cache-byte-size",
        "--strict-model-config",
        "--pinned-memory-pool-byte-size",
    ]
    chosen = server_options(options)
    assert chosen["auto_complete_config"] is False
    assert chosen["cache_config"] == {"local": {"size": "99"}}
    assert (chosen["trace"].file, chosen["trace"].levels) == ("t.json", {"TIMESTAMPS"})


def test_flags_of_nvidias_test_programs_are_accepted(tmp_path: Path) -> None:
    """They start every server of release 26.04 and later with shared memory allowed."""
    parser = FlagParser()
    add_flags(parser)
    flags = ["--allow-client-shm=true", "--grpc-infer-thread-count=8", "--grpc-max-response-pool-size=1"]
    options = parser.parse_args([f"--model-repository={tmp_path}", *flags])
    assert server_options(options)["allow_client_shm"] is True
    assert [text.split("'")[1] for text in warnings(options)] == [
        "--grpc-infer-thread-count",
        "--grpc-max-response-pool-size",
    ]
    default = parser.parse_args([f"--model-repository={tmp_path}"])
    assert server_options(default)["allow_client_shm"] is False


@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        ([], True),
        (["--allow-file-override=false"], False),
        (["--http-address=0.0.0.0"], False),
        (["--grpc-address=0.0.0.0"], False),
        (["--grpc-address=0.0.0.0", "--allow-grpc=false"], True),
        (["--http-address=0.0.0.0", "--grpc-address=127.0.0.1", "--allow-http=false"], True),
        (["--http-address=0.0.0.0", "--allow-http=false"], False),
        (["--http-allow-foreign=true"], False),
        (["--http-address=0.0.0.0", "--allow-file-override=true"], True),
    ],
)
def test_load_requests_may_contain_files_if_every_endpoint_is_on_this_machine(
    tmp_path: Path, flags: list[str], allowed: bool
) -> None:
    parser = FlagParser()
    add_flags(parser)
    options = parser.parse_args([f"--model-repository={tmp_path}", *flags])
    assert server_options(options)["allow_file_override"] is allowed


def test_help_describes_every_flag() -> None:
    parser = FlagParser()
    add_flags(parser)
    assert all(action.help for action in parser._actions)
    assert "--http-port N " in parser.format_help()


@pytest.mark.parametrize(
    ("settings", "options", "ignored"),
    [
        (["foo=bar"], {}, ["foo=bar"]),
        (["counter_latencies=false"], {"counter_latencies": False}, []),
        (["counter_latencies=FALSE", "counter_latencies=0"], {}, ["counter_latencies=FALSE", "counter_latencies=0"]),
        (["summary_latencies=true", "summary_latencies=false"], {"summary_latencies": True}, []),
        (["summary_latencies=1"], {}, ["summary_latencies=1"]),
        (["histogram_latencies=maybe"], {}, ["histogram_latencies=maybe"]),
        (["summary_quantiles=0.5:0.05,0.9:0.01"], {"quantiles": (0.5, 0.9)}, []),
        (["summary_quantiles=x"], {}, ["summary_quantiles=x"]),
        (["summary_quantiles=0.5"], {}, ["summary_quantiles=0.5"]),
        (["summary_quantiles=2:0.1"], {}, ["summary_quantiles=2:0.1"]),
        (["summary_quantiles=nan:0.1"], {}, ["summary_quantiles=nan:0.1"]),
        (["summary_quantiles=0.1:0.0.1,0.7 :.01x"], {"quantiles": (0.1, 0.7)}, []),  # the start of each is a number
        (
            ["summary_quantiles=x:0,0.5:0.1,0.9"],
            {"quantiles": (0.5,)},
            ["summary_quantiles=x:0", "summary_quantiles=0.9"],
        ),
    ],
)
def test_metrics_settings_without_effect_are_ignored_as_by_triton(
    tmp_path: Path, settings: list[str], options: dict[str, object], ignored: list[str]
) -> None:
    flags = [f"--metrics-config={setting}" for setting in settings]
    parsed = make_parser().parse_args(["serve", f"--model-repository={tmp_path}", *flags])
    assert server_options(parsed)["metrics"] == MetricsOptions(**options)  # type: ignore[arg-type]
    assert warnings(parsed) == [f"'--metrics-config={setting}' has no effect" for setting in ignored]


#: Values that are wrong for most flags.
WRONG = [
    "x",
    "",
    "-1",
    "1.5",
    "nan",
    "9" * 30,
    "é",
    "a b",
    "a:b",
    "a,b=c",
    "a=b",
    "/nowhere/x",
    "[::1",
    "99999",
]


def test_wrong_values_of_all_flags_are_refused_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some flags name a file that is written
    parser = FlagParser()
    add_flags(parser)
    flags = [action.option_strings[-1] for action in parser._actions if action.dest != "help"]
    assert len(flags) > 90
    messages = {}
    for flag, value in itertools.product(flags, WRONG):
        arguments = [f"--model-repository={tmp_path}", "--http-port=0", "--grpc-port=0", "--metrics-port=0"]
        try:
            options = parser.parse_args([*arguments, f"{flag}={value}"])
            warnings(options)
            server_options(options)
        except SystemExit:
            messages[flag, value] = capsys.readouterr().err
        except TritonError as error:  # `tritonnb serve` prints it
            messages[flag, value] = f"Usage: \n{error}\n"
    assert len(messages) > len(flags)
    assert {case: text for case, text in messages.items() if not re.fullmatch(r"[Uu]sage: .*\n(.+\n)+", text)} == {}


def test_command_models_asks_for_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["models"])
    assert exit.value.code == 1
    assert "the following arguments are required: directory" in capsys.readouterr().err
