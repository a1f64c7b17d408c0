"""Conditions on named quantities, such as ``batch < 4 and queue > 2``: a small language, parsed without `eval`.

.. code-block:: text

    condition  = and { "or" and }
    and        = not { "and" not }
    not        = "not" not | comparison
    comparison = sum [ ("<" | "<=" | ">" | ">=" | "==" | "!=") sum ]
    sum        = product { ("+" | "-") product }
    product    = factor { ("*" | "/") factor }
    factor     = number | "text" | name | "-" factor | "(" condition ")"

A quantity may be undefined, as the size of the batch is unless a batch is sent. Everything that is computed from it is
undefined, and an undefined condition is not true. ``x or y`` is true if one of them is, whatever the other one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.suggestions import did_you_mean

#: What a quantity may be; None is undefined.
Value = float | str | bool | None
_Node = Callable[[Mapping[str, Value]], Value]

_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*|\.\d+)|([A-Za-z_]\w*)|\"([^\"]*)\"|'([^']*)'|(<=|>=|==|!=|[-<>+*/()]))")
_KEYWORDS = ("and", "or", "not")
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_MOST_CHARACTERS, _MOST_NESTED = 500, 20


@dataclass(frozen=True)
class Condition:
    """A condition that was parsed.

    Parameters
    ----------
    text : str
    names : collection of str
        The quantities that it may use.

    Raises
    ------
    InvalidArgumentError
        If the text is not a condition, or uses other names.

    Examples
    --------
    >>> condition = Condition("batch < 4 and queue > 2", {"batch", "queue"})
    >>> condition({"batch": 3, "queue": 5}), condition({"batch": None, "queue": 5})
    (True, False)
    """

    text: str
    names: Collection[str] = field(repr=False)
    _evaluate: _Node = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_evaluate", _Parser(self.text, self.names).parse())

    def __call__(self, quantities: Mapping[str, Value]) -> bool:
        """Whether the condition is true; a quantity that is missing is undefined."""
        return self._evaluate(quantities) is True


class _Parser:
    def __init__(self, text: str, names: Collection[str]) -> None:
        self._text = text
        self._names = names
        self._nesting = 0
        if not isinstance(text, str) or not text.strip() or len(text) > _MOST_CHARACTERS:
            raise InvalidArgumentError(
                f"condition expected a string of 1 to {_MOST_CHARACTERS} characters such as 'batch < 4 and queue > 2', "
                f"got {text!r:.80}"
            )
        self._tokens = list(self._read())
        self._at = 0

    def parse(self) -> _Node:
        node = self._or()
        if self._at < len(self._tokens):
            raise self._error("the end or 'and'")
        return node

    def _read(self) -> Collection[tuple[str, str]]:
        """The tokens as kind (number, name, text or the operator itself) and text."""
        tokens, at, end = [], 0, len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None:
                got = self._text[at:].strip()[0]
                raise InvalidArgumentError(
                    f"condition {self._text!r}: expected a number, a name, a quoted text or an operator, got {got!r}"
                )
            number, name, double, single, symbol = match.groups()
            if number is not None:
                tokens.append(("number", number))
            elif name is not None:
                tokens.append((name, name) if name in _KEYWORDS else ("name", name))
            elif symbol is not None:
                tokens.append((symbol, symbol))
            else:
                tokens.append(("text", double if double is not None else single))
            at = match.end()
        return tokens

    def _take(self, *kinds: str) -> str | None:
        """The next token if it is of a kind; else None."""
        if self._at < len(self._tokens) and self._tokens[self._at][0] in kinds:
            self._at += 1
            return self._tokens[self._at - 1][1]
        return None

    def _error(self, expected: str) -> InvalidArgumentError:
        got = repr(self._tokens[self._at][1]) if self._at < len(self._tokens) else "the end"
        return InvalidArgumentError(f"condition {self._text!r}: expected {expected}, got {got}")

    def _or(self) -> _Node:
        node = self._and()
        while self._take("or"):
            node = _either(node, self._and())
        return node

    def _and(self) -> _Node:
        node = self._not()
        while self._take("and"):
            node = _both(node, self._not())
        return node

    def _not(self) -> _Node:
        negated = False
        while self._take("not"):
            negated = not negated
        node = self._comparison()
        return _negated(node) if negated else node

    def _comparison(self) -> _Node:
        left = self._sum()
        symbol = self._take(*_COMPARISONS)
        return left if symbol is None else _compared(_COMPARISONS[symbol], left, self._sum())

    def _sum(self) -> _Node:
        node = self._product()
        while symbol := self._take("+", "-"):
            node = _calculated(_ARITHMETIC[symbol], node, self._product())
        return node

    def _product(self) -> _Node:
        node = self._factor()
        while symbol := self._take("*", "/"):
            node = _calculated(_ARITHMETIC[symbol], node, self._factor())
        return node

    def _factor(self) -> _Node:
        if (number := self._take("number")) is not None:
            value = float(number)
            return lambda quantities: value
        if (text := self._take("text")) is not None:
            return lambda quantities: text
        if (name := self._take("name")) is not None:
            if name not in self._names:
                known = ", ".join(sorted(self._names))
                hint = did_you_mean(name, self._names)
                raise InvalidArgumentError(
                    f"condition {self._text!r}: expected a quantity ({known}), got '{name}'{hint}"
                )
            return lambda quantities: quantities.get(name)
        if self._take("-"):
            return _calculated(operator.sub, lambda quantities: 0.0, self._nested(self._factor))
        if self._take("("):
            node = self._nested(self._or)
            if not self._take(")"):
                raise self._error("')'")
            return node
        raise self._error("a number, a quantity, a quoted text or '('")

    def _nested(self, parse: Callable[[], _Node]) -> _Node:
        self._nesting += 1
        if self._nesting > _MOST_NESTED:
            raise InvalidArgumentError(
                f"condition {self._text!r:.80}: expected at most {_MOST_NESTED} nested parts, got more"
            )
        node = parse()
        self._nesting -= 1
        return node


def _both(left: _Node, right: _Node) -> _Node:
    def evaluate(quantities: Mapping[str, Value]) -> Value:
        values = left(quantities), right(quantities)
        return False if False in map(_truth, values) else None if None in map(_truth, values) else True

    return evaluate


def _either(left: _Node, right: _Node) -> _Node:
    def evaluate(quantities: Mapping[str, Value]) -> Value:
        values = left(quantities), right(quantities)
        return True if True in map(_truth, values) else None if None in map(_truth, values) else False

    return evaluate


def _negated(node: _Node) -> _Node:
    def evaluate(quantities: Mapping[str, Value]) -> Value:
        truth = _truth(node(quantities))
        return None if truth is None else not truth

    return evaluate


def _compared(compare: Callable[[Any, Any], bool], left: _Node, right: _Node) -> _Node:
    def evaluate(quantities: Mapping[str, Value]) -> Value:
        values = left(quantities), right(quantities)
        if None in values or len({isinstance(value, str) for value in values}) > 1:
            return None
        return compare(*values)

    return evaluate


def _calculated(calculate: Callable[[float, float], float], left: _Node, right: _Node) -> _Node:
    def evaluate(quantities: Mapping[str, Value]) -> Value:
        first, second = left(quantities), right(quantities)
        if not isinstance(first, int | float) or not isinstance(second, int | float):
            return None
        return None if calculate is operator.truediv and not second else calculate(first, second)

    return evaluate


def _truth(value: Value) -> bool | None:
    """The truth of a part of a condition: only comparisons and what is made of them are true or false."""
    return value if isinstance(value, bool) else None
