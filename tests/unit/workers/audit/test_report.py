"""Signed reports: what they say, and what in them cannot be changed."""

import hashlib
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.client.download import Downloaded
from app.domain.errors import VerificationError
from app.evidence.certificates.bundle import LogProof, bundle_json
from app.evidence.certificates.signing import StatementSigner, statement_of
from workers.audit.page import page
from workers.audit.report import CANNOT_SHOW, Report, verify

METHOD = {
    "canaries": 40,
    "guesses": 20,
    "confidence": 0.95,
    "other_records": 200,
    "rows": "generated",
    "score": "loss against a reference without canaries",
}
EXACT = {"kind": "exact", "epsilon": 0.0, "delta": 1e-5}
GAUSSIAN = {"kind": "gaussian", "epsilon": 2.0, "delta": 1e-5}


def made(
    tmp_path: Path,
    *,
    guarantee: Any = EXACT,
    right: int = 20,
    before: int | None = 20,
    name: str = "a<b",
) -> Report:
    weights, certificate = tmp_path / "weights", tmp_path / "certificate"
    weights.write_bytes(b"weights")
    certificate.write_bytes(certified(guarantee))
    pairs = [[0.0, 40.0 - place] for place in range(40)]
    alike = [[0.0, 0.0]] * 40  # the other attacks are right where the coin is 0
    return Report.of(
        audited={"model": name, "version": 3, "weights": "train"},
        release=Downloaded(weights, certificate),
        predicate={
            "model": {"name": "audit-1", "version": 2},
            "mechanism": {"name": "sufficient_statistics"},
            "guarantee": guarantee,
        },
        method=METHOD,
        scores=[alike, alike, pairs],
        before=None
        if before is None
        else [
            [
                pair if (place < before) == (place < right) else pair[::-1]
                for place, pair in enumerate(pairs)
            ],
            alike,
            alike,
        ],
        coins=[int(place < right) for place in range(40)],
        started_at=datetime.now(UTC),
    )


def certified(
    guarantee: Any = EXACT, *, weights: bytes = b"weights", model: str = "audit-1"
) -> bytes:
    """Return a bundle that says what a report needs, by somebody."""
    statement = {
        "subject": [{"digest": {"sha256": hashlib.sha256(weights).hexdigest()}}],
        "predicate": {
            "model": {"name": model, "version": 2},
            "mechanism": {"name": "sufficient_statistics"},
            "guarantee": guarantee,
        },
    }
    signer = StatementSigner(Ed25519PrivateKey.generate())
    envelope = signer.sign(statement).envelope
    return json.dumps(bundle_json(envelope=envelope, log=LogProof("entry", 0, (), "note"))).encode()


@pytest.fixture
def signer(tmp_path: Path) -> StatementSigner:
    return StatementSigner.from_file(tmp_path / "key.pem", create=True)


def test_a_report_holds_and_names_its_files(tmp_path: Path, signer: StatementSigner) -> None:
    steps: list[str] = []
    report = verify(
        made(tmp_path).signed(signer).encode(),
        signer.public_key,
        weights=b"weights",
        certificate=(tmp_path / "certificate").read_bytes(),
        report=lambda step, _: steps.append(step),
    )
    assert steps == ["signature", "statement", "weights", "certificate", "result"]
    assert report.contradicts
    assert report.predicate["result"]["right"] == 20
    assert report.predicate["claim"]["delta"] == 0  # an exact claim needs none


def test_the_claim_decides_the_verdict(tmp_path: Path) -> None:
    verdicts = {
        (kind["kind"], right): made(tmp_path, guarantee=kind, right=right).contradicts
        for kind in (EXACT, GAUSSIAN)
        for right in (14, 15, 16, 17)
    }
    assert [right for (kind, right), found in verdicts.items() if found and kind == "exact"] == [
        *(16, 17)
    ]
    assert [right for (kind, right), found in verdicts.items() if found and kind != "exact"] == [17]


