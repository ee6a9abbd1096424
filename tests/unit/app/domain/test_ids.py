"""One spelling for each id, and commitments that tell kinds, ids, ordinals and salts apart."""

from decimal import Decimal

import numpy as np
import pytest

from app.domain.errors import InvalidInputError
from app.domain.ids import commitment, id_fault, id_of, normal_id


@pytest.mark.parametrize(
    ("written", "spelt"),
    [
        *((each, "5") for each in ("5", "5.0", "5.", "5.000", "+5", "+5.0", " 5 ")),
        *((each, "0") for each in ("0", "0.0", "-0", "-0.0", "+0")),
        *((each, "-5") for each in ("-5", "-5.0")),
        *(
            (each, each)
            for each in ("007", "007.0", "5.5", "1.2.3", ".5", "+-5", "+-0.0", "٣", "5 0", "x5")
        ),
        ("9007199254740993", "9007199254740993"),
        ("9" * 40, "9" * 40),
        ("e\u0301", "é"),
    ],
)
def test_an_id_has_one_spelling(written, spelt):
    assert normal_id(written) == normal_id(normal_id(written)) == spelt
    assert id_fault(written) is None


@pytest.mark.parametrize(
    "written",
    ["", " ", "a\0b", "1e5", "+1.5E-3", ".5e2", "9007199254740992.0", f"{10**30}.0", "x" * 513],
)
def test_what_is_no_id_says_why(written):
    assert id_fault(written) is not None
    with pytest.raises(InvalidInputError):
        id_of(written)


@pytest.mark.parametrize(
    "value", [5, 5.0, np.int64(5), np.float32(5), np.uint8(5), Decimal("5.0"), "5.0"]
)
def test_a_python_value_means_its_digits(value):
    assert id_of(value) == "5"


@pytest.mark.parametrize("value", [True, None, 5.5, 2.0**53, float("nan"), Decimal("5.5"), b"5"])
def test_other_values_are_refused(value):
    with pytest.raises(InvalidInputError):
        id_of(value)


def test_no_two_meanings_share_a_commitment() -> None:
    commitments = [
        commitment("record", "x", 0, salt=b"a" * 32),
        commitment("record", "x", 0, salt=b"b" * 32),
        commitment("record", "y", 0, salt=b"a" * 32),
        commitment("record", "x", 1, salt=b"a" * 32),
        commitment("subject", "x", 0, salt=b"a" * 32),
        commitment("subject", "x", 1, salt=b"a" * 32),
        commitment("subject", "x", 0, salt=b"b" * 32),
    ]
    assert len(set(commitments)) == len(commitments)
