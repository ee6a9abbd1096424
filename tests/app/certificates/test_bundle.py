"""The whole bundle: its place in the log, its history, its keys, and nobody's tracebacks."""

import base64
import json
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from app.certificates.bundle import bundle_json
from app.certificates.checkpoint import Checkpoint
from app.certificates.signing import StatementSigner
from app.certificates.statement import Coverage, Subject, Times, exclusion_statement
from app.certificates.verification import VerifiedStep, verify
from app.domain import merkle
from app.domain.errors import VerificationError
from tests.support.bundles import SmallLog
from tests.support.statements import digest_of
from tests.support.weights import WEIGHTS

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SIGNER = StatementSigner(Ed25519PrivateKey.from_private_bytes(b"k" * 32))
LATER = StatementSigner(Ed25519PrivateKey.from_private_bytes(b"l" * 32))
STRANGER = StatementSigner(Ed25519PrivateKey.from_private_bytes(b"s" * 32))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    path.write_bytes(WEIGHTS)
    return path


def envelope(signer: StatementSigner = SIGNER) -> str:
    return signer.sign(
        exclusion_statement(
            subject=Subject(model="m", version=2, weights_sha256=digest_of(WEIGHTS)),
            coverage=Coverage(
                requests=1,
                records=1,
                commitments_root="00" * 32,
                excluded_records=0,
                excluded_root=EMPTY,
            ),
            previous_certificate="0f" * 32,
            times=Times(started_at=NOW, certified_at=NOW),
        )
    ).envelope


def payload(text: str) -> bytes:
    return base64.b64decode(json.loads(text)["payload"])


def logged(log: SmallLog, text: str, *, old_size: int | None = None) -> dict[str, Any]:
    index = log.append(payload(text))
    log.grow(4)
    return bundle_json(envelope=text, log=log.proof(index, old_size=old_size))


def step_of(bundle: Any, weights: Path, keys: bytes, **options: Any) -> str:
    with pytest.raises(VerificationError) as caught:
        verify(bundle=json.dumps(bundle).encode(), weights=weights, keys=keys, **options)
    return caught.value.step


def pem(*signers: StatementSigner) -> bytes:
    return "".join(signer.public_key_pem for signer in signers).encode()


def published(*keys: tuple[StatementSigner, datetime | None, datetime | None]) -> bytes:
    return json.dumps(
        {
            "keys": [
                {
                    "key_id": signer.key_id,
                    "algorithm": "none",
                    "purpose": "certificates",
                    "pem": signer.public_key_pem,
                    "valid_from": None if start is None else start.isoformat(),
                    "valid_until": None if end is None else end.isoformat(),
                }
                for signer, start, end in keys
            ]
        }
    ).encode()


class TestLog:
    def test_an_entry_of_another_certificate_does_not_do(self, weights: Path) -> None:
        log = SmallLog(SIGNER)
        index = log.append(b"another certificate")
        bundle = bundle_json(envelope=envelope(), log=log.proof(index))
        assert step_of(bundle, weights, pem(SIGNER)) == "log"

    def test_a_log_that_a_stranger_signed_does_not_do(self, weights: Path) -> None:
        bundle = logged(SmallLog(STRANGER), envelope())
        assert step_of(bundle, weights, pem(SIGNER)) == "log"

    def test_an_entry_that_was_taken_out_is_missed(self, weights: Path) -> None:
        log = SmallLog(SIGNER)
        bundle = logged(log, envelope())
        del log.entries[5]
        bundle["log"]["checkpoint"] = log.checkpoint()
        assert step_of(bundle, weights, pem(SIGNER)) == "log"


class TestHistory:
    def test_a_log_that_only_grew_passes(self, weights: Path) -> None:
        for old_size in (1, 3, 5, 6, 10):
            log = SmallLog(SIGNER)
            old = log.checkpoint(size=old_size).encode() if old_size <= 5 else None
            bundle = logged(log, envelope(), old_size=old_size)
            old = old or log.checkpoint(size=old_size).encode()
            steps: list[VerifiedStep] = []
            verify(
                bundle=json.dumps(bundle).encode(),
                weights=weights,
                keys=pem(SIGNER),
                consistent_with=old,
                report=steps.append,
            )
            assert steps[-1].name == "history"

    def test_a_rewritten_history_is_exposed(self, weights: Path) -> None:
        log = SmallLog(SIGNER)
        old = log.checkpoint().encode()
        log.entries[2] = log.entries[2].replace("2", "7")
        bundle = logged(log, envelope(), old_size=5)
        assert step_of(bundle, weights, pem(SIGNER), consistent_with=old) == "history"

    def test_a_checkpoint_of_another_log_does_not_do(self, weights: Path) -> None:
        log = SmallLog(SIGNER)
        text = Checkpoint("expunge/other", 5, merkle.root(log.leaves())).text()
        old = SIGNER.sign_note(text, name="expunge/other").encode()
        bundle = logged(log, envelope(), old_size=5)
        assert step_of(bundle, weights, pem(SIGNER), consistent_with=old) == "history"

    def test_a_shorter_log_or_a_missing_proof_is_told(self, weights: Path) -> None:
        log = SmallLog(SIGNER)
        bundle = logged(log, envelope(), old_size=3)
        old = log.checkpoint(size=5).encode()
        assert step_of(bundle, weights, pem(SIGNER), consistent_with=old) == "history"
        log.grow(1)
        newer = log.checkpoint().encode()
        assert step_of(bundle, weights, pem(SIGNER), consistent_with=newer) == "history"

    @pytest.mark.parametrize("old", [b"", b"junk", b"\xff\n\n", b"a\n1\nAA==\n\nx\n"])
    def test_a_checkpoint_that_is_none(self, weights: Path, old: bytes) -> None:
        bundle = logged(SmallLog(SIGNER), envelope())
        assert step_of(bundle, weights, pem(SIGNER), consistent_with=old) == "history"


