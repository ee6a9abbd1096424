"""Certificates of every released predicate version verify for ever."""

from pathlib import Path
from typing import Any

import pytest

from app.evidence.certificates.verification import VerifiedStep, verify
from app.planning.mechanisms.catalogue import MECHANISMS

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(GOLDEN.glob("*/*.certificate.json"))


def test_every_released_version_has_certificates() -> None:
    assert {case.parent.name for case in CASES} >= {"v1"}
    mechanisms = {case.name.partition(".")[0] for case in CASES if case.parent.name == "v1"}
    assert mechanisms >= MECHANISMS.keys()


@pytest.mark.parametrize("bundle", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_golden_certificate_verifies(bundle: Path) -> None:
    case, last = bundle.name.partition(".")[0], ["history", "previous", "receipt"]
    given: dict[str, Any] = {
        "consistent_with": (bundle.parent / "checkpoint.txt").read_bytes(),
        "previous": _previous(bundle).read_bytes(),
        "receipt": _receipt(bundle.parent, case).read_bytes(),
    }
    if case == "as_trained":  # older than the checkpoint, and not of any request
        given, last = {}, ["weights", "guarantee", "log"]
    steps: list[VerifiedStep] = []
    verify(
        bundle=bundle.read_bytes(),
        weights=bundle.with_name(f"{case}.safetensors"),
        trusted=(bundle.parent / "trusted-keys.json").read_bytes(),
        report=steps.append,
        **given,
    )
    assert [step.name for step in steps][-3:] == last


def _previous(bundle: Path) -> Path:
    """Return the certificate that was issued before, where it is kept; else the same one."""
    restated = bundle.name == "restated.certificate.json"
    return bundle.with_name("gradient_clipping.certificate.json") if restated else bundle


def _receipt(folder: Path, case: str) -> Path:
    own = folder / f"{case}.receipt.json"
    return own if own.exists() else folder / "receipt.json"
