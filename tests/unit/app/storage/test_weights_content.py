"""What is published is a file that every reader of safetensors reads, though it is never whole."""

import io
from itertools import product

import numpy as np
import pytest
import safetensors.numpy

from app.evidence.certificates.weights_file import WeightsFile, tensors_sha256
from app.storage.encryption import KEY_BYTES, Identity, encrypt, stored_size
from app.storage.weights_content import WeightsContent

GENERATOR = np.random.default_rng(0)
TENSORS = {
    "b.weight": GENERATOR.normal(size=(30, 7)).astype(np.float32),
    "a.weight": GENERATOR.normal(size=(5, 3, 2)),
    "turned": GENERATOR.normal(size=(6, 4)).T,
    "half": GENERATOR.normal(size=9).astype(np.float16),
    "count": np.array(12, dtype=np.int64),
    "flags": np.array([True, False, True]),
    "none": np.zeros((0, 4), dtype=np.float32),
    "bytes": np.arange(5, dtype=np.uint8),
}
METADATA = {"format": "made up", "ü": '"quoted"'}


@pytest.fixture
def content():
    return WeightsContent(TENSORS, METADATA)


def test_every_reader_finds_the_same_tensors(content):
    whole = content[:]
    found = safetensors.numpy.load(whole)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert np.array_equal(found[name], tensor)
    file = WeightsFile(content.opened())
    assert {name: each.shape for name, each in file.tensors().items()} == {
        name: tensor.shape for name, tensor in TENSORS.items()
    }
    del file  # a file that is closed closes nothing else
    assert WeightsFile(content.opened()).sha256() == WeightsFile(io.BytesIO(whole)).sha256()
    assert tensors_sha256(content) == tensors_sha256(whole)


def test_tensors_lie_where_their_type_may(content):
    for stored in WeightsFile(content.opened()).tensors().values():
        if stored.size:
            assert stored.start % ((stored.end - stored.start) // stored.size) == 0


def test_any_part_is_that_of_the_whole(content):
    whole = content[:]
    assert len(whole) == len(content)
    for start, size in product(range(0, len(whole), 13), (0, 1, 40, 5000)):
        assert content[start : start + size] == whole[start : start + size]
    read = content.opened()
    assert read.read(10) + read.read() == whole
    assert read.seek(-4, io.SEEK_END) == len(whole) - 4
    assert read.read() == whole[-4:]


def test_it_is_stored_as_its_bytes_are(content):
    key, identity = bytes(KEY_BYTES), Identity("blob", "weights")
    sizes = [sum(map(len, encrypt(each, key, identity))) for each in (content, content[:])]
    assert sizes == [stored_size(len(content))] * 2


def test_nothing_of_a_tensor_is_copied(content):
    tensor = np.zeros(1000, dtype=np.float32)
    content = WeightsContent({"weight": tensor}, {})
    tensor[-1] = 1.0
    assert content[len(content) - 4 :] == np.float32(1.0).tobytes()