class TestKeys:
    def test_an_old_certificate_passes_under_a_retired_key(self, weights: Path) -> None:
        log = SmallLog(LATER)  # whoever asks now gets a checkpoint by the key in use
        bundle = json.dumps(logged(log, envelope(SIGNER))).encode()
        keys = published((LATER, NOW + DAY, None), (SIGNER, None, NOW + DAY))
        assert verify(bundle=bundle, weights=weights, keys=keys)
        assert verify(bundle=bundle, weights=weights, keys=pem(SIGNER, LATER))

    @pytest.mark.parametrize(
        ("start", "end"), [(None, NOW - DAY), (NOW + DAY, None), (NOW + DAY, NOW + 2 * DAY)]
    )
    def test_a_key_signs_only_while_it_is_valid(
        self, weights: Path, start: datetime | None, end: datetime | None
    ) -> None:
        bundle = logged(SmallLog(LATER), envelope(SIGNER))
        keys = published((LATER, None, None), (SIGNER, start, end))
        assert step_of(bundle, weights, keys) == "statement"

    @pytest.mark.parametrize(
        "keys",
        [
            b"{}",
            b'{"keys": []}',
            b'{"keys": [5]}',
            b'{"keys": [{"purpose": "certificates", "pem": 5}]}',
            b'{"keys": [{"purpose": "model signatures", "pem": "x"}]}',
            b'{"keys": ' + b"[" * 100_000,
            published((SIGNER, datetime(2026, 1, 1), None)),  # noqa: DTZ001 - no time zone
            pem(SIGNER) + b"junk",
            b"x" * (1024 * 1024 + 1),
        ],
    )
    def test_what_is_no_list_of_keys(self, weights: Path, keys: bytes) -> None:
        assert step_of(logged(SmallLog(SIGNER), envelope()), weights, keys) == "keys"


HONEST = logged(SmallLog(SIGNER), envelope(), old_size=3)


def _paths(node: Any, path: tuple = ()) -> list[tuple]:
    children = node.items() if isinstance(node, dict) else enumerate(node)
    found = [path] if path else []
    if isinstance(node, dict | list):
        for key, child in children:
            found += (
                _paths(child, (*path, key)) if isinstance(child, dict | list) else [(*path, key)]
            )
    return found


@given(
    st.sampled_from(_paths(HONEST)),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just([])
    | st.just({})
    | st.just("delete")
    | st.just("repeat"),
)
@settings(max_examples=400, deadline=None)
def test_any_mutation_of_a_bundle_fails_with_our_own_error(weights, path: tuple, value) -> None:
    bundle = deepcopy(HONEST)
    node = bundle
    for key in path[:-1]:
        node = node[key]
    if value == "delete":
        del node[path[-1]]
    elif value == "repeat" and isinstance(node, list):
        node.append(node[path[-1]])
    else:
        node[path[-1]] = value
    if bundle == HONEST:
        return
    old = SmallLog(SIGNER).checkpoint(size=3).encode()
    step_of(bundle, weights, pem(SIGNER), consistent_with=old)


@given(st.sampled_from(_paths(HONEST)), st.data())
@settings(max_examples=400, deadline=None)
def test_any_changed_character_fails_with_our_own_error(weights, path: tuple, data) -> None:
    bundle = deepcopy(HONEST)
    node = bundle
    for key in path[:-1]:
        node = node[key]
    before = node[path[-1]]
    if not isinstance(before, str):
        return
    at = data.draw(st.integers(0, len(before) - 1))
    other = data.draw(st.sampled_from([*"Aa0=!\n \x00é", chr(ord(before[at]) ^ 1)]))
    node[path[-1]] = before[:at] + other + before[at + 1 :]
    if node[path[-1]] == before:
        return
    old = SmallLog(SIGNER).checkpoint(size=3).encode()
    step_of(bundle, weights, pem(SIGNER), consistent_with=old)
