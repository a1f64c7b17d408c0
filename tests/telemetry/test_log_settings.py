"""The log: Triton's lines, and only those that the settings want."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritonnb.telemetry.log_settings import LogSettings, LogTable, log_handler


@pytest.fixture
def settings(tmp_path: Path) -> LogSettings:
    return LogSettings(log_file=str(tmp_path / "log"))


@pytest.fixture
def log(settings: LogSettings) -> Iterator[logging.Logger]:
    logger = logging.getLogger("test_log_settings")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    handler = log_handler(settings)
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)
    handler.close()


def lines(settings: LogSettings) -> list[str]:
    path = Path(settings.log_file)
    return path.read_text().splitlines() if path.exists() else []


def test_log_line_has_tritons_format(log: logging.Logger, settings: LogSettings) -> None:
    log.error('a "quoted" word\nand a line')
    (line,) = lines(settings)
    head, message = line.split("] ", 1)
    assert re.fullmatch(rf"E\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} {os.getpid()} test_log_settings\.py:\d+", head)
    assert message == r'"a \"quoted\" word\nand a line"'


def test_environment_variable_switches_message_escaping_off(
    settings: LogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "0")
    handler = log_handler(settings)
    handler.handle(logging.LogRecord("x", logging.INFO, "x.py", 1, 'a "quoted" word\nand a line', None, None))
    handler.close()
    first, second = lines(settings)
    assert first.endswith('x.py:1] a "quoted" word')
    assert second == "and a line"


def test_logged_table_begins_below_its_heading(log: logging.Logger, settings: LogSettings) -> None:
    log.info(LogTable(("Model", "Status"), [("a", "READY"), ("long name", 'a "quoted" word\nand a line')]))
    assert lines(settings)[1:] == [
        "+-----------+-----------------+",
        "| Model     | Status          |",
        "+-----------+-----------------+",
        "| a         | READY           |",
        '| long name | a "quoted" word |',
        "|           | and a line      |",
        "+-----------+-----------------+",
        "",
    ]


def test_iso8601_log_format_has_the_date(log: logging.Logger, settings: LogSettings) -> None:
    settings.log_format = "ISO8601"
    log.info("x")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ test_log_settings\.py:\d+\] \"x\"$", lines(settings)[0])


def test_only_requested_outputs_are_written(log: logging.Logger, settings: LogSettings) -> None:
    def written() -> str:
        for write in (log.debug, log.info, log.warning, log.error):
            write("x")
        levels = "".join(line[0] for line in lines(settings))
        Path(settings.log_file).write_text("")
        return levels

    assert written() == "IWE"
    settings.log_info = settings.log_error = False
    assert written() == "W"
    settings.log_warning = False
    settings.log_verbose_level = 1
    assert written() == "I"


@pytest.mark.parametrize(("number", "level"), [(2, 2), (2**32 - 1, 0), (2**31, 0), (2**32 + 1, 1)])
def test_log_level_is_a_nonnegative_32_bit_number(number: int, level: int) -> None:
    settings = LogSettings()
    settings.set_verbose_level(number)
    assert settings.log_verbose_level == level


@pytest.mark.parametrize(
    ("level", "stream"),
    [(logging.DEBUG, "out"), (logging.INFO, "out"), (logging.WARNING, "err"), (logging.ERROR, "err")],
)
def test_console_log_has_warnings_and_errors_on_stderr(
    capsys: pytest.CaptureFixture[str], level: int, stream: str
) -> None:
    handler = log_handler(LogSettings(log_verbose_level=1))
    handler.handle(logging.LogRecord("x", level, "x.py", 1, "message", None, None))
    written = capsys.readouterr()._asdict()
    assert written.pop(stream).endswith('x.py:1] "message"\n')
    assert list(written.values()) == [""]
