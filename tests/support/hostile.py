"""Hostile files of models: by hand, and mutated at random."""

import json
import random
from collections.abc import Iterator
from typing import Any

from app.domain.description import METADATA_NAME

_ODD: list[Any] = [0, -1, 0.5, 2**31, 2**63, 10**30, 1e308, [], {}, "", None, True, [[[]]], 10**6]


def opened(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a file's header and its tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def closed(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def described(content: bytes, **changes: Any) -> bytes:
    """Return a file whose description has other fields, given by paths with two underscores."""
    header, data = opened(content)
    description = json.loads(header["__metadata__"][METADATA_NAME])
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = description
        for parent in parents:
            place = place[parent]
        place[name] = value
    header["__metadata__"][METADATA_NAME] = json.dumps(description)
    return closed(header, data)


def by_hand(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield hostile variants of a small ``mlp`` with their names."""
    header, data = opened(content)
    first, second = [name for name in header if name != "__metadata__"][:2]
    entry = header[first]

    def changed(**fields: Any) -> bytes:
        return closed(header | {first: entry | fields}, data)

    yield "empty", b""
    yield "truncated", content[:-1]
    yield "a header without end", (2**64 - 1).to_bytes(8, "little") + content[8:]
    yield "a header beyond the file", (len(content) + 1).to_bytes(8, "little") + content[8:]
    yield "deep", closed(b"[" * 100_000, data)
    yield "deep entry", closed(b'{"a":' + b'{"a":' * 100_000, data)
    yield "an overlap", changed(data_offsets=header[second]["data_offsets"])
    yield "a product that overflows", changed(shape=[2**32, 2**32, 4])
    yield "a product that is 0", changed(shape=[2**62, 0])
    yield "another type", changed(dtype="F64")
    yield "an unknown type", changed(dtype="F128")
    yield "whole numbers", changed(dtype="I32")
    yield "text for a place", changed(data_offsets=["0", "4"])
    many = {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(150_000)}
    yield "many tensors", closed(header | many, data)
    yield "a million tensors", closed(b"{" + b'"a":{"dtype":"F32"},' * 1_000_000 + b"}", data)
    yield (
        "metadata of numbers",
        closed(header | {"__metadata__": header["__metadata__"] | {"n": 5}}, data),
    )
    wide = {"name": "mlp", "options": {"hidden": [20_000, 20_000]}}
    yield "a wide network", described(content, architecture=wide)
    members = {"name": "ensemble", "options": {}, "members": 256, "of": wide}
    yield "wide members", described(content, architecture=members)
    maps = {"name": "cnn", "options": {"channels": [4096]}}
    large = [1, 3000, 3000]
    yield "large images", described(content, architecture=maps, schema__shape=large)
    yield "many features", described(content, schema__shape=[10_000_000])
    yield "endless features", described(content, schema__shape=[1] * 100_000)
    yield "many classes", described(content, schema__classes=10**6, task__classes=10**6)
    yield "a class too many", described(content, schema__classes=1e308, task__classes=1e308)


def mutated(content: bytes, random: random.Random) -> bytes:
    """Return a file with a few other bytes, another length, or other values in its header."""
    kind = random.randrange(5)
    if kind == 0:
        changed = bytearray(content)
        for _ in range(random.randrange(1, 9)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        return bytes(changed)
    if kind == 1:
        return content[: random.randrange(len(content))]
    header, data = opened(content)
    document = header
    if kind > 2:
        document = json.loads(header["__metadata__"][METADATA_NAME])
    place, name = random.choice(list(_places(document)))
    place[name] = random.choice(_ODD)
    if kind > 2:
        header["__metadata__"][METADATA_NAME] = json.dumps(document)
    return closed(header, data)


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    names = document if isinstance(document, dict) else range(len(document))
    for name in list(names):
        yield document, name
        if isinstance(document[name], dict | list):
            yield from _places(document[name])
