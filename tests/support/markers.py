"""Recognisable bytes, and a search for them that looks as a forensic examiner would."""

import base64
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from ahocorasick_rs import BytesAhoCorasick, Implementation

_LZ4 = b"\x04\x22\x4d\x18"
_LONGEST_FRAME = 64 << 20
_STEP = 1 << 12


@dataclass(frozen=True)
class Marker:
    """Bytes that must not be found, under a name that may be printed."""

    name: str
    content: bytes

    def spellings(self) -> dict[str, bytes]:
        """Return the ways in which the bytes could have been written down."""
        found = {
            "raw": self.content,
            "hex": self.content.hex().encode(),
            "HEX": self.content.hex().upper().encode(),
        }
        for shift in range(3):
            found[f"base64+{shift}"] = _base64(self.content, shift)
        if self.content.isascii():
            found["utf-16"] = self.content.decode().encode("utf-16-le")
        return found


@dataclass(frozen=True)
class Finding:
    """Where a marker was, and how it was spelt."""

    place: str
    marker: str
    spelling: str


def marker_of_weights(name: str, weights: np.ndarray) -> list[Marker]:
    """Return eight neighbouring numbers from three places where they differ, and one as text.

    Numbers of float64 are looked for as such and as float32; all others the other way round.
    """
    wide = weights.dtype == np.float64
    flat = np.ascontiguousarray(weights, dtype=np.float64 if wide else np.float32).ravel()
    other = np.dtype(np.float32 if wide else np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(flat, 8)
    different = np.count_nonzero(np.diff(np.sort(windows, axis=1), axis=1), axis=1) + 1
    telling = windows[different > 4]
    chosen = [telling[place] for place in (0, len(telling) // 2, -1)]
    text = max((str(number) for number in flat[:100]), key=len)
    return [
        *(Marker(f"{name}, numbers {i}", n.tobytes()) for i, n in enumerate(chosen)),
        Marker(f"{name}, as text", text.removeprefix("-").encode()),
        Marker(f"{name}, {other}", chosen[1].astype(other).tobytes()),
    ]


class Search:
    """One pass over bytes for all spellings of all markers, however many there are."""

    def __init__(self, markers: Iterable[Marker]) -> None:
        wanted = [(m.name, how, spelt) for m in markers for how, spelt in m.spellings().items()]
        self._meant = [(name, how) for name, how, _ in wanted]
        self._automaton = BytesAhoCorasick(
            [spelt for _, _, spelt in wanted], implementation=Implementation.DFA
        )

    def of_bytes(self, places: Mapping[str, bytes | mmap.mmap]) -> list[Finding]:
        """Return every marker that is in one of the places, in whatever spelling."""
        return [
            Finding(place, *self._meant[number])
            for place, content in places.items()
            for number in sorted(self._numbers_in(content))
        ]

    def of_files(self, files: Iterable[Path]) -> list[Finding]:
        """Return every marker that is in a file, in whatever spelling, or in its name."""
        findings = []
        for path in files:
            findings += self.of_bytes({f"name of {path}": os.fsencode(path.name)})
            try:
                with (
                    path.open("rb") as file,
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
                ):
                    findings += self.of_bytes({str(path): content})
            except (OSError, ValueError):  # gone, empty, or no plain file
                continue
        return findings

    def _numbers_in(self, content: bytes | mmap.mmap) -> set[int]:
        found = set()
        for part in (content, *_unpacked(content)):
            matches = self._automaton.find_matches_as_indexes(part, overlapping=True)
            found |= {number for number, _, _ in matches}
        return found


def search_bytes(places: Mapping[str, bytes], markers: Iterable[Marker]) -> list[Finding]:
    """Return every marker that is in one of the places, in whatever spelling."""
    return Search(markers).of_bytes(places)


def places_with(places: Iterable[tuple[str, str | bytes]], markers: Iterable[Marker]) -> set[str]:
    """Return the names of the places with a marker, after checking that there is something."""
    encoded = {k: v if isinstance(v, bytes) else v.encode("latin-1", "replace") for k, v in places}
    assert encoded
    return {finding.place for finding in search_bytes(encoded, markers)}


def search_files(files: Iterable[Path], markers: Iterable[Marker]) -> list[Finding]:
    """Return every marker that is in a file, in whatever spelling, or in its name."""
    return Search(markers).of_files(files)


def files_below(*roots: Path) -> Iterator[Path]:
    """Yield all plain files below directories."""
    for root in roots:
        for directory, _, names in os.walk(root):
            for name in names:
                path = Path(directory, name)
                if path.is_file() and not path.is_symlink():
                    yield path


def files_changed_since(moment: float, root: Path, *, depth: int) -> Iterator[Path]:
    """Yield plain files that others may have written to a shared directory since a moment."""
    for directory, below, names in os.walk(root):
        if len(Path(directory).relative_to(root).parts) >= depth:
            below.clear()
        for name in names:
            path = Path(directory, name)
            try:
                status = path.lstat()
            except OSError:
                continue
            if path.is_file() and not path.is_symlink() and status.st_mtime >= moment:
                yield path


def _unpacked(content: bytes | mmap.mmap) -> Iterator[bytes]:
    """Yield what LZ4 packed anywhere in the content, as in shards; of torn frames what is left."""
    place = content.find(_LZ4)
    while place >= 0:
        found = bytearray()
        frame = pa.BufferReader(content[place : place + _LONGEST_FRAME])
        with suppress(OSError), pa.CompressedInputStream(frame, "lz4") as stream:
            while part := stream.read(_STEP):  # the bytes after the frame end it with an error
                found += part
        yield bytes(found)
        place = content.find(_LZ4, place + len(_LZ4))


def _base64(content: bytes, shift: int) -> bytes:
    """Return the characters that depend on ``content`` alone, ``shift`` bytes into a group."""
    encoded = base64.b64encode(bytes(shift) + content)
    first = -(-shift * 8 // 6)
    return encoded[first : (shift + len(content)) * 8 // 6]
