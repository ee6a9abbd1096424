"""What a witness cosigns, and everything that it does not."""

import base64
import hashlib
import json
import struct
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from app.cli.main import app
from app.domain.errors import ConfigurationError, NoteError, VerificationError
from app.evidence.certificates.cosignature import WitnessKey, WitnessSigner, check_witnesses
from app.evidence.certificates.note import NoteKey, signatures_by
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.trusted_keys import TrustedKey, TrustedKeys
from app.evidence.witnesses.witness import Witness
from tests.support.bundles import ORIGIN, SmallLog
from tests.support.patience import PATIENCE_S
from tests.support.trust import trust
from tests.support.witnessing import serving, submission, witness_signer

SIGNER = StatementSigner(Ed25519PrivateKey.from_private_bytes(b"k" * 32))
LATER = StatementSigner(Ed25519PrivateKey.from_private_bytes(b"l" * 32))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    path = tmp_path / "trusted-keys.json"
    path.write_bytes(trust(SIGNER))
    return path


@pytest.fixture
def witness(tmp_path: Path, trusted: Path):
    witness = Witness(witness_signer(), tmp_path / "seen.json", [trusted], clock=lambda: NOW)
    yield witness
    witness.close()


def _status(witness: Witness, content: bytes) -> int:
    return int(witness.add_checkpoint(content).status)


def test_a_log_that_grows_is_cosigned_each_time(witness: Witness) -> None:
    log = SmallLog(SIGNER)
    key = witness._signer.key
    seen = 0
    for size in (1, 4, 5, 5):
        reply = witness.add_checkpoint(submission(log, old_size=seen, size=size))
        assert reply.status == HTTPStatus.OK
        text, signed = signatures_by((log.checkpoint(size=size) + reply.body).encode(), [key])
        assert signed == [key]
        assert text.split("\n")[1] == str(size)
        seen = size


def test_the_line_is_what_the_specification_says(witness: Witness) -> None:
    """Spelt out from C2SP tlog-cosignature, without the code that wrote it."""
    log, key = SmallLog(SIGNER), witness._signer.key
    dash, name, encoded = witness.add_checkpoint(submission(log, old_size=0)).body.split(" ")
    assert (dash, name) == ("\N{EM DASH}", "witness.example")
    raw = key.public_key.public_bytes_raw()
    content = base64.b64decode(encoded)
    assert content[:4] == hashlib.sha256(b"witness.example\n\x04" + raw).digest()[:4]
    (time_s,) = struct.unpack(">Q", content[4:12])
    assert time_s == int(NOW.timestamp())
    text = log.checkpoint().partition("\n\n")[0] + "\n"
    key.public_key.verify(content[12:], f"cosignature/v1\ntime {time_s}\n{text}".encode())


def test_a_fork_is_refused_also_after_a_restart(tmp_path: Path, trusted: Path) -> None:
    """Whoever holds the log's key cannot have two logs cosigned."""
    honest, forged = SmallLog(SIGNER), SmallLog(SIGNER)
    forged.entries[2] = forged.entries[2].replace("2", "7")
    state, signer = tmp_path / "seen.json", witness_signer()
    for _ in range(2):
        witness = Witness(signer, state, [trusted])
        first = witness.add_checkpoint(submission(honest, old_size=0))
        assert first.status in (HTTPStatus.OK, HTTPStatus.CONFLICT)
        told = witness.add_checkpoint(submission(forged, old_size=0))
        expected = (HTTPStatus.CONFLICT, "5\n", "text/x.tlog.size")
        assert (told.status, told.body, told.media_type) == expected
        assert _status(witness, submission(forged, old_size=5)) == 409
        forged.grow(3)
        assert _status(witness, submission(forged, old_size=5)) == 422
        del forged.entries[5:]
        witness.close()
    assert json.loads(state.read_text())[ORIGIN]["size"] == 5


def test_a_shorter_log_is_refused(witness: Witness) -> None:
    log = SmallLog(SIGNER)
    assert _status(witness, submission(log, old_size=0)) == 200
    assert witness.add_checkpoint(submission(log, old_size=0, size=3)).body == "5\n"
    assert _status(witness, submission(log, old_size=3, size=3)) == 409
    wrong = submission(log, old_size=0, size=3).replace(b"old 0", b"old 5")
    assert _status(witness, wrong) == 400


def test_who_signed_decides(witness: Witness, trusted: Path) -> None:
    assert _status(witness, submission(SmallLog(LATER), old_size=0)) == 403
    trusted.write_bytes(trust(SIGNER, origin="expunge/other"))
    assert _status(witness, submission(SmallLog(SIGNER), old_size=0)) == 404


def test_a_key_that_has_ended_signs_no_more_and_its_successor_does(
    witness: Witness, trusted: Path
) -> None:
    assert _status(witness, submission(SmallLog(SIGNER), old_size=0)) == 200
    keys = (
        TrustedKey(LATER.public_key, valid_from=NOW),
        TrustedKey(SIGNER.public_key, valid_until=NOW - timedelta(days=1)),
    )
    trusted.write_bytes(TrustedKeys(ORIGIN, keys).to_bytes())
    grown = SmallLog(SIGNER)
    grown.grow(2)
    assert _status(witness, submission(grown, old_size=5)) == 403
    grown.signer = LATER
    assert _status(witness, submission(grown, old_size=5)) == 200


