"""Parses JSON from untrusted senders into plain values."""

import json
from typing import Any

from app.domain.errors import InvalidInputError, UnreadableError
from app.domain.strict_json import RepeatedFieldError, distinct_fields


def read_json(content: bytes, *, most_values: int | None = None) -> Any:  # noqa: ANN401 - JSON
    """Return a document of at most ``most_values`` values, itself and nested ones included.

    Raises:
        UnreadableError: it is not UTF-8, is nested too deeply, has a number that is too long, or an
            object that names a field twice.
        InvalidInputError: it is not JSON, or holds more values.
    """
    try:
        document = json.loads(content, object_pairs_hook=distinct_fields)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"body: {error.msg} at character {error.pos}") from None
    except RepeatedFieldError as error:
        raise UnreadableError("an object of the body names a field twice") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableError("the body cannot be read as JSON") from error
    if most_values is not None:
        _refuse_more(document, most_values)
    return document


def _refuse_more(document: object, most: int) -> None:
    waiting, count = [document], 1
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            count += len(value)
            if count > most:
                raise InvalidInputError(f"body: more than {most} values")
            waiting += value.values() if isinstance(value, dict) else value
