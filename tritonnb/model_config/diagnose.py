"""Diagnosing a configuration: what is wrong, where, and the suggested fix.

Messages are Triton's. Parser errors have a position; for validation errors it is looked up among the fields in the
text. A configuration is rejected with the first problem; an editor also shows the others. Each problem is independent:
it does not disappear when another problem is fixed. A configuration with syntax errors is not checked further.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf import text_format

from tritonnb.core.errors import Problem, TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.parse import ParsedConfig, Position, parse_text
from tritonnb.model_config.suggest import fix_for, fix_for_syntax, hint_for_rule
from tritonnb.model_config.tokens import CLOSING, OPENING, ConfigSyntaxError, Tokenizer, TokenKind, tokens_until
from tritonnb.model_config.validate import check_scheduling, check_tensors

#: More problems than this are not listed.
MOST = 20
#: Errors after which the nesting of the text is unknown, so that further errors would only be consequences.
_ABOUT_NESTING = re.compile(r'Expected "[\]}>{<]"|(?:found|got:?) "?(?:[\]}>{<\[]|"?$)')
#: A backend may complete what is missing.
_MAY_BE_COMPLETED = "must specify"
_LARGEST = 2**31 - 1


def syntax_errors(text: str) -> list[ConfigSyntaxError]:
    r"""Return the syntax errors of a configuration, in order: after each, the rest of its statement is skipped.

    Examples
    --------
    >>> for error in syntax_errors('max_batchsize: 8\nbackend: python\nname: "m"'):
    ...     print(error)
    1:14: Message type "inference.ModelConfig" has no field named "max_batchsize".
    2:10: Expected string, got: python
    """
    raw = text.encode("utf-8", "surrogateescape")
    errors: list[ConfigSyntaxError] = []
    while len(errors) < MOST:
        try:
            parse_text(raw)
        except ConfigSyntaxError as error:
            errors.append(error)
            skipped = _without_statement(raw, error)
            if skipped == raw or _ABOUT_NESTING.search(error.detail):
                break
            raw = skipped
        else:
            break
    return errors


def _without_statement(raw: bytes, error: ConfigSyntaxError) -> bytes:
    """Replace a statement by blanks, up to the end of the error's line, or of the message that contains it."""
    start = error.statement
    tokenizer = Tokenizer(raw[start:])
    first_line = 1 + raw[:start].count(b"\n")
    end, depth = start, 0
    try:
        while (token := tokenizer.next()).kind is not TokenKind.END:
            depth += (token.text in OPENING) - (token.text in CLOSING)
            if depth < 0 or (depth == 0 and first_line - 1 + token.line > error.line and token.text not in CLOSING):
                break
            end = start + token.end
    except ConfigSyntaxError:
        newline = raw.find(b"\n", end)
        end = len(raw) if newline < 0 else newline
    return raw[:start] + re.sub(rb"[^\n]", b" ", raw[start:end]) + raw[end:]


def _violated_rules(config: pb.ModelConfig) -> list[str]:
    """Return the messages of all rules that a configuration violates by itself, without its backend and files.

    Each part of the configuration is checked without the others. In the message of a batcher the field that a message
    is about is then removed, to find the next problem.
    """
    messages: list[str] = []
    for part, check in _parts(config):
        while len(messages) < MOST:
            try:
                check(part)
                break
            except TritonError as error:
                if error.message not in messages and _MAY_BE_COMPLETED not in error.message:
                    messages.append(error.message)
                if not _remove_first(part, _paths(error.message, part)):
                    break
    return messages


def _parts(config: pb.ModelConfig) -> Iterator[tuple[pb.ModelConfig, Callable[[Any], None]]]:
    """Yield the parts that have their own rules, each in a separate configuration, with their check functions."""
    limited = pb.ModelConfig(name=config.name, max_batch_size=config.max_batch_size)
    yield limited, check_scheduling
    # Rules that compare with an invalid limit would only repeat that it is invalid.
    size = config.max_batch_size if config.max_batch_size >= 0 else _LARGEST
    for name in ("dynamic_batching", "sequence_batching"):
        if config.HasField(name):
            part = pb.ModelConfig(name=config.name, max_batch_size=size)
            getattr(part, name).CopyFrom(getattr(config, name))
            yield part, check_scheduling
    for name in ("input", "output"):
        for tensor in getattr(config, name):
            part = pb.ModelConfig(name=config.name, max_batch_size=size, platform=config.platform)
            getattr(part, name).append(tensor)
            yield part, check_tensors


def _remove_first(config: pb.ModelConfig, paths: list[str]) -> bool:
    """Remove the first of the fields that a batcher has; return whether there was one."""
    for path in paths:
        if "[" in path:  # a tensor: the rules about it end with the first violation
            continue
        *parents, name = path.split(".")
        message: Any = config
        for parent in parents:
            message = getattr(message, parent)
        if parents and any(field.name == name for field, _ in message.ListFields()):
            message.ClearField(name)
            return True
    return False


T = TypeVar("T")

#: Errors that the parser raises one token after the token that they concern.
_ABOUT_PREVIOUS_TOKEN = (
    "has no field named",
    "Unknown enumeration value",
    "is specified multiple times",
    "is specified along",
)