NO_SUBMISSIONS = [
    b"",
    b"old 0\n",
    b"old 00\n\nx",
    b"old -1\n\nx",
    b"old 99999999999999999999\n\nx",
    b"old 0\nAAAA\n\nx",
    b"old 0\n=\n\nx",
    b"old 0\n" + b"A" * 43 + b"=\n",
    b"old 0\n" + (b"A" * 43 + b"=\n") * 64 + b"\nx",
    b"\xff\n\n",
    b"x" * 200_000,
]


def test_what_is_no_submission_is_a_bad_request(
    witness: Witness, subtests: pytest.Subtests
) -> None:
    for content in NO_SUBMISSIONS:
        with subtests.test(content=content):
            assert _status(witness, content) == 400


def test_two_processes_do_not_share_a_file(witness: Witness, tmp_path: Path, trusted: Path) -> None:
    with pytest.raises(ConfigurationError, match="another witness"):
        Witness(witness_signer(), tmp_path / "seen.json", [trusted])


@pytest.mark.parametrize("content", ["", "[]", '{"a": {"size": 1}}', '{"a": 1, "a": 2}'])
def test_a_damaged_file_stops_the_witness(tmp_path: Path, trusted: Path, content: str) -> None:
    """It must never begin anew by itself: then it would cosign a second log."""
    state = tmp_path / "damaged.json"
    state.write_text(content)
    with pytest.raises(ConfigurationError, match="not a witness's file"):
        Witness(witness_signer(), state, [trusted])


def test_over_http(tmp_path: Path, trusted: Path) -> None:
    log, signer = SmallLog(SIGNER), witness_signer()
    with (
        serving(signer, tmp_path / "seen.json", trusted) as url,
        httpx.Client(timeout=PATIENCE_S) as http,
    ):
        place = f"{url}/add-checkpoint"
        assert http.post(place, content=submission(log, old_size=0)).status_code == 200
        told = http.post(place, content=submission(log, old_size=0))
        assert (told.status_code, told.text) == (409, "5\n")
        assert told.headers["content-type"] == "text/x.tlog.size"
        trusted.write_text("{}")
        for status, refused in (
            (404, http.post(f"{url}/other", content=b"x")),
            (501, http.get(place)),
            (400, http.post(place, content=b"x" * 500_000)),
            (400, http.post(place, content=iter([b"chunks"]))),
            (503, http.post(place, content=submission(log, old_size=5))),
        ):
            assert (refused.status_code, refused.headers["connection"]) == (status, "close")


class TestRequired:
    def test_as_many_as_are_required(self) -> None:
        log = SmallLog(SIGNER)
        signers = [witness_signer(f"w{number}") for number in range(3)]
        keys = [signer.key for signer in signers]
        text = log.checkpoint().partition("\n\n")[0] + "\n"
        lines = [signer.cosign(text, time_s=1) for signer in signers[:2]]
        note = (log.checkpoint() + "".join(lines)).encode()
        assert check_witnesses(note, keys, required=2).startswith("2 of 3")
        with pytest.raises(VerificationError, match="3 are required"):
            check_witnesses(note, keys, required=3)

    def test_one_key_under_two_names_is_one_witness(self) -> None:
        log = SmallLog(SIGNER)
        private = Ed25519PrivateKey.generate()
        twins = [WitnessSigner(private, name=name) for name in ("a", "b")]
        text = log.checkpoint().partition("\n\n")[0] + "\n"
        lines = [twin.cosign(text, time_s=1) for twin in twins]
        note = (log.checkpoint() + "".join(lines)).encode()
        with pytest.raises(VerificationError, match="2 are required"):
            check_witnesses(note, [twin.key for twin in twins], required=2)

    def test_a_cosignature_of_another_checkpoint_or_time_is_wrong(self) -> None:
        log, signer = SmallLog(SIGNER), witness_signer()
        text = log.checkpoint(size=3).partition("\n\n")[0] + "\n"
        line = signer.cosign(text, time_s=1)
        with pytest.raises(VerificationError, match="signature is wrong"):
            check_witnesses((log.checkpoint() + line).encode(), [signer.key], required=1)

    def test_keys_are_spelt_in_one_way(self) -> None:
        key = witness_signer().key
        assert WitnessKey.from_text(str(key)) == key
        of_a_log = str(NoteKey(key.name, key.public_key))
        for wrong in ("", "a+b", "a+00000000+AAAA", of_a_log, str(key)[:-1], f"x{key}"):
            with pytest.raises(NoteError):
                WitnessKey.from_text(wrong)


def test_the_command_needs_a_list_of_keys(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    options = ["--name", "w.example", "--trusted", str(wrong), "--state", str(tmp_path / "s")]
    answer = CliRunner().invoke(app, ["witness", *options])
    assert answer.exit_code == 1
    assert "not a list of trusted keys" in answer.stderr
