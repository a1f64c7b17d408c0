"""*docs/grafana.json*: a valid dashboard whose queries name metrics and labels that exist.

Grafana itself is not installed for tests. The dashboard is an object of the type ``Dashboard`` of the npm package
*@grafana/schema* 13.2 (except ``definition``, which Grafana itself writes), and Prometheus's ``promtool`` 2.42 accepts
its queries; both were checked by hand.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.endpoints.test_metrics import FakeNvml
from tests.lazy_import import LazyModule
from tritonnb.endpoints.metrics import gpus
from tritonnb.endpoints.metrics.families import MetricsOptions
from tritonnb.server.server import Server

if TYPE_CHECKING:
    import jsonschema
else:
    jsonschema = LazyModule("jsonschema")

HERE = Path(__file__).parent
DASHBOARD = json.loads((HERE.parents[1] / "docs" / "grafana.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
_NAME = re.compile(r"\b(?:nv|tritonnb)_\w+")
_GROUPING = re.compile(r"by \(([^)]*)\)")
_LEGEND = re.compile(r"\{\{(\w+)\}\}")


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each sample of a server that publishes everything, by name."""
    repository = tmp_path_factory.mktemp("models")
    shutil.copytree(HERE.parent / "models" / "addsub", repository / "addsub")
    with (repository / "addsub" / "config.pbtxt").open("a") as config:
        config.write("response_cache { enable: true }")
    metrics = MetricsOptions(summary_latencies=True, histogram_latencies=True)
    cache = {"local": {"size": "1000000"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpus, "pynvml", FakeNvml)
        with Server(repository, port=0, metrics_port=0, metrics=metrics, cache_config=cache) as server:
            server["addsub"](INPUT0=np.ones((2, 4), np.int32), INPUT1=np.ones((2, 4), np.int32))
            with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as response:
                text = response.read().decode()
    names: dict[str, set[str]] = {}
    counters = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and "counter" in line}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The parser appends the ending that OpenMetrics requires to the names of counters.
            plain = sample.name.removesuffix("_total")
            names.setdefault(plain if plain in counters else sample.name, set()).update(sample.labels)
    return names


def test_grafana_file_is_a_dashboard() -> None:
    schema = json.loads((HERE / "grafana_dashboard.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(DASHBOARD, schema, cls=jsonschema.Draft202012Validator)


def test_grafana_panels_have_unique_ids_and_positions() -> None:
    identifiers = [panel["id"] for panel in PANELS]
    assert len(set(identifiers)) == len(identifiers)
    cells = [
        (column, line)
        for place in (panel["gridPos"] for panel in PANELS)
        for column, line in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_query_names_metrics_and_labels_that_exist(labels: dict[str, set[str]], expression: str) -> None:
    names = _NAME.findall(expression)
    assert names
    assert set(names) <= labels.keys()
    used = {label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")}
    if "$model" in expression:
        used.add("model")
    for name in names:
        assert used <= labels[name], name
    assert expression.count("(") == expression.count(")")


def test_grafana_legends_use_labels_of_their_queries(labels: dict[str, set[str]]) -> None:
    for target in (target for panel in PANELS for target in panel.get("targets", ())):
        grouped = _GROUPING.findall(target["expr"])
        available = (
            {label.strip() for group in grouped for label in group.split(",")}
            if grouped
            else labels[_NAME.findall(target["expr"])[0]]
        )
        assert set(_LEGEND.findall(target["legendFormat"])) <= available, target


def test_grafana_variable_is_a_label_of_its_metric(labels: dict[str, set[str]]) -> None:
    (variable,) = [variable for variable in DASHBOARD["templating"]["list"] if variable["name"] == "model"]
    match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
    assert match is not None
    metric, label = match.groups()
    assert label in labels[metric]
    assert variable["query"]["query"] == variable["definition"]
