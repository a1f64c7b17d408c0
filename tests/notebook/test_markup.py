"""Names and texts with markup in everything that is shown as HTML: they stay text."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.recording.test_pipelines import Events
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.interference import InterferenceTable
from tritonnb.lab.analysis.pipeline_what_if import PipelineComparison
from tritonnb.lab.analysis.theory import theory
from tritonnb.notebook.containers import Markup
from tritonnb.notebook.html_reprs import remote_card, served_model_card, server_title
from tritonnb.scheduling.reasons import BLS_REQUEST

ROOT = Path(tnb.__file__).parent
#: Ends texts, attributes, comments and elements, and begins an element with an attribute, wherever it stands.
HOSTILE = "'\">`-->]]></script><hxq onhxq=1><img src=x onerror=hxq()>&lt;hxq&gt;"
#: The same without slashes, for names of files.
NAME = HOSTILE.replace("/", "")
CONFIG = f"""name: "{NAME.replace('"', chr(92) + '"')}" max_batch_size: 4
instance_group [ {{ name: "{NAME.replace('"', chr(92) + '"')}" count: 2 kind: KIND_CPU }} ] dynamic_batching {{ }}"""


class Elements(HTMLParser):
    """The elements and attributes that come from hostile texts."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [tag] * (tag in ("hxq", "script", "iframe", "object"))
        for name, value in attributes:
            suspicious = name.startswith("on") or "hxq" in name or re.match(r"\\s*javascript:", value or "", re.I)
            in_link = name in ("src", "style", "class", "id") and "hxq" in (value or "")
            if suspicious or in_link:
                self.found.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.found += ["comment"] * ("hxq" in data)


def check(markup: str, *, shows: bool = True) -> None:
    elements = Elements(markup)
    assert elements.found == []
    assert "hxq" in elements.text or not shows


@pytest.fixture(scope="module")
def rec() -> tnb.Recording:
    arrivals = [tnb.Arrival(ms=3 * number, rows=1 + number % 3) for number in range(60)]
    return tnb.simulate(CONFIG, arrivals, tnb.jittered(tnb.linear(1, 5), sigma=0.1))


def compared(rec: tnb.Recording) -> Any:
    other = tnb.simulate(CONFIG, [tnb.Arrival(ms=number) for number in range(30)], tnb.fixed(3))
    return tnb.compare(rec, other, names=(HOSTILE, f"{HOSTILE} 2"))


def swept(server: tnb.Server) -> Any:
    return tnb.sweep(server[NAME], count=[1, 2], rate=100, service=tnb.fixed(2), requests=200)


def pipelined() -> tnb.Recording:
    """A recording of a model that calls another, with hostile names."""
    events = Events()
    caller = events.execution(0, 100, NAME)
    events.step(caller, events.execution(10, 40, f"{NAME} 2"), rule=BLS_REQUEST, model=NAME, step_model=f"{NAME} 2")
    return tnb.Recording(events.events, {name: pb.ModelConfig(name=name) for name in (NAME, f"{NAME} 2")})


#: By the file of the class: what a recording gives.
RESULTS: dict[str, Callable[[tnb.Recording], Any]] = {
    "recording/recording.py": lambda rec: rec,
    "recording/pipelines.py": lambda rec: pipelined().pipelines[NAME],
    "lab/analysis/blame.py": lambda rec: rec.blame(),
    "lab/analysis/tail_blame.py": lambda rec: rec.blame(percentile=90),
    "lab/analysis/pipeline_what_if.py": lambda rec: PipelineComparison(
        NAME, pipelined(), pipelined(), {NAME: {NAME: NAME}}, pipelined(), (NAME,), (NAME,)
    ),
    "lab/analysis/pipeline_blame.py": lambda rec: pipelined().blame(percentile=50),
    "lab/analysis/comparison.py": compared,
    "lab/analysis/theory.py": theory,
    "lab/analysis/interference.py": lambda rec: InterferenceTable.of(
        {NAME: {}, f"{NAME} 2": {}}, {NAME: 1, f"{NAME} 2": 1}
    ),
    "lab/prediction/plan.py": lambda rec: rec.twin().plan(
        "p99 < 500 ms", rate=50, count=[1], max_queue_delay_microseconds=[0], max_batch_size=[4]
    ),
    "lab/teaching/worksheet.py": lambda rec: tnb.Worksheet(f"{CONFIG} # {HOSTILE}", [tnb.Arrival(ms=0)], 10),
    "lab/teaching/class_answers.py": lambda rec: tnb.Worksheet(CONFIG, [tnb.Arrival(ms=0)], 10).grade_class(
        {HOSTILE: HOSTILE}
    ),
}
#: The classes that are shown by other tests of this file.
SHOWN_BELOW = {
    "lab/load/running_load.py",
    "lab/load/result.py",
    "lab/load/running_sweep.py",
    "lab/load/sweep_result.py",
    "lab/prediction/verify.py",
}


@pytest.mark.parametrize("file", RESULTS)
def test_result_of_a_recording_shows_names_as_text(rec: tnb.Recording, file: str) -> None:
    check(RESULTS[file](rec)._repr_html_(), shows=False)


