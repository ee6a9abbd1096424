"""The format of stored objects: nothing but what was stored, where it was stored, is accepted."""

import os
from collections.abc import Sequence

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import CorruptObjectError
from app.storage.encryption import (
    CHUNK_BYTES,
    HEADER_BYTES,
    TAG_BYTES,
    Chunks,
    Identity,
    encrypt,
    stored_size,
)

KEY = bytes(range(32))
IDENTITY = Identity("blob_one", "weights")
CONTENT = os.urandom(3 * CHUNK_BYTES + 1000)
STORED = b"".join(encrypt(CONTENT, KEY, IDENTITY))
SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, len(CONTENT)]


def opened(stored: bytes, size: int, *, key: bytes = KEY, identity: Identity = IDENTITY) -> bytes:
    """Decrypt a whole object as if its content had ``size`` bytes."""
    decryption = Chunks(stored[:HEADER_BYTES], key, identity, size)
    parts = []
    for index in range(max(1, -(-size // CHUNK_BYTES))):
        start, stop = decryption.place(index)
        parts.append(decryption.decrypt(index, stored[start:stop]))
    return b"".join(parts)


def refused(stored: bytes, size: int = len(CONTENT), **changed: object) -> None:
    with pytest.raises(CorruptObjectError):
        opened(stored, size, **changed)


def chunks_of(stored: bytes) -> list[bytes]:
    step = CHUNK_BYTES + TAG_BYTES
    return [stored[at : at + step] for at in range(HEADER_BYTES, len(stored), step)]


def with_chunks(chunks: Sequence[bytes]) -> bytes:
    return STORED[:HEADER_BYTES] + b"".join(chunks)


@pytest.mark.parametrize("size", SIZES)
def test_what_was_encrypted_is_decrypted_and_has_the_announced_length(size: int) -> None:
    stored = b"".join(encrypt(CONTENT[:size], KEY, IDENTITY))
    assert len(stored) == stored_size(size)
    assert opened(stored, size) == CONTENT[:size]


@settings(max_examples=30, deadline=None)
@given(size=st.integers(0, len(CONTENT)))
def test_any_size_comes_back(size: int) -> None:
    assert opened(b"".join(encrypt(CONTENT[:size], KEY, IDENTITY)), size) == CONTENT[:size]


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, len(STORED) - 1), bit=st.integers(0, 7))
def test_no_bit_can_be_flipped(at: int, bit: int) -> None:
    forged = bytearray(STORED)
    forged[at] ^= 1 << bit
    refused(bytes(forged))


@pytest.mark.parametrize("kept", range(4))
def test_an_object_cut_at_a_chunks_end_is_no_shorter_object(kept: int) -> None:
    """Even to a reader who believes the shorter length."""
    cut = with_chunks(chunks_of(STORED)[:kept])
    refused(cut)
    refused(cut, kept * CHUNK_BYTES)


@settings(max_examples=30, deadline=None)
@given(length=st.integers(0, len(STORED) - 1))
def test_an_object_cut_anywhere_is_refused(length: int) -> None:
    refused(STORED[:length])


def test_an_object_cannot_be_extended_by_the_chunks_of_another() -> None:
    longer = b"".join(encrypt(CONTENT + CONTENT, KEY, IDENTITY))
    more = with_chunks(chunks_of(STORED) + chunks_of(longer)[4:])
    refused(more, len(more) - HEADER_BYTES - TAG_BYTES * len(chunks_of(more)))


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 2, 1, 3), (0, 0, 2, 3), (0, 1, 3)])
def test_chunks_cannot_be_moved_repeated_or_left_out(order: Sequence[int]) -> None:
    chunks = chunks_of(STORED)
    refused(with_chunks([chunks[index] for index in order]))


def test_a_full_chunk_is_not_accepted_as_the_last() -> None:
    stored = b"".join(encrypt(CONTENT[: 2 * CHUNK_BYTES], KEY, IDENTITY))
    assert opened(stored, 2 * CHUNK_BYTES) == CONTENT[: 2 * CHUNK_BYTES]
    refused(stored, CHUNK_BYTES)
    refused(stored + chunks_of(stored)[1], 3 * CHUNK_BYTES)


@pytest.mark.parametrize(
    "other", [Identity("blob_two", "weights"), Identity("blob_one", "shard"), Identity("blob", "")]
)
def test_an_object_is_not_accepted_as_another(other: Identity) -> None:
    """The same key for both is more than an attacker would ever have."""
    refused(STORED, identity=other)


def test_another_key_opens_nothing() -> None:
    refused(STORED, key=bytes(32))


def test_chunks_of_two_writings_do_not_mix() -> None:
    """Two objects of one content, one key and one name differ, and do not fit each other."""
    again = b"".join(encrypt(CONTENT, KEY, IDENTITY))
    assert again != STORED
    refused(with_chunks([chunks_of(again)[0], *chunks_of(STORED)[1:]]))


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_the_whole_header_is_protected(at: int) -> None:
    forged = bytearray(STORED)
    forged[at] ^= 1
    refused(bytes(forged))


def test_the_format_is_the_documented_one() -> None:
    """What docs/blobs.md says is enough to read an object without this code."""
    prefix = STORED[9:16]
    assert STORED[:9] == b"expunge\0\x01"
    last = chunks_of(STORED)[3]
    associated = STORED[:16] + b"blob_one\0weights\0" + (3).to_bytes(8, "big")
    nonce = prefix + (3).to_bytes(4, "big") + b"\x01"
    assert AESGCM(KEY).decrypt(nonce, last, associated) == CONTENT[3 * CHUNK_BYTES :]
