"""Bytes that need not be in memory all at once."""

from typing import Protocol


class Content(Protocol):
    """What is stored: bytes are it, and so is what makes them a piece at a time."""

    def __len__(self) -> int:
        """Return how many bytes there are."""

    def __getitem__(self, part: slice, /) -> bytes:
        """Return some of them; the slice has no step."""
