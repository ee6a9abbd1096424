"""The whole bundle: its place in the log, its history, its keys, and nobody's tracebacks."""

import base64
import json
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.architectures import MOST_MEMBERS
from app.domain.errors import VerificationError
from app.evidence.certificates.bundle import (
    MAX_PROOF,
    Growth,
    LeafProof,
    RequestProof,
    TreeGrowth,
    bundle_json,
    read_bundle,
)
from app.evidence.certificates.note import Checkpoint
from app.evidence.certificates.schema import Excluded, Tree
from app.evidence.certificates.signing import StatementSigner, public_pem
from app.evidence.certificates.statement import Subject, Times, exclusion_statement
from app.evidence.certificates.trusted_keys import TrustedKey, TrustedKeys
from app.evidence.certificates.verification import VerifiedStep, verify
from tests.support import trees
from tests.support.bundles import ORIGIN, SmallLog
from tests.support.statements import digest_of
from tests.support.trust import trust
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
            subject=Subject(
                model="m",
                version=2,
                weights_sha256=digest_of(WEIGHTS),
                times=Times(started_at=NOW, certified_at=NOW),
                previous_certificate="0f" * 32,
            ),
            exclusion=Excluded(
                since_version=1,
                requests=1,
                records=1,
                excluded=Tree(size=1, root="00" * 32),
                first=0,
                leaves=1,
            ),
        )
    ).envelope


def to_text(hashed: bytes) -> str:
    return base64.b64encode(hashed).decode()


def payload(text: str) -> bytes:
    return base64.b64decode(json.loads(text)["payload"])


def logged(
    log: SmallLog, text: str, *, old_size: int | None = None, recorded_at: datetime | None = None
) -> dict[str, Any]:
    facts = {} if recorded_at is None else {"recorded_at": recorded_at.isoformat()}
    index = log.append(payload(text), **facts)
    log.grow(4)
    return bundle_json(envelope=text, log=log.proof(index, old_size=old_size))


def step_of(bundle: Any, weights: Path, keys: bytes, **options: Any) -> str:
    with pytest.raises(VerificationError) as caught:
        verify(bundle=json.dumps(bundle).encode(), weights=weights, trusted=keys, **options)
    return caught.value.step


def published(
    *keys: tuple[StatementSigner, datetime | None, datetime | None],
    compromised_since: datetime | None = None,
) -> bytes:
    """Return a dated list; what is compromised is the last one."""
    listed = [TrustedKey(s.public_key, valid_from=a, valid_until=b) for s, a, b in keys]
    listed[-1] = replace(listed[-1], compromised_since=compromised_since)
    return TrustedKeys(ORIGIN, tuple(listed)).to_bytes()


class TestLog:
    def test_an_entry_of_another_certificate_does_not_do(self, weights: Path) -> None:
        log = SmallLog(SIGNER)
        index = log.append(b"another certificate")
        bundle = bundle_json(envelope=envelope(), log=log.proof(index))
        assert step_of(bundle, weights, trust(SIGNER)) == "log"

    def test_a_log_that_a_stranger_signed_does_not_do(self, weights: Path) -> None:
        bundle = logged(SmallLog(STRANGER), envelope())
        assert step_of(bundle, weights, trust(SIGNER)) == "log"

    def test_an_entry_that_was_taken_out_is_missed(self, weights: Path) -> None:
        log = SmallLog(SIGNER)
        bundle = logged(log, envelope())
        del log.entries[5]
        bundle["log"]["checkpoint"] = log.checkpoint()
        assert step_of(bundle, weights, trust(SIGNER)) == "log"


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
                trusted=trust(SIGNER),
                consistent_with=old,
                report=steps.append,
            )
            assert steps[-1].name == "history"

    def test_a_rewritten_history_is_exposed(self, weights: Path) -> None:
        log = SmallLog(SIGNER)
        old = log.checkpoint().encode()
        log.entries[2] = log.entries[2].replace("2", "7")
        bundle = logged(log, envelope(), old_size=5)
        assert step_of(bundle, weights, trust(SIGNER), consistent_with=old) == "history"

    def test_a_checkpoint_of_another_log_does_not_do(self, weights: Path) -> None:
        log = SmallLog(SIGNER)
        text = Checkpoint("expunge/other", 5, trees.root(log.leaves())).text()
        old = SIGNER.sign_note(text, name="expunge/other").encode()
        bundle = logged(log, envelope(), old_size=5)
        assert step_of(bundle, weights, trust(SIGNER), consistent_with=old) == "history"

    def test_a_shorter_log_or_a_missing_proof_is_told(self, weights: Path) -> None:
        log = SmallLog(SIGNER)
        bundle = logged(log, envelope(), old_size=3)
        old = log.checkpoint(size=5).encode()
        assert step_of(bundle, weights, trust(SIGNER), consistent_with=old) == "history"
        log.grow(1)
        newer = log.checkpoint().encode()
        assert step_of(bundle, weights, trust(SIGNER), consistent_with=newer) == "history"

    @pytest.mark.parametrize("old", [b"", b"junk", b"\xff\n\n", b"a\n1\nAA==\n\nx\n"])
    def test_a_checkpoint_that_is_none(self, weights: Path, old: bytes) -> None:
        bundle = logged(SmallLog(SIGNER), envelope())
        assert step_of(bundle, weights, trust(SIGNER), consistent_with=old) == "history"


