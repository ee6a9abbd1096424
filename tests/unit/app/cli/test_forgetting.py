"""Receipts: their file is there before the request, and the only one is never lost."""

import json
import stat
from pathlib import Path

import pytest

from app.cli.commands.forgetting import receipt_file, write_receipt

REQUEST = {"id": "fr_1", "receipt_salt": "c2FsdA==", "records": 1, "state": "accepted"}
IDS = {"record_ids": ["a"], "subject_ids": []}


def test_a_receipt_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with receipt_file(path) as file:
        assert path.exists()
        write_receipt(file, REQUEST, **IDS)
    assert json.loads(path.read_text())["receipt_salt"] == "c2FsdA=="
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_request_that_failed_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(ZeroDivisionError), receipt_file(path):
        raise ZeroDivisionError
    assert not path.exists()


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    with receipt_file(None) as file:
        write_receipt(file, REQUEST, **IDS)
    assert list(tmp_path.iterdir()) == []
