"""What an offline verifier accepts, and where it stops at everything else."""

import base64
import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting import gradient_clipping
from app.domain.errors import TargetNotMetError, VerificationError
from app.domain.ids import commitment
from app.domain.merkle import EMPTY_ROOT
from app.domain.schedules import MAX_SCHEDULE_STEPS
from app.domain.states import Basis
from app.evidence.certificates.bundle import MAX_BYTES, LeafProof, RequestProof, read_bundle
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.statement import Subject, unlearning_statement
from app.evidence.certificates.verification import VerifiedStep, check_statement, difference, verify
from tests.support import mechanisms, statements, trees
from tests.support.bundles import signed_payload
from tests.support.statements import synthetic
from tests.support.trust import trust

CASE = synthetic()[gradient_clipping.NAME]
WEIGHTS = CASE.weights
SIGNER = StatementSigner(Ed25519PrivateKey.from_private_bytes(b"k" * 32))
STRANGER = StatementSigner(Ed25519PrivateKey.from_private_bytes(b"s" * 32))
KEY = trust(SIGNER)


def _statement() -> dict[str, Any]:
    return deepcopy(CASE.statement)


def _bundle(statement: dict[str, Any], signer: StatementSigner = SIGNER) -> dict[str, Any]:
    payload = base64.b64decode(json.loads(signer.sign(statement).envelope)["payload"])
    return signed_payload(payload, signer)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    path.write_bytes(WEIGHTS)
    return path


def _verify(bundle: object, weights: Path, key: bytes = KEY) -> dict[str, Any]:
    content = bundle if isinstance(bundle, bytes) else json.dumps(bundle).encode()
    return verify(bundle=content, weights=weights, trusted=key)


def _step(bundle: object, weights: Path, key: bytes = KEY) -> str:
    """Return the step at which verification fails."""
    with pytest.raises(VerificationError) as caught:
        _verify(bundle, weights, key)
    assert str(caught.value).startswith(f"{caught.value.step}: ")
    return caught.value.step


def test_an_honest_certificate_passes_every_step(weights: Path) -> None:
    steps: list[VerifiedStep] = []
    predicate = verify(
        bundle=json.dumps(_bundle(_statement())).encode(),
        weights=weights,
        trusted=KEY,
        report=steps.append,
    )
    names = [step.name for step in steps]
    assert names == ["bundle", "signature", "statement", "digest", "weights", "guarantee", "log"]
    assert predicate == CASE.statement["predicate"]


def test_a_record_that_was_covered_is_not_said_later_to_have_never_been_used() -> None:
    """Each of the two certificates accounts for it, and neither tree takes anything back."""
    salt, statement = b"s" * 32, deepcopy(synthetic()["retraining"].statement)
    committed = commitment("record", "r1", 0, salt=salt)
    shown = LeafProof(leaves={0: committed}, siblings=())
    one, none = (
        {"size": 1, "root": trees.root([committed]).hex()},
        {"size": 0, "root": EMPTY_ROOT.hex()},
    )

    def bundle(request: RequestProof, excluded: dict[str, Any]) -> bytes:
        statement["predicate"]["forgotten"] |= {
            **dict.fromkeys(("requests", "records", "before_training"), 1),
            "covered": one,
            "excluded_records": excluded["size"],
            "excluded": excluded,
        }
        payload = json.dumps(statement).encode()
        return json.dumps(signed_payload(payload, SIGNER, request=request)).encode()

    covered = bundle(RequestProof(covered=shown, excluded=None), none)
    unused = bundle(RequestProof(covered=None, excluded=shown), one)
    receipt = json.dumps(
        {"receipt_salt": base64.b64encode(salt).decode(), "records": 1, "record_ids": ["r1"]}
    ).encode()
    given = {"weights": None, "trusted": KEY, "receipt": receipt}
    verify(bundle=unused, **given)
    verify(bundle=covered, previous=covered, **given)
    with pytest.raises(VerificationError, match="both as covered and as never used"):
        verify(bundle=unused, previous=covered, **given)


@pytest.mark.parametrize("name", ["gradient_clipping", "sharded_retraining", "tracked_release"])
def test_weights_may_be_on_disk_or_in_memory(name: str, tmp_path: Path) -> None:
    case = synthetic()[name]
    file = tmp_path / "weights"
    file.write_bytes(case.weights)
    bundle = json.dumps(_bundle(case.statement)).encode()

    assert verify(bundle=bundle, weights=file, trusted=KEY) == verify(
        bundle=bundle, weights=case.weights, trusted=KEY
    )


def test_a_statement_is_checked_before_it_is_signed() -> None:
    statement, stated = check_statement(CASE.payload, weights=WEIGHTS)
    assert statement.predicate.model.version == stated["model"]["version"] == 2
    with pytest.raises(VerificationError, match="digest"):
        check_statement(CASE.payload, weights=WEIGHTS + b"x")