class TestKeys:
    def test_an_old_certificate_passes_under_a_retired_key(self, weights: Path) -> None:
        log = SmallLog(LATER)  # whoever asks now gets a checkpoint by the key in use
        bundle = logged(log, envelope(SIGNER), recorded_at=NOW)
        keys = published((LATER, NOW + DAY, None), (SIGNER, None, NOW + DAY))
        assert verify(bundle=json.dumps(bundle).encode(), weights=weights, trusted=keys)

    @pytest.mark.parametrize(
        ("start", "end"), [(None, NOW - DAY), (NOW + DAY, NOW + 2 * DAY), (NOW - DAY, NOW)]
    )
    def test_a_key_that_has_ended_counts_for_what_was_recorded_in_its_time(
        self, weights: Path, start: datetime | None, end: datetime | None
    ) -> None:
        bundle = logged(SmallLog(LATER), envelope(SIGNER), recorded_at=NOW)
        keys = published((LATER, None, None), (SIGNER, start, end))
        assert step_of(bundle, weights, keys) == "log"

    def test_a_checkpoint_by_a_key_that_has_ended_does_not_do(self, weights: Path) -> None:
        bundle = logged(SmallLog(SIGNER), envelope(SIGNER), recorded_at=NOW)
        keys = published((LATER, NOW + DAY, None), (SIGNER, None, NOW + DAY))
        with pytest.raises(VerificationError, match="retired key: download the bundle"):
            verify(bundle=json.dumps(bundle).encode(), weights=weights, trusted=keys)

    def test_a_key_ends_when_it_ends(self, weights: Path) -> None:
        """Also where nothing else says so than the verifier's clock."""
        bundle = json.dumps(logged(SmallLog(SIGNER), envelope(SIGNER), recorded_at=NOW)).encode()
        keys = published((SIGNER, None, NOW + DAY))
        assert verify(bundle=bundle, weights=weights, trusted=keys, now=NOW)
        with pytest.raises(VerificationError, match="retired key"):
            verify(bundle=bundle, weights=weights, trusted=keys, now=NOW + DAY)

    @pytest.mark.parametrize(("after", "holds"), [(timedelta(), False), (DAY, True)])
    def test_a_compromised_key_counts_until_it_was(
        self, weights: Path, after: timedelta, holds: bool
    ) -> None:
        bundle = logged(SmallLog(LATER), envelope(SIGNER), recorded_at=NOW)
        keys = published(
            (LATER, NOW + 2 * DAY, None),
            (SIGNER, None, NOW + 2 * DAY),
            compromised_since=NOW + after,
        )
        if holds:
            assert verify(bundle=json.dumps(bundle).encode(), weights=weights, trusted=keys)
        else:
            assert step_of(bundle, weights, keys) == "log"

    def test_the_key_in_use_signs_again_what_is_older(self, weights: Path) -> None:
        bundle = logged(SmallLog(LATER), envelope(LATER), recorded_at=NOW)
        keys = published((LATER, NOW + DAY, None), (SIGNER, None, NOW + DAY), compromised_since=NOW)
        assert verify(bundle=json.dumps(bundle).encode(), weights=weights, trusted=keys)

    def test_a_log_of_another_name_does_not_do(self, weights: Path) -> None:
        bundle = logged(SmallLog(SIGNER), envelope())
        assert step_of(bundle, weights, trust(SIGNER, origin="expunge/other")) == "log"

    @pytest.mark.parametrize(
        "keys",
        [
            b"{}",
            b'{"keys": []}',
            b'{"origin": "a", "keys": []}',
            b'{"origin": "a", "keys": [5]}',
            b'{"origin": "a", "keys": [{"purpose": "certificates", "pem": 5}]}',
            b'{"keys": ' + b"[" * 100_000,
            published((SIGNER, datetime(2026, 1, 1), None)),  # noqa: DTZ001 - no time zone
            published((SIGNER, None, NOW), (SIGNER, None, None)),
            trust(SIGNER, origin="two words"),
            trust(SIGNER).replace(b'"origin"', b'"origin": "expunge/test", "origin"'),
            trust(SIGNER).replace(b'"valid_until"', b'"valid_until": null, "valid_until"'),
            trust(SIGNER).replace(b'"compromised_since"', b'"compromised"'),
            trust(SIGNER).replace(SIGNER.key_id.encode(), LATER.key_id.encode()),
            public_pem(SIGNER.public_key).encode(),
            trust(SIGNER) + b"junk",
            b"x" * (1024 * 1024 + 1),
        ],
    )
    def test_what_is_no_list_of_keys(self, weights: Path, keys: bytes) -> None:
        assert step_of(logged(SmallLog(SIGNER), envelope()), weights, keys) == "keys"


