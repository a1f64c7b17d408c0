"""Conditions on named quantities, such as ``batch < 4 and queue > 2``: a part of Python's expressions.

Numbers, quoted texts, names, ``+ - * /``, comparisons, ``and``, ``or``, ``not`` and brackets are allowed. Python's
parser reads the text; nothing is compiled or executed.

A quantity may be undefined, as the size of the batch is unless a batch is sent. Everything that is computed from it is
undefined, and an undefined condition is not true. ``x or y`` is true if one of them is, even if the other is undefined.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.suggestions import did_you_mean

#: What a quantity may be; None is undefined.
Value = float | str | bool | None

_COMPARISONS: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_ARITHMETIC: Mapping[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_ALLOWED = (
    ast.BinOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Load, ast.Name, ast.UnaryOp, ast.And, ast.Or, ast.Not,
    ast.USub, *_COMPARISONS, *_ARITHMETIC,
)  # fmt: skip
_MAX_CHARACTERS, _MAX_DEPTH = 500, 20


@dataclass(frozen=True)
class Condition:
    """A condition that was parsed.

    Parameters
    ----------
    text : str
    names : collection of str
        The quantities that it may use.
    texts : mapping of str to collection of str, optional
        The quantities that are texts, and the texts that each of them may be. With them, the others are numbers.

    Raises
    ------
    InvalidArgumentError
        If the text is not a condition, uses other names, or compares a quantity with a value that it never has.

    Examples
    --------
    >>> condition = Condition("batch < 4 and queue > 2", {"batch", "queue"})
    >>> condition({"batch": 3, "queue": 5}), condition({"batch": None, "queue": 5})
    (True, False)
    """

    text: str
    names: Collection[str] = field(repr=False)
    texts: Mapping[str, Collection[str]] = field(default_factory=dict, repr=False)
    _expression: ast.expr = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_expression", _parse(self.text, self.names))
        if self.texts:
            _require_possible(self._expression, self.text, self.texts)

    def __call__(self, quantities: Mapping[str, Value]) -> bool:
        """Return whether the condition is true; a quantity that is missing is undefined."""
        return _evaluate(self._expression, quantities) is True


def _parse(text: str, names: Collection[str]) -> ast.expr:
    if not isinstance(text, str) or not text.strip() or len(text) > _MAX_CHARACTERS:
        raise InvalidArgumentError(
            f"condition expected a string of 1 to {_MAX_CHARACTERS} characters such as 'batch < 4 and queue > 2', "
            f"got {text!r:.80}"
        )
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise InvalidArgumentError(f"condition {text!r:.80}: expected a condition, got an error: {reason}") from None
    _require_allowed(expression, text, names, _MAX_DEPTH)
    return expression


def _require_allowed(node: ast.AST, text: str, names: Collection[str], depth: int) -> None:
    if depth == 0:
        raise InvalidArgumentError(f"condition {text!r:.80}: expected at most {_MAX_DEPTH} nested parts, got more")
    if isinstance(node, ast.Name) and node.id not in names:
        known, hint = ", ".join(sorted(names)), did_you_mean(node.id, names)
        raise InvalidArgumentError(f"condition {text!r}: expected a quantity ({known}), got '{node.id}'{hint}")
    if not isinstance(node, _ALLOWED) or (isinstance(node, ast.Constant) and type(node.value) not in (int, float, str)):
        got = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
        raise InvalidArgumentError(
            f"condition {text!r}: expected numbers, quoted texts, quantities, + - * /, comparisons, and, or, not; "
            f"got {got}"
        )
    for child in ast.iter_child_nodes(node):
        _require_allowed(child, text, names, depth - 1)


def _require_possible(expression: ast.expr, text: str, texts: Mapping[str, Collection[str]]) -> None:
    """Reject a comparison of a quantity with a constant that it never equals."""
    for comparison in (node for node in ast.walk(expression) if isinstance(node, ast.Compare)):
        for pair in pairwise([comparison.left, *comparison.comparators]):
            for name, constant in (pair, pair[::-1]):
                if isinstance(name, ast.Name) and isinstance(constant, ast.Constant):
                    _require_value(name.id, constant.value, text, texts)


def _require_value(name: str, value: object, text: str, texts: Mapping[str, Collection[str]]) -> None:
    if name not in texts and isinstance(value, str):
        raise InvalidArgumentError(f"condition {text!r}: {name} expected a number to compare it with, got {value!r}")
    if name in texts and value not in texts[name]:
        hint = did_you_mean(value, texts[name]) if isinstance(value, str) else ""
        raise InvalidArgumentError(
            f"condition {text!r}: {name} expected one of {', '.join(map(repr, texts[name]))}, got {value!r}{hint}"
        )


def _evaluate(node: ast.expr, quantities: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=float() | int() | str() as constant):
            return constant
        case ast.Name(id=name):
            return quantities.get(name)
        case ast.BoolOp(op=op, values=parts):
            return _combined([_truth(_evaluate(part, quantities)) for part in parts], isinstance(op, ast.Or))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            truth = _truth(_evaluate(operand, quantities))
            return None if truth is None else not truth
        case ast.UnaryOp(operand=operand):
            value = _evaluate(operand, quantities)
            return -value if isinstance(value, int | float) else None
        case ast.BinOp(left=left, op=op, right=right):
            return _calculated(_ARITHMETIC[type(op)], _evaluate(left, quantities), _evaluate(right, quantities))
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = pairwise([_evaluate(part, quantities) for part in (left, *others)])
            return _combined([_compared(_COMPARISONS[type(op)], *pair) for op, pair in zip(ops, values, strict=True)])
    raise AssertionError(f"not a part of a condition: {ast.dump(node)}")


def _combined(truths: list[bool | None], is_or: bool = False) -> bool | None:
    """Return the value of ``and`` or ``or``: one part may decide it although others are undefined."""
    return is_or if is_or in truths else None if None in truths else not is_or


def _compared(compare: Callable[[Any, Any], bool], left: Value, right: Value) -> bool | None:
    if left is None or right is None or isinstance(left, str) != isinstance(right, str):
        return None
    return compare(left, right)


def _calculated(calculate: Callable[[float, float], float], left: Value, right: Value) -> float | None:
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    return None if calculate is operator.truediv and not right else calculate(left, right)


def _truth(value: Value) -> bool | None:
    """Return the truth of a part: only comparisons and their combinations are true or false."""
    return value if isinstance(value, bool) else None
