"""The fields of a request's JSON: read by name, with OpenAI's rules for unknown ones and the ranges of values."""

from __future__ import annotations

import json
from typing import Any

from tritonnb.endpoints.openai.errors import OpenAiError
from tritonnb.endpoints.openai.request_fields import RequestFields

_TYPE_NAMES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class Fields:
    """The fields of a request; a field that is null counts as absent.

    Parameters
    ----------
    body : bytes
    fields : RequestFields
        Those of the route.

    Raises
    ------
    OpenAiError
        If the body is not a JSON object, or has other fields.
    """

    def __init__(self, body: bytes, fields: RequestFields) -> None:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise OpenAiError(f"We could not parse the JSON body of your request: {error}") from None
        if not isinstance(document, dict):
            raise OpenAiError(f"expected a JSON object, got {_type_name(document)}")
        self._values = {name: value for name, value in document.items() if value is not None}
        for name, value in self._values.items():
            if name in fields.unsupported:
                if value not in fields.unsupported[name]:
                    raise OpenAiError(f"'{name}' is not supported by this server", name, code="unsupported_parameter")
            elif name not in fields.known:
                raise OpenAiError(f"Unrecognized request argument supplied: {name}", name, code="unknown_parameter")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str, types: tuple[type, ...], default: Any = None) -> Any:
        """A field of one of some types; the default if it is absent.

        Raises
        ------
        OpenAiError
            If it has another type.
        """
        if name not in self._values:
            return default
        value = self._values[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise self._wrong(name, " or ".join(_TYPE_NAMES[kind] for kind in types), _type_name(value))
        return value

    def required(self, name: str, types: tuple[type, ...]) -> Any:
        """A field that must be there.

        Raises
        ------
        OpenAiError
            If it is absent, or has another type.
        """
        if name not in self._values:
            raise OpenAiError(f"you must provide a '{name}' parameter", name, code="missing_required_parameter")
        return self.value(name, types)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        """An integer in a range.

        Raises
        ------
        OpenAiError
            If it is none, or out of range.
        """
        value = self.value(name, (int,), default)
        if value is not None and not low <= value <= high:
            raise self._wrong(name, f"an integer from {low} to {high}", value)
        return None if value is None else int(value)

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number in a range.

        Raises
        ------
        OpenAiError
            If it is none, or out of range.
        """
        value = self.value(name, (int, float))
        if value is not None and not low <= value <= high:
            raise self._wrong(name, f"a number from {low:g} to {high:g}", value)
        return None if value is None else float(value)

    def strings(self, name: str, most: int) -> list[str]:
        """A string, or a list of strings.

        Raises
        ------
        OpenAiError
            If it is neither, or has more than ``most`` strings.
        """
        value = self.value(name, (str, list), [])
        values = [value] if isinstance(value, str) else value
        if not all(isinstance(entry, str) for entry in values) or len(values) > most:
            raise self._wrong(name, f"a string or an array of at most {most} strings", _type_name(value))
        return list(values)

    def _wrong(self, name: str, expected: str, got: object) -> OpenAiError:
        return OpenAiError(f"Invalid '{name}': expected {expected}, got {got}", name, code="invalid_value")


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__)
