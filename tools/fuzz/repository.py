"""Load requests: no name, path or configuration may reach a file outside of the model's directory."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.fuzz.targets import Try
from tools.fuzz.unexpected import UnexpectedErrors, require
from tritonnb.core.errors import TritonError
from tritonnb.endpoints.http.handlers.metadata import _load_parameters
from tritonnb.endpoints.http.json_reader import parse_request
from tritonnb.engine.options import EngineOptions
from tritonnb.engine.repository.directories import ModelDirectories
from tritonnb.model_config.load import check_model_name, check_override, finalize_config
from tritonnb.model_config.model_files import check_data_files, model_file
from tritonnb.model_config.normalize import with_instance_groups

_CONFIG = {"backend": "python", "input": [], "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}]}


def _has_packages(path: str) -> bool:
    return path.endswith("site-packages")


#: Where Python finds modules, which are imported when they are used.
_MODULES = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2] / "tritonnb"), *filter(_has_packages, sys.path))


class _OpenFiles:
    """An audit hook that refuses to open files outside of a directory; it cannot be removed."""

    def __init__(self) -> None:
        self.root = ""
        self._outside: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.root and event in ("open", "os.mkdir", "os.listdir", "os.scandir") and isinstance(arguments[0], str):
            path = os.path.normpath(arguments[0])  # relative ones are those of rmtree, in an open directory
            if os.path.isabs(path) and not path.startswith((self.root, *_MODULES)):
                self._outside.append(path)

    @contextmanager
    def only_in(self, root: str) -> Iterator[None]:
        """Raise an error if a file outside of a directory is opened meanwhile."""
        self.root, self._outside = root, []
        try:
            yield
        finally:
            self.root = ""
        require(not self._outside, f"expected only files in {root}, got {self._outside[:1]}")


_open_files = _OpenFiles()


@contextmanager
def load_requests() -> Iterator[Try]:
    """Send a load request: the name of a model, a line feed, and the body.

    A body that is not JSON is the name of a file: it is tried in every field that names one.
    """
    with tempfile.TemporaryDirectory(prefix="tritonnb-fuzz-") as scratch:
        repository = Path(scratch, "repository")
        (repository / "m" / "1").mkdir(parents=True)
        (repository / "m" / "config.pbtxt").write_text('backend: "python"')
        directories = ModelDirectories(EngineOptions(model_repositories=[repository]))

        def run(data: bytes) -> None:
            raw_name, _, body = data.partition(b"\n")
            name = raw_name.decode("latin-1")
            bodies = [body]
            if not body.startswith(b"{"):
                path = body.decode("utf-8", "surrogateescape")
                bodies = [json.dumps(request).encode() for request in _requests_with_path(path)]
            for body in bodies:
                with _open_files.only_in(scratch):
                    _load(directories, name, body)

        temporary, tempfile.tempdir = tempfile.tempdir, scratch
        try:
            with UnexpectedErrors():  # keeps the log empty
                yield run
        finally:
            tempfile.tempdir = temporary


def _load(directories: ModelDirectories, name: str, body: bytes) -> None:
    """Load a model up to the creation of its instances."""
    try:
        parameters = _load_parameters(parse_request(body, 1 << 20))
        check_model_name(name)
        override = parameters.pop("config", None)
        files = {
            path.removeprefix("file:"): content for path, content in parameters.items() if isinstance(content, bytes)
        }
        if override is not None:
            check_override(name, str(override))
        directories.look_up(name)
        source = directories.read(name, None if override is None else str(override), files)
        config = with_instance_groups(source.config, gpus=(), default_instance_count=lambda kind: 1)
        config = finalize_config(config, source.directory)
        check_data_files(config, source.directory)
        for output in config.output:
            if output.label_filename:
                model_file(source.directory, output.label_filename).read_bytes()
    except TritonError:
        return


def _requests_with_path(path: str) -> Iterator[dict[str, object]]:
    yield {"parameters": {"config": json.dumps(_CONFIG), f"file:{path}": "cGFzcw=="}}
    labels = [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1], "label_filename": path}]
    fields: list[dict[str, object]] = [
        {"default_model_filename": path},
        {"runtime": path},
        {"backend": path},
        {"output": labels},
    ]
    for field in fields:
        yield {"parameters": {"config": json.dumps({**_CONFIG, **field})}}
