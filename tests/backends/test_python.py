"""The Python backend: models that are loaded and execute batches.

Every test runs with the model in this process and with the model in its own process, unless it says why not.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.backends.models import PYTHON, request, rows
from tests.backends.python_models import HEAD, Load, load_model
from tritonnb.backends.python import module_import, pb_utils
from tritonnb.backends.python.module_import import forget_model, import_model
from tritonnb.core.errors import InternalError, InvalidArgumentError, Status, UnsupportedError
from tritonnb.core.messages import InferRequest, discard_response

# --- loading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("x = 1", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        ("def", "SyntaxError: invalid syntax (model.py, line 1)"),
        ("1 / 0", "ZeroDivisionError: division by zero\n\nAt:\n  {path}(1): <module>\n"),
        (
            HEAD + "    def initialize(self, args):\n        raise RuntimeError('not today')\n",
            "RuntimeError: not today\n\nAt:\n  {path}(6): initialize\n",
        ),
        (
            HEAD + "    def initialize(self, args):\n        pb_utils.Tensor('', np.zeros(1))\n",
            "TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n  {path}(6): initialize\n",
        ),
        (
            HEAD + "    def initialize(self):\n        pass\n",
            "TypeError: TritonPythonModel.initialize() takes 1 positional argument but 2 were given",
        ),
    ],
)
def test_load_error_has_tritons_text(load: Load, tmp_path: Path, body: str, text: str) -> None:
    with pytest.raises(InternalError) as caught:
        load(tmp_path, body)
    assert caught.value.message == text.format(path=tmp_path / "1" / "model.py")


@pytest.mark.parametrize(
    ("body", "got"),
    [("x = 1", "no class"), ("class Model:\n    pass\ndef helper():\n    pass", "Model, helper")],
)
def test_hint_for_missing_class_names_the_file_and_its_classes(load: Load, tmp_path: Path, body: str, got: str) -> None:
    with pytest.raises(InternalError) as caught:
        load(tmp_path, body)
    assert caught.value.hint == f"{tmp_path / '1' / 'model.py'}: expected a class TritonPythonModel, got {got}"


def test_arguments_of_initialize_are_strings(load: Load, tmp_path: Path) -> None:
    body = (
        HEAD
        + """    def initialize(self, args):
        self.args = args
    def execute(self, requests):
        return [pb_utils.InferenceResponse([], parameters=self.args)]
