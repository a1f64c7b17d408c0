"""Version directories, and the versions that the version policy selects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritonnb.model_config.model_files import select_versions, version_directories
from tritonnb.model_config.parse import parse_text


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("latest { num_versions: 1 }", [10]),
        ("latest { num_versions: 2 }", [3, 10]),
        ("latest { num_versions: 9 }", [1, 3, 10]),
        ("latest { }", []),
        ("all { }", [1, 3, 10]),
        ("", [1, 3, 10]),
        ("specific { versions: [ 3, 3, 4, 1 ] }", [1, 3]),
        ("specific { versions: 4 }", []),
    ],
)
def test_versions_that_a_policy_selects_from_1_3_10(policy: str, served: list[int]) -> None:
    config = parse_text(f"version_policy {{ {policy} }}").config
    assert select_versions(config, [10, 1, 3]) == served


def test_only_plain_decimal_numbers_are_versions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("1", "0", "10", "01", "2x", "-1", "abc", "9223372036854775807", "9223372036854775808", "warmup"):
        (tmp_path / name).mkdir()
    (tmp_path / "5").touch()
    assert version_directories(tmp_path) == [0, 1, 10, 9223372036854775807]
    assert [record.getMessage() for record in caplog.records] == [
        "ignore version directory '-1' which fails to convert to integral number",
        "ignore version directory '01' which contains leading zeros in its directory name",
        "ignore version directory '2x' which fails to convert to integral number",
        "ignore version directory '9223372036854775808' which fails to convert to integral number",
        "ignore version directory 'abc' which fails to convert to integral number",
    ]
