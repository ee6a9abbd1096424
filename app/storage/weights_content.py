"""The safetensors file of a network whose tensors stay where they are, in memory once."""

import io
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_ALIGNED: Final = 8


class WeightsContent:
    """The file's bytes. Its header is made here; its tensors must not change meanwhile.

    Source: https://github.com/huggingface/safetensors#format
    """

    def __init__(self, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": dict(metadata)}
        ordered = sorted(tensors.items(), key=lambda named: (-named[1].itemsize, named[0]))
        start = 0
        for name, tensor in ordered:
            stop = start + tensor.nbytes
            kind = f"{tensor.dtype.kind.upper()}{8 * tensor.itemsize}"  # such as F32
            header[name] = {
                "dtype": "BOOL" if tensor.dtype == np.bool_ else kind,
                "shape": list(tensor.shape),
                "data_offsets": [start, stop],
            }
            start = stop
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNED)
        self._parts = [memoryview(len(text).to_bytes(8, "little") + text)]
        for _, tensor in ordered:
            little = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False)
            self._parts.append(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
        self._starts = [0, *accumulate(map(len, self._parts))]

    def __len__(self) -> int:
        """Return the file's size."""
        return self._starts[-1]

    def __getitem__(self, part: slice) -> bytes:
        """Return some of its bytes."""
        start, stop, _ = part.indices(len(self))
        return b"".join(self.pieces(start, stop))

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes from ``start`` to ``stop`` where they lie."""
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            within = start - self._starts[index]
            yield (piece := self._parts[index][within : within + stop - start])
            start += len(piece)
            index += 1

    def opened(self) -> io.BufferedReader:
        """Return them as a file of its own."""
        return io.BufferedReader(_Reading(self))


class _Reading(io.RawIOBase):
    def __init__(self, content: WeightsContent) -> None:
        self._content = content
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._content)}[
            whence
        ]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        begin = self._position
        stop = min(begin + len(view), len(self._content))
        for piece in self._content.pieces(begin, stop):
            at = self._position - begin
            view[at : at + len(piece)] = piece
            self._position += len(piece)
        return self._position - begin