@pytest.mark.parametrize(
    ("place", "value", "step"),
    [
        (("result", "right"), 19, "result"),
        (("result", "verdict"), "consistent", "result"),
        (("result", "p_value"), 0.4, "result"),
        (("result", "epsilon_lower_bound"), 1.0, "result"),
        (("coins",), "01" * 20, "result"),
        (("coins",), "1" * 39, "statement"),
        (("claim", "epsilon"), 3.0, "result"),
        (("method", "guesses"), 10, "result"),
        (("method", "guesses"), 41, "statement"),
        (("result", "right_before"), 19, "result"),
        (("scores_before",), None, "result"),
        (("scores_before",), [[[0.0, 1.0]]] * 3, "statement"),
        (("method", "confidence"), 1.0, "statement"),
        (("scores",), [[[0.0, 1.0]]] * 3, "statement"),
        (("scores",), [[[0.0, 1.0]] * 40] * 2, "statement"),
        (("scores",), [[[0.0, 1.0]] * 40] * 4, "statement"),
        (("more",), 1, "statement"),
    ],
)
def test_what_does_not_follow_is_found_though_it_is_signed(
    tmp_path: Path, signer: StatementSigner, place: tuple[str, ...], value: Any, step: str
) -> None:
    statement = json.loads(json.dumps(made(tmp_path).statement))
    part = statement["predicate"]
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    with pytest.raises(VerificationError) as caught:
        verify(Report(statement).signed(signer).encode(), signer.public_key)
    assert caught.value.step == step


def test_only_the_auditors_own_signature_counts(tmp_path: Path, signer: StatementSigner) -> None:
    stranger = StatementSigner.from_file(tmp_path / "stranger.pem", create=True)
    signed = made(tmp_path).signed(signer)
    with pytest.raises(VerificationError, match=r"^signature"):
        verify(signed.encode(), stranger.public_key)
    for content in (b"{}", b"[]", b"\xff", b'{"payload": 1}', b"1"):
        with pytest.raises(VerificationError, match=r"^(report|signature)"):
            verify(content, signer.public_key)


@pytest.mark.parametrize("name", ["weights", "certificate"])
def test_other_files_are_found(tmp_path: Path, signer: StatementSigner, name: str) -> None:
    with pytest.raises(VerificationError, match=f"^{name}: another file"):
        verify(made(tmp_path).signed(signer).encode(), signer.public_key, **{name: b"other"})


@pytest.mark.parametrize(
    "other",
    [
        certified(GAUSSIAN),
        certified(weights=b"other"),
        certified(model="audit-2"),
        certified({"kind": "none"}),
        b"{}",
    ],
)
def test_a_report_cannot_say_of_its_certificate_what_that_does_not_say(
    tmp_path: Path, signer: StatementSigner, other: bytes
) -> None:
    statement = json.loads(json.dumps(made(tmp_path).statement))
    statement["predicate"]["claim"]["certificate_sha256"] = hashlib.sha256(other).hexdigest()
    signed = Report(statement).signed(signer).encode()
    with pytest.raises(VerificationError) as caught:
        verify(signed, signer.public_key, certificate=other)
    assert caught.value.step in ("certificate", "bundle")


@pytest.mark.parametrize(
    ("right", "before", "verdict"),
    [
        (10, 20, "consistent"),
        (10, 16, "consistent"),
        (10, 15, "inconclusive"),
        (10, None, "inconclusive"),
        (16, 10, "contradicted"),
        (16, None, "contradicted"),
    ],
)
def test_what_was_not_seen_while_it_was_there_says_nothing(
    tmp_path: Path, right: int, before: int | None, verdict: str
) -> None:
    report = made(tmp_path, right=right, before=before)
    assert report.predicate["result"]["verdict"] == verdict
    assert report.predicate["result"]["right_before"] == before
    assert any(
        text in " ".join(report.in_words())
        for text in (f"release before the request, {before} were", "is not known")
    )


@pytest.mark.parametrize("right", [0, 11, 20])
def test_the_page_has_words_and_a_picture(tmp_path: Path, right: int) -> None:
    report = made(tmp_path, right=right)
    drawn = page(report)
    assert "a&lt;b" in drawn
    assert "a<b" not in drawn
    for line in CANNOT_SHOW:
        assert line.replace("'", "&#x27;") in drawn
    assert f"{right} right" in drawn
    assert "16 contradict" in drawn
    heights = [float(each) for each in re.findall(r'height="([-\d.]+)"', drawn)]
    assert len(heights) > 24
    assert min(heights) >= 0
    assert "<script" not in drawn


def test_the_statement_has_no_content_of_a_canary(tmp_path: Path, signer: StatementSigner) -> None:
    predicate = statement_of(made(tmp_path).signed(signer))["predicate"]
    assert set(predicate) == {
        *("audited", "copied_as", "claim", "method", "scores", "scores_before", "coins", "result"),
        *("cannot_show", "started_at", "ended_at", "software"),
    }
