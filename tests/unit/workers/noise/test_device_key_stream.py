"""A device's own key stream: ChaCha20, bit for bit, by Triton's interpreter and on a GPU."""

import json
import os
import subprocess
import sys

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from app.domain.errors import SealedStateError
from app.evidence.certificates.schema import ON_DEVICE_NOISE
from workers.noise.generators import SecureNoise

pytest.importorskip("triton")

KEY = bytes(range(32))
# RFC 8439, section 2.3.2: counter 1, and a nonce whose first word is the upper half of ours.
RFC_KEY = KEY
RFC_FIRST = "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"

INTERPRETED = """
import json, sys
import torch
from workers.noise.device_key_stream import fill_
key = torch.frombuffer(bytearray.fromhex(sys.argv[1]), dtype=torch.int32)
found = {}
for counter, count in json.loads(sys.argv[2]):
    words = torch.full((count + 3,), -1, dtype=torch.int64)
    fill_(words[:count], key, torch.tensor([counter]))
    assert words[count:].tolist() == [-1] * 3
    found[f"{counter} {count}"] = words[:count].numpy().tobytes().hex()
print(json.dumps(found))
"""
CASES = [(0, 8), (0, 4100), (1, 17), (2**32 - 1, 24), (5 * 2**32 + 7, 1)]


def reference(key, counter, count):
    """The first ``count`` words from a counter on, as OpenSSL has them."""
    stream = b""
    for block in range(counter, counter + -(-count // 8)):
        nonce = block.to_bytes(8, "little") + bytes(8)
        stream += Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(64))
    return stream[: 8 * count]


def test_the_reference_is_that_of_the_standard():
    """Section 2.3.2 with its nonce 09000000 4a000000 00000000: the library takes any."""
    nonce = (1).to_bytes(4, "little") + bytes.fromhex("000000090000004a00000000")
    block = Cipher(algorithms.ChaCha20(RFC_KEY, nonce), None).encryptor().update(bytes(64))
    assert block[:32].hex() == RFC_FIRST


@pytest.mark.slow
def test_the_interpreted_kernel_makes_the_words_of_chacha20():
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, KEY.hex(), json.dumps(CASES)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for counter, count in CASES:
        assert found[f"{counter} {count}"] == reference(KEY, counter, count).hex()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_makes_the_words_of_chacha20_each_once():
    from workers.noise.device_key_stream import DeviceKeyStream

    key, device = bytearray(KEY), torch.device("cuda")
    stream = DeviceKeyStream(key, device)
    assert not any(key)
    counter = 1  # the first block was made when the kernel was compiled
    for count in (8, 100_003, 1, 1 << 20):
        words = torch.zeros(count, dtype=torch.int64, device=device)
        stream.fill_(words)
        assert words.cpu().numpy().tobytes() == reference(KEY, counter, count)
        counter += -(-count // 8)
    stream.destroy()
    assert not stream._key.any()
    assert SecureNoise(device).name == ON_DEVICE_NOISE
    with pytest.raises(SealedStateError):
        stream.fill_(words)
