"""A witness: it cosigns a log only if the log has grown consistently since the last time.

It follows https://c2sp.org/tlog-witness. For each log it keeps the size and root it cosigned last,
in a file that is written before it answers. Two different logs of one name can therefore not both
get its cosignature, even if the log's signing key was stolen.
"""

import base64
import fcntl
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from app.domain import strict_json
from app.domain.errors import ConfigurationError, NoteError, ProofError
from app.domain.trees import merkle
from app.evidence.certificates.checkpoint import Checkpoint, open_checkpoint, origin_of
from app.evidence.certificates.cosignature import WitnessSigner
from app.evidence.certificates.trusted_keys import TrustedKeys, read_trusted_keys
from app.evidence.witnesses.submission import SIZE_MEDIA_TYPE, Submission
from app.storage.files import write_durably


@dataclass(frozen=True)
class Reply:
    """An HTTP answer."""

    status: HTTPStatus
    body: str
    media_type: str = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class _Known:
    size: int
    root: bytes


class Witness:
    """Answers the logs' requests.

    ``state`` is the file of the last cosigned states. ``logs`` are files of the served logs'
    trusted keys, read on every request so that a log may rotate its key.

    Raises:
        ConfigurationError: another process uses the file, or its content is invalid.
    """

    def __init__(
        self,
        signer: WitnessSigner,
        state: Path,
        logs: Sequence[Path],
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._signer = signer
        self._state = state
        self._logs = logs
        self._clock = clock
        self._lock = threading.Lock()
        self._held = state.with_name(state.name + ".lock").open("a", encoding="utf-8")
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._held.close()
            raise ConfigurationError(f"another witness uses {state}") from error
        self._known = self._read()

    def close(self) -> None:
        """Release the file for other processes."""
        self._held.close()

    def add_checkpoint(self, content: bytes) -> Reply:
        """Cosign a checkpoint, or say why not."""
        try:
            asked = Submission.from_bytes(content)
            origin = origin_of(asked.note.encode())
        except NoteError as error:
            return Reply(HTTPStatus.BAD_REQUEST, f"{error}\n")
        trusted = self._trusted(origin)
        if trusted is None:
            return Reply(HTTPStatus.NOT_FOUND, "this log is not known here\n")
        now = self._clock()
        try:
            checkpoint = open_checkpoint(asked.note.encode(), trusted.note_keys(in_use_at=now))
        except NoteError as error:
            return Reply(HTTPStatus.FORBIDDEN, f"{error}\n")
        if asked.old_size > checkpoint.size:
            return Reply(HTTPStatus.BAD_REQUEST, "the old size is larger than the checkpoint's\n")
        with self._lock:
            refusal = self._refusal(asked, checkpoint)
            if refusal is not None:
                return refusal
            self._keep(checkpoint)
        line = self._signer.cosign(checkpoint.text(), time_s=int(now.timestamp()))
        return Reply(HTTPStatus.OK, line)

    def _refusal(self, asked: Submission, checkpoint: Checkpoint) -> Reply | None:
        known = self._known.get(checkpoint.origin, _Known(0, merkle.EMPTY_ROOT))
        size = Reply(HTTPStatus.CONFLICT, f"{known.size}\n", SIZE_MEDIA_TYPE)
        if asked.old_size != known.size:
            return size
        if known.size == checkpoint.size and known.root != checkpoint.root:
            return size
        try:
            merkle.verify_consistency(
                old_size=known.size,
                old_root=known.root,
                new_size=checkpoint.size,
                new_root=checkpoint.root,
                proof=asked.proof,
            )
        except ProofError as error:
            return Reply(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}\n")
        return None

    def _trusted(self, origin: str) -> TrustedKeys | None:
        for path in self._logs:
            trusted = read_trusted_keys(path.read_bytes())
            if trusted.origin == origin:
                return trusted
        return None

    def _read(self) -> dict[str, _Known]:
        with suppress(FileNotFoundError):
            try:
                stored: dict[str, Any] = strict_json.loads(self._state.read_bytes())
                return {
                    origin: _Known(int(known["size"]), base64.b64decode(known["root"]))
                    for origin, known in stored.items()
                }
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigurationError(f"{self._state} is not a witness's file") from error
        return {}

    def _keep(self, checkpoint: Checkpoint) -> None:
        """Record a checkpoint on disk before answering."""
        known = self._known | {checkpoint.origin: _Known(checkpoint.size, checkpoint.root)}
        document = {
            origin: {"size": each.size, "root": base64.b64encode(each.root).decode()}
            for origin, each in known.items()
        }
        write_durably(self._state, [json.dumps(document, indent=1).encode()])
        self._known = known