#: Which field a validation error concerns; groups of the pattern are inserted into the path.
_FIELD_OF_ERROR: tuple[tuple[str, str], ...] = (
    (r"^dynamic batching preferred size", "dynamic_batching.preferred_batch_size"),
    (r"^sequence batching preferred", "sequence_batching.oldest.preferred_batch_size"),
    (r"^default priority level", "dynamic_batching.default_priority_level"),
    (r"^default priority level", "dynamic_batching.priority_levels"),
    (r"^priority queue policy", "dynamic_batching.priority_queue_policy"),
    (r"'preserve_ordering' is true", "dynamic_batching.preserve_ordering"),
    (r"minimum slot utilization", "sequence_batching.direct.minimum_slot_utilization"),
    (r"^sequence batching (?:control|specifies|must)", "sequence_batching.control_input"),
    (r"control CONTROL_SEQUENCE", "sequence_batching.control_input"),
    (r"^instance group \S+_(\d+) of", "instance_group[{0}]"),
    (r"instance group", "instance_group"),
    (r"unexpected directory name", "name"),
    (r"platform", "platform"),
    (r"backend", "backend"),
    (r"version policy", "version_policy"),
)

#: Which field of a tensor a validation error concerns.
_ASPECTS_OF_TENSORS = ((r"reshape", "reshape"), (r"\bdim(?:s|ensions?)?\b", "dims"), (r"data[_-]type", "data_type"))


@dataclass(frozen=True, slots=True)
class CheckedText(Generic[T]):
    """The result of `diagnose`.

    Attributes
    ----------
    problems : list of Problem
    parsed : ParsedConfig or None
        None if the text cannot be parsed.
    checked : T or None
        The result of ``check``; None if there are problems.
    """

    problems: list[Problem]
    parsed: ParsedConfig | None = None
    checked: T | None = None


def diagnose(text: str, check: Callable[[pb.ModelConfig], T], name: str = "") -> CheckedText[T]:
    """Parse and check a configuration.

    Parameters
    ----------
    text : str
    check : callable
        ``check(config)`` raises `TritonError` for a configuration that a server would reject.
    name : str, optional
        The name of the model, which the text may omit.

    Returns
    -------
    CheckedText
        With all problems, first the problem that a server reports.
    """
    if errors := syntax_errors(text):
        return CheckedText([_problem_of_syntax(text, error) for error in errors])
    parsed = parse_text(text)
    try:
        checked = check(parsed.config)
    except TritonError as error:
        first = problem_of(error.message, text, parsed, error.hint)
        return CheckedText([first, *_further_problems(first, text, parsed, name)], parsed)
    return CheckedText([], parsed, checked)


def _further_problems(first: Problem, text: str, parsed: ParsedConfig, name: str) -> Iterator[Problem]:
    """Yield the problems that remain when the first is fixed; only those with a position in the text."""
    config = copy.deepcopy(parsed.config)
    config.name = config.name or name
    for message in _violated_rules(config):
        problem = problem_of(message, text, parsed)
        if problem.line and message not in first.message:
            yield problem


def read_text(text: str) -> ParsedConfig:
    """Parse the text of a *config.pbtxt*; errors carry a `Problem` with position and fix.

    Raises
    ------
    ConfigSyntaxError
        With line, column, and the message that Triton logs.

    Examples
    --------
    >>> try:
    ...     read_text("max_batchsize: 8")
    ... except ConfigSyntaxError as error:
    ...     print(error.hint, error.problems[0].fix.text)
    did you mean 'max_batch_size'? max_batch_size: 8
    """
    try:
        return parse_text(text)
    except ConfigSyntaxError as error:
        error.add_problems([_problem_of_syntax(text, error)])
        raise


def _problem_of_syntax(text: str, error: ConfigSyntaxError) -> Problem:
    line, column = error.line, error.column
    if any(part in error.detail for part in _ABOUT_PREVIOUS_TOKEN):
        for previous in tokens_until(text, line, column)[:-1]:
            line, column = previous.line, previous.column
    fix = fix_for_syntax(text, error)
    return Problem(error.message, line, column, fix, "" if fix is None else fix.hint)


@contextmanager
def problem_context(config: pb.ModelConfig, text: str | None = None) -> Iterator[None]:
    """Context manager that adds the `Problem` of a rejected configuration to the error.

    Parameters
    ----------
    config : inference.ModelConfig
        As the user wrote it.
    text : str, optional
        The text that it was read from. Without it the problem has no position.
    """
    try:
        yield
    except TritonError as error:
        written = text_format.MessageToString(config) if text is None else text
        problem = problem_of(error.message, written, parse_text(written), error.hint)
        error.add_problems([problem if text is not None else dataclasses.replace(problem, line=0, column=0)])
        raise


def problem_of(message: str, text: str, parsed: ParsedConfig, hint: str = "") -> Problem:
    """Return the `Problem` for a validation error, with its position in the text."""
    line, column = position_of(message, parsed.config, parsed.positions)
    fix = fix_for(text, parsed.config, message)
    return Problem(message, line, column, fix, hint or (hint_for_rule(message) if fix is None else fix.hint))


def position_of(message: str, config: pb.ModelConfig, positions: Mapping[str, Position]) -> Position:
    """Return the line and column of the field of a validation error; (0, 0) if there is none."""
    for path in _paths(message, config):
        for written, position in positions.items():
            if written == path or written.startswith((f"{path}[", f"{path}.")):
                return position
    return 0, 0


def _paths(message: str, config: pb.ModelConfig) -> list[str]:
    quoted = re.findall(r"'([^']+)'", message)
    aspect = next((field for pattern, field in _ASPECTS_OF_TENSORS if re.search(pattern, message)), "name")
    tensors = [
        f"{kind}[{index}].{field}"
        for kind in ("input", "output")
        if kind in message
        for index, tensor in enumerate(getattr(config, kind))
        if tensor.name in quoted
        for field in dict.fromkeys((aspect, "name"))
    ]
    patterns = [
        path.format(*match.groups()) for pattern, path in _FIELD_OF_ERROR if (match := re.search(pattern, message))
    ]
    fields = [word for word in quoted if word in config.DESCRIPTOR.fields_by_name]
    return [*tensors, *fields, *patterns]