def test_one_changed_byte_of_the_weights() -> None:
    bundle = json.dumps(_bundle(_statement())).encode()
    for at in range(0, len(WEIGHTS), 7):
        other = WEIGHTS[:at] + bytes([WEIGHTS[at] ^ 1]) + WEIGHTS[at + 1 :]
        with pytest.raises(VerificationError) as caught:
            verify(bundle=bundle, weights=other, trusted=KEY)
        assert caught.value.step == "digest"


def test_weights_that_cannot_be_read(tmp_path: Path) -> None:
    assert _step(_bundle(_statement()), tmp_path) == "digest"
    assert _step(_bundle(_statement()), tmp_path / "nothing") == "digest"


def test_any_changed_byte_of_the_statement_breaks_the_signature(weights: Path) -> None:
    bundle = _bundle(_statement())
    payload = base64.b64decode(bundle["envelope"]["payload"])
    for at in range(0, len(payload), 61):
        changed = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]
        bundle["envelope"]["payload"] = base64.b64encode(changed).decode()
        assert _step(bundle, weights) == "signature"


def test_every_changed_character_of_the_signature_is_noticed(weights: Path) -> None:
    honest = _bundle(_statement())
    signature = honest["envelope"]["signatures"][0]["sig"]
    for at, character in enumerate(signature):
        for other in {"A", "B", "=", "!", chr(ord(character) ^ 1)} - {character}:
            bundle = deepcopy(honest)
            bundle["envelope"]["signatures"][0]["sig"] = (
                signature[:at] + other + signature[at + 1 :]
            )
            assert _step(bundle, weights) in ("bundle", "signature")


def test_the_signature_of_another_key(weights: Path) -> None:
    assert _step(_bundle(_statement(), STRANGER), weights) == "signature"


def test_another_payload_type(weights: Path) -> None:
    bundle = _bundle(_statement())
    bundle["envelope"]["payloadType"] = "text/plain"
    assert _step(bundle, weights) == "signature"


@pytest.mark.parametrize("signatures", [0, 9])
def test_the_number_of_signatures_is_bounded(weights: Path, signatures: int) -> None:
    bundle = _bundle(_statement())
    (signature,) = bundle["envelope"]["signatures"]
    bundle["envelope"]["signatures"] = [
        signature | {"keyid": str(number)} for number in range(signatures)
    ]
    assert _step(bundle, weights) == "bundle"


def _key(private: Any) -> bytes:
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"junk",
        KEY[:-30],
        _key(ec.generate_private_key(ec.SECP256R1())),
        # A key of a kind that nobody knows: its object identifier is 1.2.3.4.
        b"-----BEGIN PUBLIC KEY-----\n"
        + base64.b64encode(bytes.fromhex("300c300506032a03040303000401"))
        + b"\n-----END PUBLIC KEY-----\n",
    ],
)
def test_a_key_that_is_none(weights: Path, key: bytes) -> None:
    assert _step(_bundle(_statement()), weights, key) == "keys"


def _long_statement(steps: int) -> dict[str, Any]:
    """Return a statement about four schedules whose numbers take all the room there is."""
    longest = {
        "initial_clip": 1.0,
        "gradient_clip": [1.2345678901234567e-100] * steps,
        "learning_rate": [1.2345678901234567e-100] * steps,
        "weight_decay": [1.2345678901234567e-100] * steps,
        "noise_std": [1.2345678901234567e100] * steps,
        "steps": steps,
        "dimension": mechanisms.DIMENSION,
    }
    return statements.restating_claims(
        CASE.statement, mechanism=gradient_clipping.NAME, parameters=longest
    )


@pytest.mark.slow
def test_the_longest_schedules_fit_into_a_bundle_and_longer_ones_are_refused(
    weights: Path,
) -> None:
    longest = _long_statement(MAX_SCHEDULE_STEPS)
    assert _verify(_bundle(longest), weights)

    for name in ("gradient_clip", "learning_rate", "weight_decay", "noise_std"):
        longest["predicate"]["mechanism"]["parameters"][name].append(1.0)
    with pytest.raises(VerificationError, match="gradient_clip"):
        _verify(_bundle(longest), weights)


def test_numbers_that_are_no_numbers_do_not_pass(weights: Path) -> None:
    for field in ("epsilon", "mu", "attacker_advantage"):
        statement = _statement()
        statement["predicate"]["guarantee"][field] = 424242.0
        payload = json.dumps(statement).replace("424242.0", "NaN").encode()
        assert _step(_signed(payload), weights) == "statement"


