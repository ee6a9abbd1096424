"""RFC 6962 tree hashes, against its recursive definition and known values."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from app.domain import merkle


def _by_definition(leaves: list[bytes]) -> bytes:
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    left, right = _by_definition(leaves[:split]), _by_definition(leaves[split:])
    return hashlib.sha256(b"\x01" + left + right).digest()


@given(st.lists(st.binary(max_size=8), max_size=40))
def test_the_root_is_that_of_the_definition(leaves: list[bytes]) -> None:
    assert merkle.root(leaves) == _by_definition(leaves)


def test_known_root() -> None:
    # From the test vectors of Certificate Transparency's reference implementation.
    leaves = [bytes.fromhex(leaf) for leaf in ("", "00", "10", "2021", "3031", "40414243")]
    assert merkle.root(leaves).hex() == (
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef"
    )
