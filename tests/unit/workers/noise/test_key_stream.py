"""The key stream: the published cipher, its key overwritten, no word twice."""

import pytest
import torch

from app.domain.errors import SealedStateError
from workers.noise.key_stream import AesKeyStream, fresh_key

# AES-256 of the all-zero block under the all-zero key (FIPS-197 known answers, NIST KAT), the
# first block of CTR from zero.
FIRST_BLOCK = "dc95c078a2408989ad48a21492842087"


def words(stream, count):
    out = torch.zeros(count, dtype=torch.int64)
    stream.fill_(out)
    return out


def test_is_aes_256_in_counter_mode():
    stream = AesKeyStream(bytearray(32))
    assert words(stream, 2).numpy().tobytes().hex() == FIRST_BLOCK


def test_the_key_is_overwritten():
    key = fresh_key()
    assert len(key) == 32
    assert any(key)
    AesKeyStream(key)
    assert not any(key)


@pytest.mark.parametrize("key", [16, 24, 33])
def test_takes_no_other_length_of_key(key):
    with pytest.raises(ValueError, match="key"):
        AesKeyStream(bytearray(key))


def test_parts_of_any_size_continue_one_stream():
    whole = words(AesKeyStream(bytearray(b"a" * 32)), 100_003)
    stream = AesKeyStream(bytearray(b"a" * 32))
    parts = [words(stream, count) for count in (1, 3, 0, 50_000, 49_999)]
    assert torch.equal(torch.cat(parts), whole)
    assert len(torch.unique(whole)) == len(whole)


def test_another_key_gives_unrelated_words():
    first, second = (words(AesKeyStream(bytearray(k * 32)), 4096) for k in (b"a", b"b"))
    differing = (first ^ second).numpy().view("uint8")
    ones = sum(int(byte).bit_count() for byte in differing)
    bits = 64 * 4096
    assert abs(ones - bits / 2) < 6 * (bits / 4) ** 0.5


def test_ends_when_it_is_destroyed():
    stream = AesKeyStream(fresh_key())
    stream.destroy()
    stream.destroy()
    with pytest.raises(SealedStateError):
        words(stream, 1)
