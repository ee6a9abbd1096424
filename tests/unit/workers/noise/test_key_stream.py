"""The key stream: the published cipher, its key overwritten, no word twice."""

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from app.domain.errors import SealedStateError
from workers.noise import key_stream
from workers.noise.key_stream import AesKeyStream, CopiedKeyStream, fresh_key

# The ciphertext of test case 14 of the GCM specification (McGrew and Viega): 128 zero bits under
# the all-zero key and nonce.
FIRST_BLOCK = "cea7403d4d606b6e074ec5d3baf39d18"


def words(stream, count):
    out = torch.zeros(count, dtype=torch.int64)
    stream.fill_(out)
    return out


def test_is_aes_256_in_counter_mode():
    stream = AesKeyStream(bytearray(32))
    assert words(stream, 2).numpy().tobytes().hex() == FIRST_BLOCK


def counter_mode(key, size):
    """The cipher's own counter mode, from block 2 on."""
    return (
        Cipher(algorithms.AES256(key), modes.CTR((2).to_bytes(16))).encryptor().update(bytes(size))
    )


def test_no_word_depends_on_the_mode_that_computes_them_fast():
    key, count = b"a" * 32, 100_003
    found = words(AesKeyStream(bytearray(key)), count).numpy().tobytes()
    assert found == counter_mode(key, 8 * count)


def test_the_next_words_become_the_key_before_the_counter_ends(monkeypatch):
    monkeypatch.setattr(key_stream, "_BYTES_OF_A_KEY", 4000)
    key, expected = b"a" * 32, b""
    for _ in range(3):
        stretch = counter_mode(key, 4032)
        expected, key = expected + stretch[:4000], stretch[4000:]
    stream = AesKeyStream(bytearray(b"a" * 32))
    found = torch.cat([words(stream, count) for count in (499, 2, 999)])
    assert found.numpy().tobytes() == expected


def test_a_key_serves_what_the_mode_allows():
    """SP 800-38D: at most 2^39 - 256 bits, and the next key is taken from them."""
    assert key_stream._BYTES_OF_A_KEY + key_stream.KEY_BYTES <= 2**36 - 32


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


def test_copies_are_the_words_of_the_source_in_their_order():
    stream = CopiedKeyStream(AesKeyStream(bytearray(b"a" * 32)), block_words=100)
    parts = [words(stream, count) for count in (1, 99, 100, 0, 350, 7, 1000, 43)]
    assert torch.equal(torch.cat(parts), words(AesKeyStream(bytearray(b"a" * 32)), 1600))


def test_destroying_copies_overwrites_the_block_and_the_source():
    source = AesKeyStream(bytearray(b"a" * 32))
    stream = CopiedKeyStream(source, block_words=100)
    words(stream, 150)
    assert bool(stream._block.any())
    stream.destroy()
    stream.destroy()
    assert not bool(stream._block.any())
    assert source._cipher is None
    with pytest.raises(SealedStateError):
        words(stream, 1)
