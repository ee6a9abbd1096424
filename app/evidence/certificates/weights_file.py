"""Reads a safetensors file's header: names, types and shapes.

The file is untrusted: the header's size is bounded, and its tensors must fill the file without gaps
or overlaps, so that every reader finds the same numbers in it.
Source: https://github.com/huggingface/safetensors#format
"""

import hashlib
import itertools
import json
import math
import sys
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

from app.domain import strict_json
from app.domain.architectures import by_member
from app.domain.description import ModelDescription
from app.domain.errors import InvalidInputError, VerificationError
from app.storage.encryption import Content

MAX_HEADER_BYTES: Final = 16 << 20
MAX_TENSORS: Final = 100_000
BACKBONE: Final = "backbone."
_MAX_RANK: Final = 16
_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_BYTES_AT_ONCE: Final = 1 << 20
_ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL"), 1),
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file: its safetensors type, such as F32, its shape, and its bytes' place."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


class WeightsFile:
    """An open safetensors file, readable and seekable."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def sha256(self) -> str:
        """Return the digest of the whole file, in hex."""
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()  # type: ignore[arg-type]

    def tensors(self) -> dict[str, StoredTensor]:
        """Return the tensors by name, or raise ``VerificationError``."""
        header, data_start, size = self._header()
        try:
            tensors = {
                name: _tensor(entry, data_start)
                for name, entry in header.items()
                if name != _METADATA
            }
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise VerificationError("weights", "not a safetensors file") from error
        reached = data_start
        for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
            if tensor.start != reached:
                raise VerificationError("weights", "the file's tensors overlap or leave a gap")
            reached = tensor.end
        if reached != size:
            raise VerificationError("weights", "the file's tensors do not fill it")
        return tensors

    def description(self) -> ModelDescription | None:
        """Return what the file says of its model; None if it says nothing."""
        header, _, _ = self._header()
        metadata = header.get(_METADATA, {})
        if not isinstance(metadata, dict):
            raise VerificationError("weights", "its metadata is malformed")
        try:
            return ModelDescription.from_metadata(metadata)
        except InvalidInputError as error:
            raise VerificationError("weights", "its description is malformed") from error

    def content(self, tensor: StoredTensor) -> bytes:
        """Return a tensor's bytes."""
        self._file.seek(tensor.start)
        return self._file.read(tensor.end - tensor.start)

    def digests_of_members(self) -> dict[int, str]:
        """Return the digest of each active member of an ensemble: of names, forms, numbers."""
        tensors = self.tensors()
        members = by_member(name for name in tensors if not name.startswith(BACKBONE))
        if members is None:
            raise VerificationError("weights", "its tensors are not those of an ensemble")
        return {
            member: self._digest({own: tensors[name] for own, name in names.items()})
            for member, names in sorted(members.items())
        }

    def _digest(self, tensors: Mapping[str, StoredTensor]) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(tensors.items()):
            form = json.dumps([name, tensor.dtype, tensor.shape])
            digest.update(len(form).to_bytes(8) + form.encode())
            for part in self._parts(tensor):
                digest.update(part)
        return digest.hexdigest()

    def _parts(self, tensor: StoredTensor) -> Iterator[bytes]:
        for start in range(tensor.start, tensor.end, _BYTES_AT_ONCE):
            self._file.seek(start)
            wanted = min(_BYTES_AT_ONCE, tensor.end - start)
            content = self._file.read(wanted)
            if len(content) < wanted:
                raise VerificationError("weights", "the file changed while it was read")
            yield content

    def is_on_grid(self, tensor: StoredTensor, grid: float) -> bool:
        """Return whether every number of an F64 tensor is a finite multiple of a power of two."""
        return all(
            (steps := number / grid).is_integer() and steps * grid == number  # not underflown
            for number in self.numbers(tensor)
        )

    def norm(self, tensor: StoredTensor) -> float:
        """Return the norm of an F64 tensor."""
        return math.hypot(*(math.hypot(*part) for part in self._numbers(tensor)))

    def numbers(self, tensor: StoredTensor) -> Iterator[float]:
        """Yield the numbers of an F64 tensor in C order."""
        return itertools.chain.from_iterable(self._numbers(tensor))

    def _numbers(self, tensor: StoredTensor) -> Iterator["array[float]"]:
        for content in self._parts(tensor):
            numbers = array("d", content)
            if sys.byteorder == "big":
                numbers.byteswap()
            yield numbers

    def _header(self) -> tuple[dict[str, Any], int, int]:
        self._file.seek(0, 2)
        size = self._file.tell()
        self._file.seek(0)
        length = int.from_bytes(self._file.read(_LENGTH_BYTES), "little")
        data_start = _LENGTH_BYTES + length
        header: Any = None
        try:
            if 2 <= length <= MAX_HEADER_BYTES and data_start <= size:
                text = self._file.read(length)
                if text.count(b"data_offsets") <= MAX_TENSORS:  # objects take more than their text
                    header = strict_json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise VerificationError("weights", "not a safetensors file") from error
        if not isinstance(header, dict) or not 1 <= len(header) <= MAX_TENSORS:
            raise VerificationError("weights", "not a safetensors file")
        return header, data_start, size


@contextmanager
def opened(weights: Path | bytes | WeightsFile) -> Iterator[WeightsFile]:
    """Open weights on disk or in memory; ``VerificationError`` if they cannot be read."""
    if isinstance(weights, WeightsFile):
        yield weights
        return
    if isinstance(weights, bytes):
        yield WeightsFile(BytesIO(weights))
        return
    try:
        with weights.open("rb") as file:
            yield WeightsFile(file)
    except OSError as error:
        raise VerificationError("digest", "the weights cannot be read") from error


def tensors_sha256(content: Content) -> str:
    """Return the digest of a safetensors file's tensors alone, without what its header says."""
    digest = hashlib.sha256()
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    for at in range(start, len(content), _BYTES_AT_ONCE):
        digest.update(content[at : at + _BYTES_AT_ONCE])
    return digest.hexdigest()


def _tensor(entry: dict[str, Any], data_start: int) -> StoredTensor:
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError
    shape, (start, end) = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or len(shape) > _MAX_RANK:
        raise TypeError
    if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
        raise TypeError
    tensor = StoredTensor(entry["dtype"], tuple(shape), data_start + start, data_start + end)
    if end - start != tensor.size * _ITEM_BYTES[tensor.dtype]:
        raise ValueError
    return tensor