@pytest.mark.parametrize(
    ("honest", "twice"),
    [
        (b'{"media_type"', b'{"log": {}, "media_type"'),
        (b'"envelope": {', b'"envelope": {"payload": "", '),
        (b'"keyid"', b'"keyid": "", "keyid"'),
        (b'"index"', b'"index": 0, "index"'),
    ],
)
def test_a_field_that_is_named_twice_is_refused(weights: Path, honest: bytes, twice: bytes) -> None:
    """Other readers take the first, the last, or both: what they see must be what was checked."""
    bundle = json.dumps(logged(SmallLog(SIGNER), envelope())).encode()
    assert honest in bundle
    with pytest.raises(VerificationError, match="bundle"):
        verify(bundle=bundle.replace(honest, twice, 1), weights=weights, trusted=trust(SIGNER))


HONEST = logged(SmallLog(SIGNER), envelope(), old_size=3)
REQUEST = RequestProof(
    covered=LeafProof({3: b"a" * 32, 7: b"b" * 32}, (b"c" * 32,), {3: 0, 7: 1}),
    excluded=LeafProof({0: b"d" * 32}, ()),
)
GROWTH = Growth(covered=TreeGrowth(2, (b"e" * 32,)), excluded=TreeGrowth(0, ()))
WHOLE = HONEST | {"request": REQUEST.to_json(), "growth": GROWTH.to_json()}


def test_what_is_proved_of_each_tree_is_read_as_it_was_written() -> None:
    read = read_bundle(json.dumps(WHOLE).encode())
    assert (read.request, read.growth) == (REQUEST, GROWTH)
    plain = read_bundle(json.dumps(HONEST).encode())
    assert (plain.request, plain.growth) == (None, None)


@pytest.mark.parametrize(
    ("section", "tree", "changes"),
    [
        ("request", None, {"more": []}),
        ("growth", None, {"more": []}),
        ("request", "covered", {"more": 1}),
        ("request", "excluded", {"members": None}),
        ("growth", "covered", {"more": 1}),
        ("request", "covered", {"indices": [7, 3]}),
        ("request", "covered", {"indices": [3, 3]}),
        ("request", "excluded", {"commitments": [to_text(b"d" * 32)[:-2] + "R="]}),
    ],
)
def test_a_proof_of_a_tree_has_one_form(
    section: str, tree: str | None, changes: dict[str, Any]
) -> None:
    """What another reader might understand otherwise is refused: a field, an order, a spare bit."""
    bundle = deepcopy(WHOLE)
    (bundle[section] if tree is None else bundle[section][tree]).update(changes)
    with pytest.raises(VerificationError, match=f"its {section} section is not in the form"):
        read_bundle(json.dumps(bundle).encode())


@pytest.mark.parametrize(
    ("hashes", "reason"),
    [
        ([to_text(b"c" * 31)], "wrong length"),
        ([to_text(b"c" * 33)], "wrong length"),
        (["*"], "not in base64"),
        ([to_text(b"c" * 32)] * (MAX_PROOF + 1), "too long"),
        (to_text(b"c" * 32), "too long"),
    ],
)
def test_a_proof_is_of_hashes_and_no_longer_than_one_can_be(hashes: Any, reason: str) -> None:
    bundle = deepcopy(WHOLE)
    bundle["log"]["inclusion"] = hashes
    with pytest.raises(VerificationError, match=reason):
        read_bundle(json.dumps(bundle).encode())


@pytest.mark.parametrize("member", [MOST_MEMBERS, 2**64, -1, True, "1"])
def test_a_record_belongs_to_a_member_that_there_can_be(member: object) -> None:
    bundle = deepcopy(WHOLE)
    bundle["request"]["covered"]["members"] = [0, MOST_MEMBERS - 1]
    assert read_bundle(json.dumps(bundle).encode()).request
    bundle["request"]["covered"]["members"] = [0, member]
    with pytest.raises(VerificationError, match="bundle"):
        read_bundle(json.dumps(bundle).encode())


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
@settings(max_examples=100, deadline=None)
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
    step_of(bundle, weights, trust(SIGNER), consistent_with=old)


@given(st.sampled_from(_paths(HONEST)), st.data())
@settings(max_examples=100, deadline=None)
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
    step_of(bundle, weights, trust(SIGNER), consistent_with=old)
