"""Asks the log's witnesses for cosignatures (C2SP tlog-witness), in the background.

Each witness has its own thread, so a slow one delays neither publication, which never waits for
witnesses, nor the other witnesses. Several processes may ask at once; a cosignature is stored once.
"""

import base64
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from app.evidence.certificates.note import WitnessKey, is_cosignature
from app.evidence.log import cosignatures, trees
from app.evidence.log.cosignatures import Uncosigned
from app.runtime.database import Database
from app.runtime.logs import describe
from app.runtime.outgoing import client_options
from app.runtime.processes.stopping import Repeated

PATH: Final = "/add-checkpoint"
SIZE_MEDIA_TYPE: Final = "text/x.tlog.size"
_log = logging.getLogger("expunge.witnesses")
_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 16 * 1024
_LONGEST_DELAY_S = 60.0
_STOP_S = 1.0


class WitnessError(Exception):
    """A witness did not cosign."""


@dataclass(frozen=True)
class _Answer:
    status: int
    media_type: str
    text: str


class CosignatureCollector:
    """Keeps the newest checkpoint cosigned by one witness, at a URL without ``/add-checkpoint``."""

    def __init__(
        self,
        database: Database,
        url: str,
        witness: WitnessKey,
        *,
        poll_interval_s: float = 0.25,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._database = database
        self._url = url.rstrip("/") + PATH
        self._witness = witness
        self._timeout_s = timeout_s
        self._rounds = Repeated(
            "witness",
            self.tick,
            pause_s=poll_interval_s,
            longest_s=_LONGEST_DELAY_S,
            on_failure=self._tell,
        )

    def start(self) -> None:
        """Ask in the background until ``stop``."""
        self._rounds.start()

    def stop(self) -> None:
        """Stop asking."""
        self._rounds.stop(_STOP_S)

    def tick(self) -> bool:
        """Have the newest checkpoint cosigned, or raise ``WitnessError``; return False if it is."""
        with self._database.transaction() as session:
            wanted = cosignatures.uncosigned(session, self._witness)
        if wanted is None:
            return False
        answer = self._ask(wanted, wanted.old_size)
        if answer.status == httpx.codes.CONFLICT and answer.media_type == SIZE_MEDIA_TYPE:
            size = answer.text.removesuffix("\n")
            if size == answer.text or not (size.isascii() and size.isdigit()):
                raise WitnessError("it names no size")
            known = int(size[:19])
            if known > wanted.size:
                raise WitnessError("it knows a longer log: was this one restored from a backup?")
            if known == wanted.old_size:
                raise WitnessError("it knows another log of this name")
            answer = self._ask(wanted, known)
        if answer.status != httpx.codes.OK:
            raise WitnessError(f"it answered {answer.status}")
        lines = answer.text.splitlines(keepends=True)  # those by other keys are skipped
        line = next((x for x in lines if is_cosignature(x, wanted.note, self._witness)), None)
        if line is None:
            raise WitnessError("its answer holds no cosignature of its own")
        with self._database.transaction() as session:
            cosignatures.store(session, self._witness, size=wanted.size, line=line)
        return True

    def _ask(self, wanted: Uncosigned, old_size: int) -> _Answer:
        with self._database.transaction() as session:
            proof = trees.consistency_proof(session, old_size=old_size, new_size=wanted.size)
        content = b""
        body = submission(old_size, proof, wanted.note)
        options = client_options(self._url) | {"timeout": self._timeout_s}
        with httpx.stream("POST", self._url, content=body, **options) as answer:
            for part in answer.iter_bytes():
                content += part
                if len(content) > _MAX_ANSWER_BYTES:
                    raise WitnessError("its answer is too long")
            media_type = answer.headers.get("content-type", "").partition(";")[0].strip()
            return _Answer(
                answer.status_code, media_type, content.decode("utf-8", errors="replace")
            )

    def _tell(self, error: Exception) -> None:
        why = str(error) if isinstance(error, WitnessError) else describe(error)
        _log.warning("witness %s has not cosigned: %s", self._witness.name, why)


def submission(old_size: int, proof: Sequence[bytes], note: str) -> bytes:
    """Return the body that a log sends (https://c2sp.org/tlog-witness): sizes, proof, checkpoint.

    ``proof`` has the hashes of an RFC 6962 consistency proof from ``old_size`` on.
    """
    lines = [f"old {old_size}", *(base64.b64encode(hashed).decode() for hashed in proof), ""]
    return ("\n".join(lines) + "\n" + note).encode()
