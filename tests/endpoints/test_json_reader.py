"""JSON is read as Triton's JSON library reads it: what is accepted, and the error for everything else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.laws import law
from tritonnb.core.errors import InternalError
from tritonnb.endpoints.http import json_reader
from tritonnb.endpoints.http.json_reader import _PYTHON_READER, _read_as_rapidjson, parse

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("document", "reason", "offset"),
    [
        ("", "The document is empty.", 0),
        ("  ", "The document is empty.", 2),
        ("\0", "The document is empty.", 0),
        ("{", "Missing a name for object member.", 1),
        ('{"a":1,}', "Missing a name for object member.", 7),
        ("{a:1}", "Missing a name for object member.", 1),
        ('{"a" 1}', "Missing a colon after a name of object member.", 5),
        ('{"a":1', "Missing a comma or '}' after an object member.", 6),
        ('{"a":1 "b":2}', "Missing a comma or '}' after an object member.", 7),
        ("[1,2", "Missing a comma or ']' after an array element.", 4),
        ("[1 2]", "Missing a comma or ']' after an array element.", 3),
        ("[1,]", "Invalid value.", 3),
        ("[tru]", "Invalid value.", 4),
        ("[nan]", "Invalid value.", 2),
        ("[Infinit]", "Invalid value.", 8),
        ("[+1]", "Invalid value.", 1),
        ("[.5]", "Invalid value.", 1),
        ("[-]", "Invalid value.", 2),
        ("[01]", "Missing a comma or ']' after an array element.", 2),
        ("[1.]", "Miss fraction part in number.", 3),
        ("[1e]", "Miss exponent in number.", 3),
        ("[1e+]", "Miss exponent in number.", 4),
        ("[1e309]", "Number too big to be stored in double.", 1),
        ("[0e309]", "Number too big to be stored in double.", 1),
        ("[1E+0400]", "Number too big to be stored in double.", 1),
        ("[1" + "0" * 309 + "]", "Number too big to be stored in double.", 1),
        ("[1" + "0" * 309 + ".5]", "Number too big to be stored in double.", 1),
        ('["a', "Missing a closing quotation mark in string.", 3),
        ('["a\0b"]', "Missing a closing quotation mark in string.", 3),
        ('["\n"]', "Invalid escape character in string.", 2),
        ('["\\q"]', "Invalid escape character in string.", 2),
        ('["\\u12G4"]', "Incorrect hex digit after \\u escape in string.", 2),
        ('["\\ud800"]', "The surrogate pair in string is invalid.", 2),
        ('["\\udc00"]', "The surrogate pair in string is invalid.", 2),
        ('["\\ud800\\u0041"]', "The surrogate pair in string is invalid.", 2),
        ("{}x", "The document root must not be followed by other values.", 2),
        ('{"é": x}', "Invalid value.", 7),
    ],
)
def test_error_has_the_reason_and_the_offset(document: str, reason: str, offset: int) -> None:
    with pytest.raises(InternalError) as raised:
        parse(document.encode())
    assert raised.value.message == f"failed to parse the request JSON buffer: {reason} at {offset}"


@pytest.mark.parametrize(
    ("document", "value"),
    [
        (" \t\r\n{ } \n", {}),
        ("[Inf, -Inf, Infinity, -Infinity]", [math.inf, -math.inf, math.inf, -math.inf]),
        ("[0.0001e312]", [1e308]),
        ("[1e-400, 1e0000000000001]", [0.0, 10.0]),
        ('"\\ud83d\\ude00\\u00e9"', "😀é"),
        ('"😀 \\ud83d\\ude00 \\\\ud800"', "😀 😀 \\ud800"),
        ('{"a":1,"a":2}', {"a": 1}),
        ('"a\\u0000b"', "a\0b"),
        ("\ufeff[1]", [1]),
        ("[1]\0rest", [1]),
        ('{"Inf": Inf, "\\\\": -Inf, "\\"Inf": "Inf"}', {"Inf": math.inf, "\\": -math.inf, '"Inf': "Inf"}),
        ("1" + "0" * 308, 10**308),
        ('"e309 0e000"', "e309 0e000"),
    ],
)
def test_json_document_is_accepted_with_its_value(document: str, value: object) -> None:
    assert parse(document.encode()) == value


def test_nan_is_accepted_as_a_number() -> None:
    assert repr(parse(b"NaN")) == "nan"


def test_non_utf8_bytes_become_surrogate_escapes() -> None:
    assert parse(b'"\xff\xc3"') == b"\xff\xc3".decode("utf-8", "surrogateescape")
    assert parse(b'["\xff", Inf]') == [b"\xff".decode("utf-8", "surrogateescape"), math.inf]
    with pytest.raises(InternalError, match=r"Invalid value\. at 5$"):
        parse(b'["\xff",\xc3]')


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [400, 250_000])
def test_deeply_nested_documents_are_accepted(opening: str, depth: int) -> None:
    deep = opening * depth + '"]"' + ("]" if opening == "[" else "}") * depth
    document: Any = parse(f'{{"before":1,"deep":{deep},"after":[{deep},2]}}'.encode())
    assert (document["before"], document["after"][1]) == (1, 2)
    for _ in range(200):
        for member in (document["deep"], document["after"][0]):
            assert isinstance(member, list if opening == "[" else dict)


def test_errors_next_to_deeply_nested_values_have_the_correct_offset() -> None:
    deep = b"[" * 100_000
    for text, offset in ((deep + b"]" * 99_999, 199_999), (b'{"a":' + deep + b"]" * 100_000 + b",}", 200_006)):
        with pytest.raises(InternalError, match=rf" at {offset}$"):
            parse(text)


@pytest.mark.slow
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
@law(200)
def test_both_readers_agree_on_every_document(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert parse(text.encode()) == read_as_rapidjson(text.encode()) == json.loads(text)


def read_as_rapidjson(document: bytes) -> object:
    return _read_as_rapidjson(document, _PYTHON_READER, 0)


def outcome(read: Callable[[bytes], object], document: bytes) -> str:
    """The value that a reader returns, with its types, or its error."""
    try:
        value = read(document)
    except InternalError as error:
        return error.message
    return f"{value!r} {getattr(value, 'names', None)}"


#: Parts of documents; some sequences of them are valid, and name a member twice.
TOKENS = [
    *'{}[]:, "\\01-.e\0\né', '"a"', '"b"', '"a":', '{"a":1', ',"a":2}', "1.5", "1e309", "true", "null", "NaN", "Inf",
    "\ufeff", "9" * 309,
]  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.sampled_from(TOKENS), max_size=8).map(lambda tokens: "".join(tokens).encode()))
@law(2000)
@example(b'{"a":{"b":1,"b":"c"},"a":[]}')
@example(b"[-NaN]")
@example(b'[{"a":"a"},{"a":1,"a":2}]')
def test_quick_reader_accepts_only_what_rapidjson_accepts_with_the_same_value(document: bytes) -> None:
    assert outcome(parse, document) == outcome(read_as_rapidjson, document)


@pytest.mark.slow
@given(VALUES, st.data())
@law(200)
def test_error_offset_of_truncated_document_is_within_it(value: object, data: st.DataObject) -> None:
    text = json.dumps({"member": value}).encode()
    end = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(InternalError) as raised:
        parse(text[:end])
    assert int(raised.value.message.rpartition(" ")[2]) <= end


def test_unfinished_string_in_a_deep_document_is_reported_as_by_triton() -> None:
    for depth in (300, 1000):
        with pytest.raises(InternalError, match=rf"Missing a closing quotation mark in string. at {depth + 2001}$"):
            parse(b"[" * depth + b'"' + b'\\"' * 1000)


@given(st.lists(st.sampled_from(["[", '{"a":', '"]"', r'"\"["', r'"\\"', "1,", " "]), max_size=30), st.integers(1, 40))
def test_deep_values_are_found_in_slices_of_any_size(parts: list[str], size: int) -> None:
    raw = "".join(parts).encode()
    outcomes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reader, "_MAX_DEPTH", 3)
        patch.setattr(json_reader, "_has_few_brackets", lambda raw: False)
        for slice_size in (size, 1 << 18):
            patch.setattr(json_reader, "_SLICE", slice_size)
            outcomes.append((json_reader._without_deep_values(raw), json_reader._may_be_deep(raw)))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) == len(raw)


def test_deep_document_does_not_exceed_the_recursion_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, destructors of objects that the garbage collector finds in the meantime would fail."""
    read: list[str] = []

    class Reader:
        def decode(self, text: str) -> object:
            read.append(text)
            return json.loads(text)

    monkeypatch.setattr(json_reader, "_PYTHON_READER", Reader())
    deep, wide = "[" * 5000 + "]" * 5000, "[" + ",".join(["[1]"] * 5000) + "]"
    parse(deep.encode())
    assert [text.count("[") for text in read] == [256]
    assert parse(wide.encode()) == [[1]] * 5000
    assert read[1] == wide
