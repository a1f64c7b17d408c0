"""The running configuration of a model and its file, and the report on an edited text of it.

The report has the problems, the form, the effect of applying the text, and the difference from the running one. The
form has the fields that are used in teaching. It does not handle text: `tritonnb.model_config.text_edit` writes its
changes into the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from typing import Any

from tritonnb.client.model import Model
from tritonnb.core.errors import Problem
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import diagnose, problem_of
from tritonnb.model_config.diff import changed_fields, effect_of, replaced
from tritonnb.model_config.read import config_text
from tritonnb.model_config.text_edit import edit_text

#: Returns a configuration as it would be loaded; raises `TritonError` if it would be rejected.
Check = Callable[[Any], Any]

_STEP = re.compile(r"(\w+)(?:\[(\d+)\])?")
_SCHEDULERS = {
    "none": "one request at a time",
    "dynamic": "dynamic batcher",
    "direct": "sequence batcher: direct",
    "oldest": "sequence batcher: oldest",
}
_MAX_LEVELS_SHOWN = 8
#: The fields of both kinds of batchers, with what an empty field means.
_BATCHER_HINTS = {
    "preferred_batch_size": "the largest batch",
    "max_queue_delay_microseconds": "",
    "preserve_ordering": "",
}


def report_on(
    text: str, check: Check, name: str, running: Any, running_text: str, failure: tuple[str, str] | None
) -> Json:
    """Check the text of a configuration.

    Parameters
    ----------
    text : str
    check : callable
    name : str
        The name of the model.
    running : ModelConfig or None
        None if the model failed to load.
    running_text : str
        ``running`` as text; the text of the file if the model failed to load.
    failure : tuple of str, optional
        A valid text that could not be loaded, and the reason.

    Returns
    -------
    dict
        ``text``, ``problems``, ``form``, ``effect`` and ``diff``, as plain values.
    """
    diagnosis, problems = diagnose(text, check, name), []
    if diagnosis.parsed is not None and failure is not None and failure[0] == text:
        problems.append(problem_of(failure[1], text, diagnosis.parsed))
    effect = ""
    if diagnosis.checked is not None:
        effect = "loaded" if running is None else effect_of(running, diagnosis.checked)
    before = "file" if running is None else "running"
    return {
        "text": text,
        "problems": [_shown(problem) for problem in diagnosis.problems or problems],
        "form": None if diagnosis.parsed is None else form_of(diagnosis.parsed.config),
        "effect": effect,
        "diff": list(unified_diff(running_text.splitlines(), text.splitlines(), before, "edited", lineterm="", n=2)),
    }


def _shown(problem: Problem) -> Json:
    fix = None if problem.fix is None else {"label": problem.fix.label, "text": problem.fix.text}
    return {"message": problem.message, "line": problem.line, "column": problem.column, "fix": fix}


def text_of(running: Any, file_text: str | None, check: Check) -> str:
    """Return the running configuration as text: the file, edited where the running configuration differs."""
    if running is None:
        return file_text or ""
    diagnosis = None if file_text is None else diagnose(file_text, check)
    if diagnosis is None or diagnosis.parsed is None or diagnosis.checked is None:
        return config_text(running)
    assert file_text is not None
    return edit_text(file_text, replaced(diagnosis.parsed.config, running, changed_fields(diagnosis.checked, running)))


class ServedConfig:
    """The running configuration of a model when it was last read, as text, and the text that could not be loaded.

    Parameters
    ----------
    model : Model
    path : pathlib.Path or None
        Its *config.pbtxt*.

    Attributes
    ----------
    config : ModelConfig or None
        None if the model failed to load.
    text : str
        ``config`` in the form of the file; the text of the file if the model failed to load.
    file_text : str or None
        The text of the file when it was last read; None if it could not be read.
    failure : tuple of str, optional
        A text that could not be loaded, and the reason.
    """

    def __init__(self, model: Model, path: Path | None) -> None:
        self.path = path
        self.file_text: str | None = None
        self._written: tuple[int, int] | None = None  # when the file was written, and its size
        self.config: Any = object()  # differs from every configuration, so that the first `update` takes it
        self.read_file()
        self.update(model)

    def update(self, model: Model) -> bool:
        """Read the running configuration; return whether it has changed."""
        reason = model.load_failure()
        config = None if reason else model.running_config()
        if config == self.config:
            return False
        self.config = config
        self.text = text_of(config, self.file_text, model.check_config)
        self.failure = (self.file_text or "", reason) if reason else None
        return True

    def applied(self, model: Model, text: str) -> None:
        """Take a text that was applied."""
        self.config, self.text, self.failure = model.running_config(), text, None

    def read_file(self) -> bool:
        """Read the file again; return whether it was written."""
        known, self._written, self.file_text = self._written, None, None
        if self.path is not None:
            with suppress(OSError):
                status = self.path.stat()
                self.file_text = self.path.read_text("utf-8", "replace")  # universal newlines, as in a browser
                self._written = status.st_mtime_ns, status.st_size
        return self._written != known

    def report(self, model: Model, text: str) -> Json:
        """Check a text: see `report_on`."""
        return report_on(text, model.check_config, model.name, self.config, self.text, self.failure)


# --- the form -----------------------------------------------------------------------------------------


def form_of(config: pb.ModelConfig) -> list[Json]:
    """Return the form of a configuration: sections, each with a title and fields.

    A field has the ``path`` that `set_field` takes, a ``label``, a ``kind`` (``int``, ``float``, ``ints``,
    ``bool``, ``choice``), a ``value``, and if applicable ``choices``, ``unit`` and ``hint``.
    """
    sections = [
        _section(
            "Batches",
            _field(config, "max_batch_size", hint="0: no batching"),
            _choice("scheduler", "scheduler", _scheduler(config), _SCHEDULERS),
        ),
        *(_instances(config, index) for index in range(max(1, len(config.instance_group)))),
    ]
    if config.HasField("dynamic_batching"):
        sections += _dynamic(config.dynamic_batching)
    if config.HasField("sequence_batching"):
        sections.append(_sequence(config.sequence_batching))
    return [*sections, _versions(config.version_policy)]


def set_field(config: pb.ModelConfig, path: str, value: Any) -> None:
    """Set the value of one field of the form.

    Parameters
    ----------
    config : inference.ModelConfig
        Changed in place.
    path : str
    value : int, float, bool, str or list of int
        An empty list or an empty string clears the field.
    """
    if path in _CHOICES:
        _CHOICES[path](config, value)
        return
    message: Any = config
    *parents, name = path.split(".")
    for step in parents:
        message = _child(message, step)
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.is_repeated:
        message.ClearField(name)
        getattr(message, name).extend(value)
    elif value in ("", None):
        message.ClearField(name)
    elif field.enum_type is not None:
        setattr(message, name, field.enum_type.values_by_name[value].number)
    else:
        setattr(message, name, value)


def _child(message: Any, step: str) -> Any:
    match = _STEP.fullmatch(step)
    assert match is not None
    child = getattr(message, match[1])
    if match[2] is None:
        return child
    index = int(match[2])
    if message.DESCRIPTOR.fields_by_name[match[1]].message_type.GetOptions().map_entry:
        return child[index]
    while len(child) <= index:
        child.add()
    return child[index]


def _instances(config: pb.ModelConfig, index: int) -> Json:
    groups = config.instance_group
    group = groups[index] if groups else pb.ModelInstanceGroup()
    path = f"instance_group[{index}]"
    title = "Instances" if len(groups) < 2 else f"Instances: group {index}"
    kinds = {kind: kind.removeprefix("KIND_") for kind in pb.ModelInstanceGroup.Kind.keys()}  # noqa: SIM118
    return _section(
        title,
        _field(group, "count", path, "" if group.count else "chosen by the backend"),
        _choice(f"{path}.kind", "kind", pb.ModelInstanceGroup.Kind.Name(group.kind), kinds),
    )


def _dynamic(batching: pb.ModelDynamicBatching) -> list[Json]:
    prefix = "dynamic_batching"
    hints = {**_BATCHER_HINTS, "priority_levels": "0: none"}
    if batching.priority_levels:
        hints["default_priority_level"] = ""
    fields = _fields(batching, prefix, hints)
    sections = [_section("Dynamic batcher", *fields)]
    sections.append(_policy("Queue policy", batching.default_queue_policy, f"{prefix}.default_queue_policy"))
    for level in range(1, min(batching.priority_levels, _MAX_LEVELS_SHOWN) + 1):
        known = level in batching.priority_queue_policy
        policy = batching.priority_queue_policy[level] if known else batching.default_queue_policy
        title = f"Queue policy of priority {level}" + ("" if known else " (the default)")
        sections.append(_policy(title, policy, f"{prefix}.priority_queue_policy[{level}]", folded=True))
    return sections


def _policy(title: str, policy: pb.ModelQueuePolicy, prefix: str, folded: bool = False) -> Json:
    action = pb.ModelQueuePolicy.TimeoutAction.Name(policy.timeout_action)
    actions = {"REJECT": "reject the request", "DELAY": "execute it after all others"}
    return _section(
        title,
        _field(policy, "max_queue_size", prefix, "0: no limit"),
        _field(policy, "default_timeout_microseconds", prefix, "0: none"),
        _choice(f"{prefix}.timeout_action", "timeout_action", action, actions),
        _field(policy, "allow_timeout_override", prefix),
        folded=folded,
    )


def _sequence(sequence: pb.ModelSequenceBatching) -> Json:
    prefix = "sequence_batching"
    fields = [_field(sequence, "max_sequence_idle_microseconds", prefix, "1 000 000")]
    if sequence.WhichOneof("strategy_choice") == "oldest":
        fields += _fields(sequence.oldest, f"{prefix}.oldest", {"max_candidate_sequences": "", **_BATCHER_HINTS})
    else:
        hints = {"max_queue_delay_microseconds": "", "minimum_slot_utilization": "0 to 1"}
        fields += _fields(sequence.direct, f"{prefix}.direct", hints)
    return _section("Sequence batcher", *fields)


def _versions(policy: pb.ModelVersionPolicy) -> Json:
    choice = policy.WhichOneof("policy_choice") or "latest"
    choices = {"latest": "the latest", "all": "all", "specific": "specific"}
    fields = [_choice("version_policy", "serve", choice, choices)]
    if choice == "latest":
        fields.append(_field(policy.latest, "num_versions", "version_policy.latest", "1"))
    if choice == "specific":
        fields.append(_field(policy.specific, "versions", "version_policy.specific"))
    return _section("Versions", *fields)


def _scheduler(config: pb.ModelConfig) -> str:
    if config.HasField("dynamic_batching"):
        return "dynamic"
    if config.HasField("sequence_batching"):
        return config.sequence_batching.WhichOneof("strategy_choice") or "direct"
    return "none"


def _set_scheduler(config: pb.ModelConfig, scheduler: str) -> None:
    if scheduler in ("direct", "oldest"):
        getattr(config.sequence_batching, scheduler).SetInParent()
    elif scheduler == "dynamic":
        config.dynamic_batching.SetInParent()
    else:
        config.ClearField("dynamic_batching")
        config.ClearField("sequence_batching")


def _set_versions(config: pb.ModelConfig, choice: str) -> None:
    policy = config.version_policy
    if choice == "latest":
        policy.latest.num_versions = max(1, policy.latest.num_versions)
    elif choice == "specific":
        policy.specific.versions[:] = policy.specific.versions or [1]
    else:
        policy.all.SetInParent()


#: The functions that set choices, which are not single fields, by path.
_CHOICES = {"scheduler": _set_scheduler, "version_policy": _set_versions}


def _section(title: str, *fields: Json, folded: bool = False) -> Json:
    return {"title": title, "fields": list(fields), "folded": folded}


def _fields(message: Any, prefix: str, hints: dict[str, str]) -> list[Json]:
    return [_field(message, name, prefix, hint) for name, hint in hints.items()]


def _field(message: Any, name: str, prefix: str = "", hint: str = "") -> Json:
    path = f"{prefix}.{name}" if prefix else name
    value = getattr(message, name)
    kind = type(value).__name__
    if message.DESCRIPTOR.fields_by_name[name].is_repeated:
        kind, value = "ints", list(value)
    unit = "µs" if name.endswith("_microseconds") else ""
    label = name.removesuffix("_microseconds").replace("_", " ")
    help_key = f"{message.DESCRIPTOR.full_name.removeprefix('inference.')}.{name}"
    return {"path": path, "label": label, "kind": kind, "value": value, "unit": unit, "hint": hint, "help": help_key}


def _choice(path: str, label: str, value: str, choices: dict[str, str]) -> Json:
    entry = {"path": path, "label": label.replace("_", " "), "kind": "choice", "value": value}
    return {**entry, "choices": [list(choice) for choice in choices.items()], "unit": "", "hint": "", "help": ""}