def test_every_class_that_shows_itself_as_html_is_tried() -> None:
    defining = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == "_repr_html_"
    }
    assert defining == RESULTS.keys() | SHOWN_BELOW


@pytest.mark.parametrize("name", ["timeline", "batch_sizes", "latency", "queue"])
def test_figure_shows_names_as_text(rec: tnb.Recording, name: str) -> None:
    picture = getattr(rec.plot, name)()
    check(picture._repr_mimebundle_()["text/html"], shows=False)
    for svg in (picture.svg(), picture.svg_for_both_themes()):
        check(svg, shows=False)


def test_page_of_a_recording_shows_names_as_text(rec: tnb.Recording, tmp_path: Path) -> None:
    rec.to_html(tmp_path / "page.html", title=HOSTILE)
    page = (tmp_path / "page.html").read_text("utf-8")
    own = re.compile(r'<script type="(module|application/json)">.*?</script>', re.DOTALL)
    assert len(own.findall(page)) == 2
    check(own.sub("", page))


def test_view_of_a_recording_shows_names_as_text(rec: tnb.Recording) -> None:
    batches, comparison = rec.view(), compared(rec).view()
    try:
        for shown in (batches, comparison):
            check(shown.last_data()["text/html"], shows=False)
        for child in comparison.children:
            if isinstance(child, Markup):
                check(child.value, shows=False)
    finally:
        batches.close()
        comparison.close()


# --- servers ---------------------------------------------------------------------------------------------

MODEL = """
import triton_python_backend_utils as pb
class TritonPythonModel:
    def initialize(self, args):
        if "broken" in args["model_name"]:
            raise RuntimeError(%r)
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor(%r, pb.get_input_tensor_by_name(r, %r).as_numpy())]) for r in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tnb.Server]:
    repository = tmp_path_factory.mktemp("models")
    escaped = HOSTILE.replace('"', '\\"')
    for name in (NAME, f"broken {NAME}", f"syntax {NAME}"):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(MODEL % (HOSTILE, HOSTILE, HOSTILE))
        (repository / name / "labels.txt").write_text(f"{HOSTILE}\n")
        tensors = f'{{ name: "{escaped}" data_type: TYPE_FP32 dims: [ 1 ] }}'
        text = (
            f'backend: "python" max_batch_size: 4 input {tensors} output {tensors} dynamic_batching {{ }} # {HOSTILE}'
        )
        if name.startswith("syntax"):
            text = f'backend: "{escaped}'
        (repository / name / "config.pbtxt").write_text(text)
    with tnb.Server(repository, port=0) as server:
        inputs: Any = {HOSTILE: np.ones((1, 1), np.float32)}
        server[NAME](**inputs, id=HOSTILE)
        yield server


def test_cards_of_a_server_show_names_and_errors_as_text(server: tnb.Server) -> None:
    check(server._repr_html_())
    for name in (NAME, f"broken {NAME}", f"syntax {NAME}"):
        check(server[name]._repr_html_())
    with tnb.connect(server.url) as remote:
        check(remote._repr_html_())
        for name in (NAME, f"broken {NAME}"):
            check(remote[name]._repr_html_())


def test_views_of_a_server_show_names_and_errors_as_text(server: tnb.Server) -> None:
    model = server[NAME]
    for view in (server.dashboard(), model.watch(), model.edit(), model.traffic()):
        try:
            check(view.last_data()["text/html"], shows=False)
            for child in getattr(view, "children", ()):
                check(str(getattr(child, "value", "")), shows=False)
        finally:
            view.close()


def test_load_shows_names_and_errors_as_text(server: tnb.Server) -> None:
    load = tnb.load(server[NAME], rate=200, requests=20)
    check(load._repr_html_(), shows=False)
    check(load.wait()._repr_html_())
    sweep = swept(server)
    check(sweep._repr_html_(), shows=False)
    check(sweep.wait()._repr_html_(), shows=False)
    verified = load.wait().recording.twin().verify(server[NAME])
    check(verified._repr_html_(), shows=False)


@pytest.mark.parametrize("field", ["url", "name", "version", "versions", "platform", "tensor", "datatype", "error"])
def test_what_another_server_says_is_shown_as_text(field: str) -> None:
    said = dict.fromkeys(("name", "version", "versions", "platform", "tensor", "datatype"), "x") | {field: HOSTILE}
    tensor = {"name": said["tensor"], "datatype": said["datatype"], "shape": [-1]}
    metadata = {
        "name": said["name"], "versions": [said["versions"]], "platform": said["platform"],
        "inputs": [tensor], "outputs": [tensor],
    }  # fmt: skip
    config = tnb.simulate("max_batch_size: 4", [(0, 1)], tnb.fixed(1)).configs.popitem()[1]
    statistics: Any = {"execution_count": 0}
    check(served_model_card(said["name"], metadata, statistics, config), shows=False)

    class Server:
        """One with an unusual address."""

        alive, url = False, f"http://{said.get('url', 'x')}"

    check(remote_card(Server()), shows=False)  # type: ignore[arg-type]
    check(server_title(Server()), shows=False)  # type: ignore[arg-type]
