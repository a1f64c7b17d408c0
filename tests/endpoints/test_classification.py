"""The classification extension: the best classes of an output."""

from __future__ import annotations

import numpy as np
import pytest

from tritonnb.core.datatypes import BOOL, BYTES, FP16, FP32, INT8, UINT64, DataType
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.classification import classify

SCORES = np.array([[0.1, 0.7, 0.2], [3.0, -1.0, 1e10]], np.float32)


def test_classes_are_sorted_by_value_with_index_and_label() -> None:
    classes = classify(SCORES, FP32, 2, ["cat", "dog"], batching=True)
    assert classes.tolist() == [[b"0.700000:1:dog", b"0.200000:2"], [b"10000000000.000000:2", b"3.000000:0:cat"]]


def test_classes_with_equal_scores_are_ordered_by_index() -> None:
    assert classify(np.array([1, 3, 2, 3, 3]), INT8, 4, None, batching=False).tolist() == [
        b"3:1",
        b"3:3",
        b"3:4",
        b"2:2",
    ]


def test_class_count_above_the_number_of_classes_returns_all() -> None:
    for count in (9, 2**32 + 1):
        assert classify(SCORES, FP32, count, None, batching=True).shape == (2, 3)


def test_output_without_batching_is_one_list() -> None:
    assert classify(SCORES, FP32, 1, None, batching=False).tolist() == [b"10000000000.000000:5"]


def test_dimensions_after_the_batch_are_flattened() -> None:
    assert classify(np.arange(8).reshape(2, 2, 2), INT8, 1, None, batching=True).tolist() == [[b"3:3"], [b"7:3"]]


def test_integers_are_written_without_exponent() -> None:
    assert classify(np.array([2**64 - 1, 5], np.uint64), UINT64, 2, None, batching=False).tolist() == [
        b"18446744073709551615:0",
        b"5:1",
    ]


@pytest.mark.parametrize("datatype", [BYTES, BOOL, FP16])
def test_classification_is_refused_for_other_datatypes(datatype: DataType) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"due to unsupported type '{datatype.name}'$"):
        classify(np.zeros((1, 2), datatype.numpy), datatype, 1, None, batching=True)


@pytest.mark.parametrize(("shape", "count"), [((2, 600_000), 600_000), ((1, 1_000_001), 1)])
def test_excessive_class_count_is_refused(shape: tuple[int, ...], count: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^classification output tensor too large$"):
        classify(np.zeros(shape, np.float32), FP32, count, None, batching=True)
