"""A key stream made ahead: the same words, made by another thread, overwritten at the end."""

import threading

import pytest
import torch

from app.domain.errors import SealedStateError
from tests.support.patience import PATIENCE_S, until
from workers.noise.key_stream import AesKeyStream
from workers.noise.key_stream_ahead import AheadKeyStream

CPU = torch.device("cpu")


def ahead(source=None, **keywords):
    source = source or AesKeyStream(bytearray(b"a" * 32))
    return AheadKeyStream(source, CPU, **({"block_words": 100} | keywords))


def words(stream, count):
    out = torch.zeros(count, dtype=torch.int64)
    stream.fill_(out)
    return out


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_gives_the_words_of_its_source_in_their_order(blocks):
    stream = ahead(blocks=blocks)
    parts = [words(stream, count) for count in (1, 99, 100, 0, 350, 7, 1000, 43)]
    assert torch.equal(torch.cat(parts), words(AesKeyStream(bytearray(b"a" * 32)), 1600))
    stream.destroy()


def test_words_are_there_before_anyone_asks():
    source = AesKeyStream(bytearray(b"a" * 32))
    filled = threading.Semaphore(0)

    class Counted:
        name = source.name
        destroy = source.destroy

        def fill_(self, out):
            source.fill_(out)
            filled.release()

    stream = ahead(Counted())
    assert all(filled.acquire(timeout=PATIENCE_S) for _ in range(3))
    words(stream, 100)
    assert filled.acquire(timeout=PATIENCE_S)  # the used block is filled again
    stream.destroy()


def test_a_failure_of_the_thread_reaches_who_asks():
    class Broken:
        name = "broken"

        def fill_(self, out):
            raise OSError

        def destroy(self):
            pass

    stream = ahead(Broken())
    with pytest.raises(OSError):  # noqa: PT011 - its own, with no message
        words(stream, 1)
    stream.destroy()


def test_destroying_overwrites_blocks_and_source():
    source = AesKeyStream(bytearray(b"a" * 32))
    stream = ahead(source)
    words(stream, 150)
    blocks = [block.words for block in stream._blocks]
    until(lambda: all(bool(block.any()) for block in blocks))  # a thread fills them
    stream.destroy()
    stream.destroy()
    assert not any(bool(block.any()) for block in blocks)
    assert source._cipher is None
    with pytest.raises(SealedStateError):
        words(stream, 1)
