"""Configurations as JSON: unusual input is handled as by protobuf's C++ library."""

from __future__ import annotations

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.model_config.json_config import parse_json

ONEOF = ": invalid value oneof field 'scheduling_choice' is already set. Cannot set '%s' for type oneof"
UTILIZATION = '{"sequence_batching": {"direct": {"minimum_slot_utilization": %s}}}'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"maxBatchSize": "x"}', '(max_batch_size): invalid value "x" for type TYPE_INT32'),
        ('{"maxBatchSize": {}}', ": invalid value Starting an object on a scalar field for type max_batch_size"),
        ('{"max_batch_size": 18446744073709551616}',
         "(max_batch_size): invalid value 1.8446744073709552e+19 for type TYPE_INT32"),
        ('{"input": [{"dims": [{}]}]}',
         "(input[0].dims): invalid value Starting an object on a scalar field for type dims"),
        ('{"input": [{"dataType": "-1"}]}',
         '(input[0].data_type): invalid value "-1" for type type.googleapis.com/inference.DataType'),
        ('{"": 1}', ": Proto fields must have a name."),
        ('{"input": [{"": 1}]}', "(input[0]): invalid value 1 for type type.googleapis.com/inference.ModelInput"),
        ('{"dynamicBatching": 1, "dynamic_batching": {}}', ONEOF % "dynamic_batching"),
        ('{"dynamicBatching": {}, "ensembleScheduling": {}}', ONEOF % "ensembleScheduling"),
        ('{"metric_tags": {"a": []}}',
         "(metric_tags[0].value): invalid value Cannot have repeated items ('a') within a map. for type Map"),
        ('{"metric_tags": {"a": {}}}', "JSON transcoder produced invalid protobuf output."),
        (r'{"backend":"\ud83d"}', 'Missing low surrogate.\n\\ud83d"}\n^'),
        (r'{"backend":"\ude00"}', 'Invalid unicode code point.\n{"backend":"\\ude00"}\n            ^'),
    ],
)  # fmt: skip
def test_errors_equal_those_of_the_cpp_library(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_json(text)
    assert caught.value.message == f"Invalid config override: {complaint}"


@pytest.mark.parametrize(("written", "means"), [('"0.5"', 0.5), ('"0x1p-1"', 0.5), ('"+.5e0"', 0.5), ("1", 1.0)])
def test_floats_may_be_quoted(written: str, means: float) -> None:
    assert parse_json(UTILIZATION % written).sequence_batching.direct.minimum_slot_utilization == means


@pytest.mark.parametrize("written", ["1e39", '"1e400"', '"nan"', '" 1"', '"1_0"', '"inf"'])
def test_invalid_floats_are_refused(written: str) -> None:
    with pytest.raises(InvalidArgumentError, match="for type TYPE_FLOAT"):
        parse_json(UTILIZATION % written)


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("9" * 400, "Number exceeds the range of double."),
        ("9" * 5000, "Number exceeds the range of double."),
        ('"' + "9" * 5000 + '"', "for type TYPE_INT32"),
    ],
)
def test_numbers_of_very_many_digits_are_refused(written: str, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        parse_json(f'{{"max_batch_size": {written}}}')


def test_integer_in_quotation_marks_may_begin_with_zeros() -> None:
    assert parse_json(f'{{"max_batch_size": "+{"0" * 5000}4"}}').max_batch_size == 4


def test_numbers_of_enums_may_be_quoted_if_they_are_known() -> None:
    assert parse_json('{"input": [{"data_type": "11"}]}') == parse_json('{"input": [{"data_type": 11}]}')


def test_surrogate_pair_is_one_character() -> None:
    assert parse_json(r'{"backend": "\ud83d\ude00"}').backend == "😀"
