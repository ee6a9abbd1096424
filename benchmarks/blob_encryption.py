"""Encrypting and decrypting stored objects: ``python -m benchmarks.blob_encryption``.

One thread, in memory: the format of ``app/storage/encryption.py`` beside both ciphers alone and
beside copying the same bytes in the same chunks; then whole blobs on the disk beside plain files.
Target: 400 MB/s or more per core, both ways.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from app.storage.encryption import (
    CHUNK_BYTES,
    HEADER_BYTES,
    KEY_BYTES,
    Chunks,
    Identity,
    encrypt,
)
from app.storage.objects import LocalObjectStore
from benchmarks import harness

SIZE_BYTES = 256 * 1024**2
ROUNDS = 7
LEAST_MB_PER_S = 400.0
_IDENTITY = Identity("blob_benchmark", "weights")
_NONCE = bytes(12)


def main() -> None:
    """Measure, print and store."""
    content, key = os.urandom(SIZE_BYTES), os.urandom(KEY_BYTES)
    stored = b"".join(encrypt(content, key, _IDENTITY))
    rates = _rates(
        {
            "copy": lambda: _copy(content),
            "encrypt": lambda: _drain(encrypt(content, key, _IDENTITY)),
            "decrypt": lambda: _decrypt(stored, key),
            "aes_256_gcm_alone": lambda: _cipher_alone(AESGCM(key), content),
            "chacha20_poly1305_alone": lambda: _cipher_alone(ChaCha20Poly1305(key), content),
        },
        time.process_time,
    )
    with tempfile.TemporaryDirectory() as directory:
        disk = _on_disk(Path(directory), content, key)
    summary = {
        "size_bytes": SIZE_BYTES,
        "chunk_bytes": CHUNK_BYTES,
        "rounds": ROUNDS,
        "mb_per_s_of_one_core": rates,
        "encrypt_over_copy": rates["encrypt"] / rates["copy"],
        "decrypt_over_copy": rates["decrypt"] / rates["copy"],
        "mb_per_s_to_synced_disk": disk,
        "encrypted_over_plain_write": disk["encrypted"] / disk["plain"],
        "met": min(rates["encrypt"], rates["decrypt"]) >= LEAST_MB_PER_S,
    }
    harness.show(summary, harness.parsed(harness.arguments(__doc__), "blob_encryption").results)


def _rates(works: dict[str, Callable[[], None]], clock: Callable[[], float]) -> dict[str, float]:
    """Return the median rate of each in MB/s; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            started = clock()
            work()
            seconds[name].append(clock() - started)
    return {name: SIZE_BYTES / 1e6 / median(taken) for name, taken in seconds.items()}


def _on_disk(directory: Path, content: bytes, key: bytes) -> dict[str, float]:
    store = LocalObjectStore(directory / "objects")
    pieces = [content[at : at + CHUNK_BYTES] for at in range(0, SIZE_BYTES, CHUNK_BYTES)]
    return _rates(
        {
            "plain": lambda: store.write("plain", pieces),
            "encrypted": lambda: store.write("encrypted", encrypt(content, key, _IDENTITY)),
        },
        time.perf_counter,
    )


def _copy(content: bytes) -> None:
    view = memoryview(content)
    for at in range(0, SIZE_BYTES, CHUNK_BYTES):
        bytes(view[at : at + CHUNK_BYTES])


def _drain(parts: Iterator[bytes]) -> None:
    for _ in parts:
        pass


def _decrypt(stored: bytes, key: bytes) -> None:
    decryption = Chunks(stored[:HEADER_BYTES], key, _IDENTITY, SIZE_BYTES)
    view = memoryview(stored)
    for index in range(SIZE_BYTES // CHUNK_BYTES):
        start, stop = decryption.place(index)
        decryption.decrypt(index, bytes(view[start:stop]))


def _cipher_alone(cipher: AESGCM | ChaCha20Poly1305, content: bytes) -> None:
    view = memoryview(content)
    for at in range(0, SIZE_BYTES, CHUNK_BYTES):
        cipher.encrypt(_NONCE, view[at : at + CHUNK_BYTES], None)


if __name__ == "__main__":
    main()