"""
    )
    (answer,) = load(tmp_path, body).run(request(IN0=rows(0)))
    assert answer is not None
    args = answer.parameters or {}
    assert {key: args[key] for key in args if key != "model_config"} == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(tmp_path),
        "model_version": "1",
        "model_name": "m",
    }
    assert '"max_batch_size":8' in str(args["model_config"])


def test_modules_with_equal_names_of_two_models_are_separate(load: Load, tmp_path: Path) -> None:
    body = "import helper\n" + PYTHON.replace(
        "request.inputs()[0].as_numpy()", "helper.change(request.inputs()[0].as_numpy())"
    )
    loaded = []
    for name, expression in (("a", "x + 1"), ("b", "x + 2")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "helper.py").write_text(
            f"def change(x):\n    return x + np.float32({expression[-1]})\nimport numpy as np\n"
        )
        loaded.append(load(tmp_path / name, body))
    assert [model.run(request(IN0=rows(0)))[0].outputs[0].array.item() for model in loaded] == [1, 2]


def test_model_imports_version_modules_relatively_and_directory_modules_by_name(load: Load, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "near.py").write_text("STEP = 1")
    (tmp_path / "1" / "later.py").write_text("STEP = 10")
    (tmp_path / "above.py").write_text("STEP = 100")
    body = "import above\nfrom . import near\n" + PYTHON.replace(
        "request.inputs()[0].as_numpy()", "request.inputs()[0].as_numpy() + near.STEP + self.more() + above.STEP"
    )
    body += "    def more(self):\n        from .later import STEP\n        return STEP\n"
    loaded = load(tmp_path, body)
    assert loaded.run(request(IN0=rows(0)))[0].outputs[0].array.item() == 111


def test_just_changed_source_is_recompiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would take cached bytecode for that of a source of the same second and size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    imports = "import above, aside.part\nfrom . import near\nfrom .parts import part\n"
    steps = "STEPS = [{step}, above.STEP, aside.part.STEP, near.STEP, part.STEP]"
    helpers = [
        "above.py",
        "aside/__init__.py",
        "aside/part.py",
        "1/near.py",
        "1/parts/__init__.py",
        "1/parts/part.py",
    ]
    for step in (1, 2):
        for name, text in {"1/model.py": imports + steps, **dict.fromkeys(helpers, "STEP = {step}")}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text.format(step=step))
            os.utime(tmp_path / name, (1, 1))
        module = import_model(tmp_path / "1" / "model.py", pb_utils)
        forget_model(module)
        assert set(module.STEPS) == {step}
    assert not list(tmp_path.rglob("__pycache__"))


def test_unloading_a_model_removes_its_modules(tmp_path: Path) -> None:
    def state() -> tuple[list[str], list[object], list[str]]:
        return list(sys.path), list(sys.path_hooks), sorted(name for name in sys.modules if name.startswith("triton_"))

    (tmp_path / "1").mkdir()
    path = tmp_path / "1" / "model.py"
    path.write_text("")
    before = state()
    modules = [import_model(path, pb_utils), import_model(path, pb_utils)]
    path.write_text("1 / 0")
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        import_model(path, pb_utils)
    assert sys.path == [*before[0], str(path.parent), str(tmp_path)]
    assert sys.modules[pb_utils.NAME] is pb_utils
    for module in modules:
        forget_model(module)
    assert state() == before


def test_unloading_a_model_hides_no_module_from_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may be at any of the path hooks when the last model removes its own."""
    path, library = tmp_path / "m" / "1" / "model.py", tmp_path / "library"
    for file in (path, library / "part.py"):
        file.parent.mkdir(parents=True)
        file.touch()

    def unload(directory: str) -> None:
        forget_model(module)
        raise ImportError(directory)

    monkeypatch.setattr(module_import, "_versions", {})  # models of other tests
    monkeypatch.setattr(sys, "path_hooks", [*sys.path_hooks[:-1], unload, sys.path_hooks[-1]])
    module = import_model(path, pb_utils)
    assert PathFinder.find_spec("part", [str(library)]) is not None


def test_users_path_entries_and_modules_survive_the_import_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes a model may have its directory in the path, and a module in place of Triton's."""
    (tmp_path / "1").mkdir()
    path = tmp_path / "1" / "model.py"
    (tmp_path / "above.py").touch()
    path.write_text("import above\nimport triton_python_backend_utils as utilities")
    stub = ModuleType(pb_utils.NAME)
    monkeypatch.setattr(module_import, "_versions", {})  # models of other tests
    monkeypatch.setitem(sys.modules, pb_utils.NAME, stub)
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    before = list(sys.path)
    modules = [import_model(path, pb_utils), import_model(path, pb_utils)]
    assert sys.path == [*before, str(tmp_path)]
    for module in modules:
        assert module.utilities is pb_utils
        forget_model(module)
    assert sys.path == before
    assert sys.modules[pb_utils.NAME] is stub
    assert str(tmp_path) not in sys.path_importer_cache


def test_unloaded_model_leaves_no_module(tmp_path: Path) -> None:
    """Not isolated: the process of a model ends with it."""
    before = set(sys.modules)
    loaded = load_model(tmp_path, PYTHON)
    assert set(sys.modules) != before
    loaded.instance.finalize()
    with pytest.raises(InternalError):
        load_model(tmp_path, "1 / 0")
    assert set(sys.modules) == before


def test_execution_environment_is_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{tmp_path / "env"}" }} }}'
    with pytest.raises(UnsupportedError, match="model 'm': EXECUTION_ENV_PATH is not supported"):
        load(tmp_path, PYTHON, extra=parameter)


# --- executing ------------------------------------------------------------------------------------