def _signed(payload: bytes) -> dict[str, Any]:
    return signed_payload(payload, SIGNER)


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"null", b"[]", b"5", b'"x"', b"[" * 100_000, b'{"a":' * 100_000]
)
def test_a_signed_payload_that_is_no_statement(payload: bytes, weights: Path) -> None:
    assert _step(_signed(payload), weights) == "statement"


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"envelope":' * 100_000,
        b" " * (MAX_BYTES + 1),
        b'{"envelope": {"payload": "", "payloadType": "x", '
        b'"signatures": [{"keyid": [], "sig": ""}]}}',
        b'{"envelope": {"payload": 5, "payloadType": "x", "signatures": []}}',
        b'{"envelope": {"payload": "", "payloadType": [], "signatures": 5}}',
        b"9" * 10_000,
    ],
)
def test_bytes_that_are_no_bundle(content: bytes, weights: Path) -> None:
    assert _step(content, weights) == "bundle"


def test_a_bundle_is_limited_however_well_it_reads() -> None:
    whole = json.dumps(_bundle(_statement())).encode()
    read_bundle(whole.ljust(MAX_BYTES))
    with pytest.raises(VerificationError, match="larger than"):
        read_bundle(whole.ljust(MAX_BYTES + 1))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["envelope", "payload", "payloadType", "signatures", "keyid", "sig"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.binary(max_size=200) | _JSON.map(lambda tree: json.dumps(tree).encode()))
@settings(max_examples=60, deadline=None)
def test_nothing_but_a_verification_error_comes_of_garbage(content: bytes) -> None:
    with pytest.raises(VerificationError):
        verify(bundle=content, weights=Path("/nowhere"), trusted=KEY)


@given(
    st.dictionaries(
        st.sampled_from(list(CASE.statement["predicate"])), _JSON, min_size=1, max_size=5
    )
)
@settings(max_examples=60, deadline=None)
def test_nothing_but_a_verification_error_comes_of_signed_garbage(weights, changes: dict) -> None:
    statement = _statement()
    statement["predicate"] |= changes
    payload = json.dumps(statement).encode()
    stopped_at = "guarantee"
    try:
        _verify(_signed(payload), weights)
    except VerificationError as error:
        stopped_at = error.step
    assert stopped_at in ("statement", "weights", "guarantee")


def test_a_statement_is_not_made_unless_the_target_is_met() -> None:
    quiet = mechanisms.CLIPPED | {"noise_std": mechanisms.CLIPPED["noise_std"] * 0.9}
    phase = statements.phase_of(gradient_clipping.NAME, mechanisms.CLIPPED)
    with pytest.raises(TargetNotMetError):
        unlearning_statement(
            basis=Basis.UNLEARNED,
            subject=Subject(
                model="m",
                version=2,
                weights_sha256="00" * 32,
                times=statements.TIMES,
                previous_certificate="00" * 32,
            ),
            coverage=statements.coverage(),
            phase=replace(phase, parameters=quiet),
            evaluation={},
        )


COMPUTED = {"a": 1.5, "b": 3, "c": [True, "x", None], "d": {"e": 0.0}}


def test_equal_values_have_no_difference() -> None:
    assert difference(COMPUTED, COMPUTED, "top") is None
    assert difference(COMPUTED | {"a": 1.5 * (1 + 5e-10)}, COMPUTED, "top") is None
    assert difference(2, 2.0, "whole") is None


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"a": 1.5 * (1 + 2e-9)}, "top.a"),
        ({"a": 1.5 * (1 - 2e-9)}, "top.a"),
        ({"a": math.nan}, "top.a"),
        ({"a": math.inf}, "top.a"),
        ({"a": True}, "top.a"),
        ({"a": "1.5"}, "top.a"),
        ({"a": 10**400}, "top.a"),
        ({"b": 3.0}, "top.b"),
        ({"b": True}, "top.b"),
        ({"b": 4}, "top.b"),
        ({"c": [True, "x"]}, "top.c"),
        ({"c": [1, "x", None]}, "top.c.0"),
        ({"c": [True, "y", None]}, "top.c.1"),
        ({"c": [True, "x", 0]}, "top.c.2"),
        ({"c": "x"}, "top.c"),
        ({"d": {"e": 1e-300}}, "top.d.e"),
        ({"d": {"e": 0.0, "f": 1}}, "top.d"),
        ({"d": {}}, "top.d"),
        ({"d": None}, "top.d"),
    ],
    ids=str,
)
def test_a_difference_is_named_by_its_place(change: dict[str, Any], where: str) -> None:
    assert difference(COMPUTED | change, COMPUTED, "top") == where


def test_what_was_computed_and_is_no_number_equals_nothing() -> None:
    assert difference(math.inf, math.inf, "x") == "x"
    assert difference(math.nan, math.nan, "x") == "x"
