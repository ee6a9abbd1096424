"""Certificates of every released predicate version verify for ever."""

from pathlib import Path

import pytest

from app.certificates.verification import VerifiedStep, verify

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(GOLDEN.glob("*/*.certificate.json"))


def test_every_released_version_has_certificates() -> None:
    assert {case.parent.name for case in CASES} >= {"v1"}
    assert len(CASES) >= 5


@pytest.mark.parametrize("bundle", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_golden_certificate_verifies(bundle: Path) -> None:
    folder = bundle.parent
    steps: list[VerifiedStep] = []
    verify(
        bundle=bundle.read_bytes(),
        weights=bundle.with_name(bundle.name.replace(".certificate.json", ".safetensors")),
        keys=(folder / "keys.json").read_bytes(),
        consistent_with=(folder / "checkpoint.txt").read_bytes(),
        receipt=(folder / "receipt.json").read_bytes(),
        report=steps.append,
    )
    assert [step.name for step in steps][-3:] == ["log", "history", "receipt"]