def test_exception_fails_the_batch_with_tritons_message(load: Load, tmp_path: Path) -> None:
    loaded = load(tmp_path, HEAD + "    def execute(self, requests):\n        raise ValueError('the model raised')\n")
    with pytest.raises(InternalError) as caught:
        loaded.run(request(IN0=rows(1)))
    assert str(caught.value) == (
        "Failed to process the request(s) for model 'm_0_0', message: ValueError: the model raised\n\nAt:\n  "
        f"{tmp_path}/1/model.py(6): execute\n"
    )


def test_exception_without_a_message_is_described_by_its_type(load: Load, tmp_path: Path) -> None:
    body = HEAD.replace(
        "class Triton",
        """class Mute(Exception):
    def __str__(self):
        raise ValueError


class Triton""",
    )
    with pytest.raises(InternalError, match="message: Mute: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"):
        load(tmp_path, body + "    def execute(self, requests):\n        raise Mute\n").run(request(IN0=rows(1)))


def test_unencodable_string_fails_its_request_and_names_the_model(load: Load, tmp_path: Path) -> None:
    tensors = 'input { name: "IN0" data_type: TYPE_FP32 dims: 1 } output { name: "S" data_type: TYPE_STRING dims: 1 }'
    body = (
        HEAD
        + """    def execute(self, requests):
        texts = ["\\ud800", "a"]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([[text]], object))]) for text in texts]
"""
    )
    failed, answered = load(tmp_path, body, tensors=tensors).run(request(IN0=rows(1)), request(IN0=rows(1)))
    assert "model 'm_0_0', message: UnicodeEncodeError: 'utf-8' codec can't" in failed.error.message
    assert answered.outputs[0].array.tolist() == [[b"a"]]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_response_parameter_of_more_than_64_bits_is_an_error(load: Load, tmp_path: Path, value: int) -> None:
    body = (
        HEAD
        + f"""    def execute(self, requests):
        return [pb_utils.InferenceResponse([], parameters={{"a": {value}}})]
"""
    )
    (answer,) = load(tmp_path, body).run(request(IN0=rows(1)))
    assert answer.error.message == "Unsupported value type on parameters"


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("None", "Expected a list in the execute return, found type '<class 'NoneType'>'."),
        ("[]", "Number of InferenceResponse objects do not match"),
        ("[7]", "Expected an 'InferenceResponse' object in the execute function return list"),
    ],
)
def test_execute_result_other_than_a_list_of_responses_is_refused(
    load: Load, tmp_path: Path, returned: str, text: str
) -> None:
    loaded = load(tmp_path, HEAD + f"    def execute(self, requests):\n        return {returned}\n")
    with pytest.raises(InternalError, match=text.split("'")[0]) as caught:
        loaded.run(request(IN0=rows(1)))
    assert text in str(caught.value)


