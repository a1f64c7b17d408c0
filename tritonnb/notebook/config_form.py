"""The configuration fields that are used in teaching, as a form: read from a message, written into one.

The form does not handle text; `tritonnb.model_config.text_edit` writes its changes into the text.
"""

from __future__ import annotations

import re
from typing import Any

from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb

Entry = Json

_STEP = re.compile(r"(\w+)(?:\[(\d+)\])?")
_SCHEDULERS = {
    "none": "one request at a time",
    "dynamic": "dynamic batcher",
    "direct": "sequence batcher: direct",
    "oldest": "sequence batcher: oldest",
}
_MAX_LEVELS_SHOWN = 8


def form_of(config: pb.ModelConfig) -> list[Entry]:
    """Return the form of a configuration: sections, each with a title and fields.

    A field has the ``path`` that `set_field` takes, a ``label``, a ``kind`` (``int``, ``float``, ``ints``,
    ``bool``, ``choice``), a ``value``, and if applicable ``choices``, ``unit`` and ``hint``.
    """
    sections = [
        _section(
            "Batches",
            _int(config, "max_batch_size", hint="0: no batching"),
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
    if path == "scheduler":
        _set_scheduler(config, value)
        return
    if path == "version_policy":
        _set_versions(config, value)
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


# --- sections -----------------------------------------------------------------------------------------


def _instances(config: pb.ModelConfig, index: int) -> Entry:
    groups = config.instance_group
    group = groups[index] if groups else pb.ModelInstanceGroup()
    path = f"instance_group[{index}]"
    title = "Instances" if len(groups) < 2 else f"Instances: group {index}"
    kinds = {kind: kind.removeprefix("KIND_") for kind in pb.ModelInstanceGroup.Kind.keys()}  # noqa: SIM118
    return _section(
        title,
        _int(group, "count", path, hint="" if group.count else "chosen by the backend"),
        _choice(f"{path}.kind", "kind", pb.ModelInstanceGroup.Kind.Name(group.kind), kinds),
    )


def _dynamic(batching: pb.ModelDynamicBatching) -> list[Entry]:
    prefix = "dynamic_batching"
    fields = [
        _ints(batching, "preferred_batch_size", prefix, hint="the largest batch"),
        _int(batching, "max_queue_delay_microseconds", prefix, unit="µs"),
        _bool(batching, "preserve_ordering", prefix),
        _int(batching, "priority_levels", prefix, hint="0: none"),
    ]
    if batching.priority_levels:
        fields.append(_int(batching, "default_priority_level", prefix))
    sections = [_section("Dynamic batcher", *fields)]
    sections.append(_policy("Queue policy", batching.default_queue_policy, f"{prefix}.default_queue_policy"))
    for level in range(1, min(batching.priority_levels, _MAX_LEVELS_SHOWN) + 1):
        known = level in batching.priority_queue_policy
        policy = batching.priority_queue_policy[level] if known else batching.default_queue_policy
        title = f"Queue policy of priority {level}" + ("" if known else " (the default)")
        sections.append(_policy(title, policy, f"{prefix}.priority_queue_policy[{level}]", folded=True))
    return sections


def _policy(title: str, policy: pb.ModelQueuePolicy, prefix: str, folded: bool = False) -> Entry:
    action = pb.ModelQueuePolicy.TimeoutAction.Name(policy.timeout_action)
    actions = {"REJECT": "reject the request", "DELAY": "execute it after all others"}
    section = _section(
        title,
        _int(policy, "max_queue_size", prefix, hint="0: no limit"),
        _int(policy, "default_timeout_microseconds", prefix, unit="µs", hint="0: none"),
        _choice(f"{prefix}.timeout_action", "timeout_action", action, actions),
        _bool(policy, "allow_timeout_override", prefix),
    )
    return {**section, "folded": folded}


def _sequence(sequence: pb.ModelSequenceBatching) -> Entry:
    prefix = "sequence_batching"
    fields = [_int(sequence, "max_sequence_idle_microseconds", prefix, unit="µs", hint="1 000 000")]
    if sequence.WhichOneof("strategy_choice") == "oldest":
        prefix, strategy = f"{prefix}.oldest", sequence.oldest
        fields += [
            _int(strategy, "max_candidate_sequences", prefix),
            _ints(strategy, "preferred_batch_size", prefix, hint="the largest batch"),
            _int(strategy, "max_queue_delay_microseconds", prefix, unit="µs"),
            _bool(strategy, "preserve_ordering", prefix),
        ]
    else:
        prefix, strategy = f"{prefix}.direct", sequence.direct
        fields += [
            _int(strategy, "max_queue_delay_microseconds", prefix, unit="µs"),
            _field(strategy, "minimum_slot_utilization", prefix, "float", hint="0 to 1"),
        ]
    return _section("Sequence batcher", *fields)


def _versions(policy: pb.ModelVersionPolicy) -> Entry:
    choice = policy.WhichOneof("policy_choice") or "latest"
    choices = {"latest": "the latest", "all": "all", "specific": "specific"}
    fields = [_choice("version_policy", "serve", choice, choices)]
    if choice == "latest":
        fields.append(_int(policy.latest, "num_versions", "version_policy.latest", hint="1"))
    if choice == "specific":
        fields.append(_ints(policy.specific, "versions", "version_policy.specific"))
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


# --- fields -------------------------------------------------------------------------------------------


def _section(title: str, *fields: Entry) -> Entry:
    return {"title": title, "fields": list(fields), "folded": False}


def _field(message: Any, name: str, prefix: str, kind: str, unit: str = "", hint: str = "") -> Entry:
    path = f"{prefix}.{name}" if prefix else name
    value = getattr(message, name)
    label = name.removesuffix("_microseconds").replace("_", " ")
    help_key = f"{message.DESCRIPTOR.full_name.removeprefix('inference.')}.{name}"
    return {"path": path, "label": label, "kind": kind, "value": value, "unit": unit, "hint": hint, "help": help_key}


def _int(message: Any, name: str, prefix: str = "", unit: str = "", hint: str = "") -> Entry:
    return _field(message, name, prefix, "int", unit, hint)


def _bool(message: Any, name: str, prefix: str) -> Entry:
    return _field(message, name, prefix, "bool")


def _ints(message: Any, name: str, prefix: str, hint: str = "") -> Entry:
    entry = _field(message, name, prefix, "ints", hint=hint)
    return {**entry, "value": list(entry["value"])}


def _choice(path: str, label: str, value: str, choices: dict[str, str]) -> Entry:
    entry = {"path": path, "label": label.replace("_", " "), "kind": "choice", "value": value}
    return {**entry, "choices": [list(choice) for choice in choices.items()], "unit": "", "hint": "", "help": ""}
