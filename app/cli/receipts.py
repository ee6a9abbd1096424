"""The file of a receipt: it is opened before the request is sent, so that it can be written."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from app.client.connection import Json
from app.domain.errors import InvalidInputError


@contextmanager
def receipt_file(path: Path | None) -> Iterator[FileIO | None]:
    """Open a new file that only the user can read; if nothing is written, it is removed again.

    Raises:
        InvalidInputError: there is something in the file already, maybe the only receipt of another
            request.
        OSError: it cannot be written.
    """
    if path is None:
        yield None
        return
    with FileIO(path, "w", opener=_open_private) as file:
        if os.fstat(file.fileno()).st_size > 0:
            raise InvalidInputError(f"{path} exists: give another --receipt, or move that one away")
        try:
            yield file
        finally:
            if os.fstat(file.fileno()).st_size == 0 and path.is_file():
                path.unlink(missing_ok=True)


def write_receipt(
    file: FileIO | None, request: Json, *, record_ids: list[str], subject_ids: list[str]
) -> None:
    """Write the receipt of an accepted request, to the disk, if there is a file for it.

    Raises:
        OSError: it cannot be written in full; the file is empty.
    """
    if file is None:
        return
    document = {
        "request": request["id"],
        "receipt_salt": request["receipt_salt"],
        "records": request["records"],
        "record_ids": record_ids,
        "subject_ids": subject_ids,
    }
    rest = memoryview(json.dumps(document, indent=1).encode())
    try:
        while rest:
            rest = rest[file.write(rest) :]
        if file.seekable():  # a pipe has no disk
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            file.truncate(0)
        error.filename = file.name
        raise


def _open_private(path: str, _flags: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