def test_missing_execute_is_an_error_of_the_first_request(
    load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load(tmp_path, HEAD + "    pass\n")
    assert "expected TritonPythonModel to have a method execute(self, requests), got none" in caplog.text
    with pytest.raises(InternalError, match="does not implement `execute` method"):
        loaded.run(request(IN0=rows(1)))


def test_error_response_does_not_affect_the_other_requests(load: Load, tmp_path: Path) -> None:
    body = (
        HEAD
        + """    def execute(self, requests):
        error = pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)
        good = pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", requests[1].inputs()[0].as_numpy())])
        return [pb_utils.InferenceResponse(error=error), good]
"""
    )
    bad, good = load(tmp_path, body).run(request(IN0=rows(1)), request(IN0=rows(2)))
    assert (bad.error.status, str(bad.error)) == (Status.NOT_FOUND, "no")
    assert good.outputs[0].array.tolist() == [[2]]


def test_unconfigured_output_is_dropped_and_logged_once(
    load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = PYTHON.replace(
        'Tensor("OUT0", request.inputs()[0].as_numpy())]',
        'Tensor("OUT0", request.inputs()[0].as_numpy()), pb_utils.Tensor("OUT", np.zeros(1))]',
    ).replace("import triton", "import numpy as np\nimport triton")
    loaded = load(tmp_path, body)
    for _ in range(2):
        (answer,) = loaded.run(request(IN0=rows(1)))
        assert [output.name for output in answer.outputs] == ["OUT0"]
    assert [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()] == [
        "model 'm': returned output 'OUT' is dropped: expected the outputs of the configuration ('OUT0'); did you mean "
        "'OUT0'?"
    ]


def test_unrequested_output_is_dropped_without_a_log_message(
    load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (answer,) = load(tmp_path, PYTHON).run(request(("OUT1",), IN0=rows(1)))
    assert answer.outputs == []
    assert "dropped" not in caplog.text


def test_model_may_write_to_its_inputs(load: Load, tmp_path: Path) -> None:
    body = (
        HEAD
        + """    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        x += 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", x)])]
"""
    )
    frozen = np.frombuffer(rows(1).tobytes(), np.float32).reshape(1, 1)
    (answer,) = load(tmp_path, body).run(request(IN0=frozen))
    assert answer.outputs[0].array.item() == 2
    assert frozen.item() == 1


def test_importing_a_model_does_not_change_sys_path_while_another_thread_iterates_over_it(tmp_path: Path) -> None:
    """Not isolated: the path of this process does not change then."""
    walked = sys.path
    before = list(walked)
    load_model(tmp_path, PYTHON)
    assert walked == before
    assert sys.path[-2:] == [str(tmp_path / "1"), str(tmp_path)]


def test_model_that_calls_exit_fails_only_its_batch(load: Load, tmp_path: Path) -> None:
    body = HEAD + "    def execute(self, requests):\n        raise SystemExit(3)\n"
    with pytest.raises(InternalError, match="message: SystemExit: 3"):
        load(tmp_path, body).run(request(IN0=rows(1)))


@pytest.mark.parametrize("dtype", [">f4", "complex64", "longdouble", "U1"])
def test_tensor_of_dtype_without_datatype_cannot_be_created(load: Load, tmp_path: Path, dtype: str) -> None:
    body = HEAD + f"    def execute(self, requests):\n        pb_utils.Tensor('OUT0', np.zeros(1, '{dtype}'))\n"
    with pytest.raises(InternalError, match="message: TritonModelException: NumPy dtype is not supported"):
        load(tmp_path, body).run(request(IN0=rows(1)))


def test_reshape_of_an_output_is_undone(load: Load, tmp_path: Path) -> None:
    tensors = """
        input { name: "IN0" data_type: TYPE_FP32 dims: 1 }
        output { name: "OUT0" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }
    """
    body = PYTHON.replace("as_numpy()", "as_numpy().ravel()")
    (answer,) = load(tmp_path, body, tensors=tensors).run(request(IN0=rows(1, 2)))
    assert answer.outputs[0].array.tolist() == [[1], [2]]


def test_batching_model_requires_an_input_in_each_request(load: Load, tmp_path: Path) -> None:
    empty = InferRequest("m", {}, discard_response)
    body = (
        PYTHON + "    def execute(self, requests):\n        return [pb_utils.InferenceResponse([]) for _ in requests]\n"
    )
    loaded = load(tmp_path, body)
    with pytest.raises(InvalidArgumentError, match=r"out of bounds index 0: request has 0 inputs$"):
        loaded.run(request(IN0=rows(0)), empty)
    loaded = load(tmp_path, body, max_batch_size=0)
    assert [response.error for response in loaded.run(empty)] == [None]


NEWER = (
    HEAD
    + """    def execute(self, requests):
        (request,) = requests
        summary = f"{request.model_name()} {request.priority()} {request.inputs()[0].triton_dtype()}"
        tensor = pb_utils.Tensor("OUT0", request.inputs()[0].as_numpy())
        return [pb_utils.InferenceResponse([tensor], parameters={"summary": summary})]
"""
)


def test_requests_and_responses_have_the_attributes_of_newer_servers(load: Load, tmp_path: Path) -> None:
    (answer,) = load(tmp_path, NEWER).run(request(IN0=rows(1)))
    assert answer.parameters == {"summary": "m 0 11"}
