"""Lines of logs: text for people, JSON for machines, each with the fields of its request."""

import json
import logging
import subprocess
import sys
import threading

import psycopg
import pytest
import redis
import sqlalchemy

from app.domain.errors import ConflictError
from app.runtime import logs
from app.runtime.logs import DiscreetFormatter, JsonFormatter, describe

SECRET = "record-17"


def _record(message: str, *arguments: object, **more: object) -> logging.LogRecord:
    record = logging.LogRecord("expunge.api", logging.WARNING, "f.py", 1, message, arguments, None)
    record.__dict__.update(more)
    return record


def _caught(error: Exception) -> tuple[object, object, object]:
    try:
        raise error
    except type(error) as caught:
        return type(caught), caught, caught.__traceback__


def _line(record: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert isinstance(line, dict)
    return line


@pytest.fixture(autouse=True)
def _no_request() -> None:
    logs._request.set(None)


def test_a_json_line_says_when_who_and_what() -> None:
    line = _line(_record("%d runs\nwait", 3))
    assert line.pop("time").startswith("20")  # type: ignore[attr-defined]
    assert line == {"level": "warning", "logger": "expunge.api", "message": "3 runs\nwait"}


def test_a_json_line_of_an_exception_has_its_kind_and_its_way_alone() -> None:
    line = _line(_record("it failed", exc_info=_caught(ValueError(SECRET)), exc_text=SECRET))
    assert "ValueError" in str(line["error"])
    assert line["places"] == [str(line["error"]).rpartition(" at ")[2]]
    assert SECRET not in json.dumps(line)


def test_our_own_errors_keep_their_words() -> None:
    line = _line(_record("it failed", exc_info=_caught(ConflictError("the run is over"))))
    assert line["error"] == "the run is over"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (redis.ConnectionError(SECRET), "Redis does not answer"),
        (redis.TimeoutError(SECRET), "Redis does not answer in time"),
        (psycopg.OperationalError(SECRET), "PostgreSQL does not answer"),
        (
            sqlalchemy.exc.OperationalError("", {}, psycopg.errors.DiskFull(SECRET)),
            "PostgreSQL has no room on its disk",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_outage_is_told_as_what_it_is(error: Exception, words: str) -> None:
    assert describe(error) == words


def test_nothing_but_the_fields_that_were_meant_is_shown() -> None:
    line = _line(_record("x", stack_info=SECRET, secret=SECRET, fields={"status": 200}))
    assert line["status"] == 200
    assert SECRET not in json.dumps(line)


@pytest.mark.parametrize("formatter", [JsonFormatter(), DiscreetFormatter("%(message)s")])
def test_lines_carry_the_fields_of_their_request(formatter: logging.Formatter) -> None:
    assert "request_id" not in formatter.format(_record("before"))
    logs.begin_request(request_id="id-of-the-first")
    logs.note(caller="key_1")
    line = formatter.format(_record("during"))
    assert "id-of-the-first" in line
    assert "key_1" in line
    logs.begin_request(request_id="another")
    assert "key_1" not in formatter.format(_record("during the next"))


def test_a_process_field_reaches_all_threads_and_ends_with_its_block() -> None:
    lines: list[str] = []
    with logs.in_process(run="run_1"):
        thread = threading.Thread(target=lambda: lines.append(JsonFormatter().format(_record("x"))))
        thread.start()
        thread.join()
    assert json.loads(lines[0])["run"] == "run_1"
    assert "run" not in _line(_record("after"))


def test_notes_outside_of_a_request_are_dropped() -> None:
    logs.note(caller="key_1")
    assert "caller" not in _line(_record("x"))


_SPOKEN = f"""
import warnings
from app.runtime import logs

logs.configure()
warnings.warn("unknown class {SECRET}")

class Closing:
    def __del__(self):
        raise ValueError("{SECRET}")

Closing()
"""


def test_warnings_and_exceptions_without_a_caller_quote_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SPOKEN], capture_output=True, text=True, check=True
    )
    warned, failed, why = done.stderr.splitlines()
    assert warned.endswith(" expunge UserWarning at <string>:6")
    assert failed.endswith(" expunge an exception had no caller")
    assert why == "internal error: ValueError at <string>:10 (<string>:10)"
    assert SECRET not in done.stderr
