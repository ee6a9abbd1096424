"""A key stream for a device, computed on the CPU ahead of use.

A thread fills page-locked blocks while the device computes. A block is copied asynchronously, and
refilled once the device has its copy.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import torch

from app.domain.errors import SealedStateError
from workers.noise.key_stream import KeyStream

BLOCK_WORDS: Final = 1 << 20
BLOCKS: Final = 3


@dataclass(eq=False, repr=False)
class _Block:
    """Precomputed words, and how many of them were used."""

    words: torch.Tensor
    ready: Future[None]
    given: int = 0


class AheadKeyStream:
    """Words of ``source``, which it owns from now on, computed ahead for tensors on ``device``."""

    __slots__ = ("_blocks", "_device", "_source", "_thread")

    def __init__(
        self,
        source: KeyStream,
        device: torch.device,
        *,
        block_words: int = BLOCK_WORDS,
        blocks: int = BLOCKS,
    ) -> None:
        self._source = source
        self._device = device
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "noise")
        pinned = device.type == "cuda"
        self._blocks: deque[_Block] = deque()
        for _ in range(blocks):
            words = torch.zeros(block_words, dtype=torch.int64, pin_memory=pinned)
            self._blocks.append(_Block(words, self._thread.submit(source.fill_, words)))

    @property
    def name(self) -> str:
        """The source's cipher."""
        return self._source.name

    def fill_(self, words: torch.Tensor) -> None:
        """Fill ``words``, on this stream's device, with the next words."""
        filled = 0
        while filled < words.numel():
            if self._thread is None:
                raise SealedStateError("this noise source was destroyed")
            block = self._blocks[0]
            block.ready.result()
            size = min(words.numel() - filled, block.words.numel() - block.given)
            part = block.words[block.given : block.given + size]
            words[filled : filled + size].copy_(part, non_blocking=True)
            filled += size
            block.given += size
            if block.given == block.words.numel():
                self._blocks.popleft()
                self._blocks.append(self._again(self._thread, block))

    def destroy(self) -> None:
        """Drop the key and overwrite all blocks; safe to repeat."""
        if self._thread is None:
            return
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._thread = None
        self._source.destroy()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for block in self._blocks:
            block.words.zero_()

    def _again(self, thread: ThreadPoolExecutor, used: _Block) -> _Block:
        copied = self._copied()

        def refill() -> None:
            copied()
            self._source.fill_(used.words)

        return _Block(used.words, thread.submit(refill))

    def _copied(self) -> Callable[[], None]:
        """Return a wait for the enqueued copies; copies between CPU tensors are synchronous."""
        if self._device.type != "cuda":
            return lambda: None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event.synchronize
