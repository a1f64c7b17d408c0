"""What is data can be copied, pickled and sent to another process; what belongs to this process says that it cannot."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tritonnb import errors
from tritonnb.core.copies import NotCopyableError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.parse import parse_text

HOWS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "oldest pickle": lambda value: pickle.loads(pickle.dumps(value, 2)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


def content(value: object, depth: int = 0) -> object:
    """The contents of a value, which are equal if the values are."""
    if isinstance(value, float) and math.isnan(value):  # not equal to itself
        return "nan"
    if depth > 12 or value is None or isinstance(value, (str, bytes, int, float, type, np.dtype)) or callable(value):
        return value if not callable(value) else getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if hasattr(value, "SerializeToString"):
        return value.SerializeToString(deterministic=True)
    if isinstance(value, Mapping):
        return {key: content(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return set(value)
    if isinstance(value, (list, tuple)):
        return [content(item, depth + 1) for item in value]
    if isinstance(value, BaseException):
        return type(value), str(value), content(vars(value), depth + 1)
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else slots
    names = names or list(getattr(value, "__dict__", ()))
    skipped = {"model"} if isinstance(value, tnb.SweepResult) else set()
    return type(value), {name: content(getattr(value, name, None), depth + 1) for name in names if name not in skipped}


@pytest.fixture(scope="module")
def made() -> Iterator[SimpleNamespace]:
    """A server, and what it and the laboratory return."""
    with tnb.Server(port=0) as server:

        @server.model(max_batch_size=8, dynamic_batching={})
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        model = server["double"]
        with server.record() as live:
            loaded = tnb.load(model, clients=4, requests=100).wait()
        sweep = tnb.sweep(model, count=[1, 2], rate=100, requests=100, service=tnb.fixed(8)).wait()
        measured = tnb.sweep(model, count=[1], rate=100, requests=20).wait()
        simulated = tnb.simulate(
            "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 1000 }",
            tnb.poisson(rate=300, duration=0.5, seed=1),
            tnb.fixed(5),
        )
        twin: Any = live.for_model("double").twin()
        # Of a simulation: a plan for a quick model searches rates of thousands of requests per second.
        plan: Any = simulated.twin().plan("p99 < 100 ms", rate=50)
        yield SimpleNamespace(**locals())


def error_of(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("expected an error")


#: Data, by name.
DATA: dict[str, Callable[[SimpleNamespace], Any]] = {
    "explanation": lambda m: tnb.explain("Concurrency: 4, throughput: 800 infer/sec, latency 5000 usec"),
    "recording": lambda made: made.simulated,
    "recording of a server": lambda made: made.live,
    "excerpt": lambda made: made.simulated.between(0, 100),
    "events": lambda made: made.simulated.events,
    "batches": lambda made: made.simulated.batches,
    "requests": lambda made: made.simulated.requests,
    "reason": lambda made: made.simulated.batches[0].reason,
    "arrivals": lambda made: made.simulated.arrivals(),
    "blame": lambda made: made.simulated.blame(5),
    "diagnoses": lambda made: made.simulated.diagnoses(),
    "figures": lambda made: made.simulated.plot,
    "worksheet": lambda made: made.simulated.worksheet(),
    "what-if": lambda made: made.simulated.what_if(count=2),
    "comparison": lambda made: tnb.compare(made.simulated, made.simulated),
    "learned service": lambda made: made.simulated.service(),
    "load result": lambda made: made.loaded,
    "sweep result": lambda made: made.sweep,
    "trial": lambda made: made.sweep.best,
    "trial on a server": lambda made: made.measured.best,
    "twin": lambda made: made.twin,
    "prediction": lambda made: made.twin.predict(rate=50),
    "plan": lambda made: made.plan,
    "theory": lambda made: tnb.theory(made.simulated),
    "statistics": lambda made: made.server.stats(),
    "index": lambda made: made.server.index(),
    "configuration": lambda made: made.model.running_config(),
    "configurations of groups": lambda made: list(made.model.running_config().instance_group),
    "nested message": lambda made: pb.ModelInput(name="X", dims=[1]).reshape,
    "described calls": lambda made: [tnb.Call("net", 2), tnb.calling(["net", tnb.Call("net", [0, 1])], before_ms=1)],
    "service time": lambda made: [tnb.fixed(5), tnb.linear(1, 2), tnb.table({1: 2, 4: 3})],
    "measured service time": lambda made: tnb.measured(made.model.stats()),
    "random service time": lambda made: tnb.jittered(tnb.fixed(5), sigma=0.1),
    "closed loop": lambda made: tnb.ClosedLoop(2, 1),
    "arrivals of functions": lambda made: [list(tnb.constant(10, 1)), list(tnb.bursts(2, 3, 1.0))],
    "datatype of a tensor": lambda made: tnb.FP32[3, -1],
    "report": lambda made: tnb.doctor(),
    "options": lambda made: [tnb.HttpOptions(), tnb.GrpcOptions(), tnb.MetricsOptions(), tnb.OpenAiOptions()],
    "log settings": lambda made: tnb.LogSettings(),
    "resource": lambda made: tnb.Resource("r", 1),
    "trace options": lambda made: tnb.TraceOptions("trace.json", frozenset({"TIMESTAMPS"}), 1),
    "error of a configuration": lambda made: error_of(lambda: tnb.simulate("max_batch_sice: 4", [], tnb.fixed(1))),
    "error of a load": lambda made: error_of(lambda: made.server.load("absent")),
    "error of a port": lambda made: error_of(lambda: tnb.Server(port=made.server.port)),
    "error of a model": lambda made: error_of(lambda: made.model(X=[["a"]])),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_data_have_equal_copies(made: SimpleNamespace, name: str) -> None:
    value = DATA[name](made)
    expected = content(value)
    for how, copied in HOWS.items():
        assert content(copied(value)) == expected, how


#: Classes of data that nothing above is, with the reason.
ELSEWHERE: dict[str, str] = {}
#: Classes of this process.
LIVE = {"Load", "OtlpReceiver", "Remote", "ScaledServer", "Server", "Sweep", "TritonError"}


def test_every_public_class_is_in_one_of_the_tables(made: SimpleNamespace) -> None:
    names: list[str] = tnb.__all__  # type: ignore[attr-defined]
    public = {name for name in names if inspect.isclass(getattr(tnb, name))}
    seen: set[str] = set()

    def visit(value: object, depth: int = 0) -> None:
        seen.add(type(value).__name__)
        if isinstance(value, (list, tuple)) and depth < 3:
            for item in value[:5]:
                visit(item, depth + 1)

    for make in DATA.values():
        visit(make(made))
    assert public - seen - LIVE == set(ELSEWHERE)


@pytest.mark.parametrize("how", HOWS)
def test_datatypes_are_the_same_objects_after_a_copy(how: str) -> None:
    for datatype in (tnb.FP32, tnb.BYTES, tnb.BF16):
        assert HOWS[how](datatype) is datatype
    assert HOWS[how](tnb.FP32[2]).datatype is tnb.FP32


ERRORS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.TritonError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_have_equal_copies(kind: type[errors.TritonError]) -> None:
    error = kind.__new__(kind, "text")
    errors.TritonError.__init__(error, "text", hint="a hint")
    for how in HOWS.values():
        assert content(how(error)) == content(error)


def test_syntax_error_keeps_its_place() -> None:
    error: Any = error_of(lambda: parse_text("max_batch_size: :"))
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


@pytest.mark.parametrize("how", HOWS)
def test_fields_of_a_configuration_have_equal_copies(made: SimpleNamespace, how: str) -> None:
    config = made.model.config
    for value in (config.dynamic_batching, config.input, config.batch_input, config.input[0], config.input[:]):
        assert HOWS[how](value) == value
    assert HOWS[how](config.input)[0].name == "X"


def received(values: Any, outcome: Any) -> None:
    outcome.put([type(value).__name__ for value in values])


def test_data_arrive_in_a_process_of_its_own(made: SimpleNamespace) -> None:
    context = multiprocessing.get_context("spawn")
    outcome = context.SimpleQueue()
    values = [made.simulated, made.simulated.batches[0], made.loaded, made.sweep, made.model.running_config()]
    process = context.Process(target=received, args=(values, outcome))
    process.start()
    process.join(60)
    assert outcome.get() == ["Recording", "Batch", "LoadResult", "SweepResult", "ModelConfig"]


def test_copy_of_a_recording_answers_like_the_original(made: SimpleNamespace) -> None:
    copied = pickle.loads(pickle.dumps(made.simulated))
    assert copied.verdict() == made.simulated.verdict()
    assert copied.what_if(count=2).verdict() == made.simulated.what_if(count=2).verdict()


def test_copy_of_a_sweep_result_has_no_server(made: SimpleNamespace) -> None:
    copied = copy.deepcopy(made.sweep)
    assert copied.verdict() == made.sweep.verdict()
    assert copied.perf_analyzer() == made.sweep.perf_analyzer()
    with pytest.raises(tnb.TritonError, match="model 'double': expected the sweep's own result, got a copy"):
        copied.apply()


#: What belongs to this process, and the sentence.
REFUSED: dict[str, tuple[Callable[[SimpleNamespace], Any], str]] = {
    "server": (lambda made: made.server, r"^server http://\S+ cannot be .*: pass its URL, and call tnb.connect\('http"),
    "model": (lambda made: made.model, r"^model 'double' cannot .* tnb.connect\('http://\S+'\)\['double'\] there$"),
    "configuration": (lambda made: made.model.config, r"^configuration of model 'double' cannot .* its text"),
    "connection": (lambda made: tnb.connect(made.server.url), r"^connection to http://\S+ cannot .*tnb.connect\("),
    "remote model": (lambda made: tnb.connect(made.server.url)["double"], r"^model 'double' .*\['double'\] there$"),
    "remote configuration": (
        lambda made: tnb.connect(made.server.url)["double"].config,
        r"^configuration of model 'double' cannot .* its text",
    ),
    "load": (
        lambda made: tnb.load(made.model, requests=3, clients=1),
        r"^load of 'double', .* cannot .*\(load.wait\(\)\)$",
    ),
    "sweep": (
        lambda made: tnb.sweep(made.model, count=[1, 2], rate=100, requests=20, service=tnb.fixed(2)),
        r"^sweep cannot .* \(sweep.wait\(\)\)$",
    ),
    "receiver": (lambda made: tnb.otlp_receiver(port=0), r"^receiver http://\S+ cannot .*recording\(\)\)$"),
    "debugger": (lambda made: made.simulated.debug(), r"^debugger of model 'simulated' cannot .*recording.debug\(\)"),
    "view": (lambda made: made.simulated.view(), "^view BatchView cannot"),
    "live view": (lambda made: made.model.watch(), "^view LiveBatchView cannot"),
    "editor": (lambda made: made.model.edit(), "^view ConfigEditor cannot"),
}  # fmt: skip


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", REFUSED)
def test_object_of_this_process_says_that_it_cannot_be_copied(made: SimpleNamespace, name: str, how: str) -> None:
    make, sentence = REFUSED[name]
    with pytest.raises(NotCopyableError, match=sentence) as raised:
        HOWS[how](make(made))
    assert isinstance(raised.value, TypeError)
