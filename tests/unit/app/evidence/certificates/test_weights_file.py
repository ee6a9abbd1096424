"""What is read from a safetensors file without loading it, and what is refused."""

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import VerificationError
from app.evidence.certificates.weights_file import MAX_HEADER_BYTES, StoredTensor, opened

TENSORS = {
    "b": np.arange(6, dtype=np.float64).reshape(2, 3),
    "a": np.zeros((4,), np.float32),
    "empty": np.zeros((0, 3), np.float16),
    "number": np.array(7, np.int64),
}
CONTENT = safetensors.numpy.save(TENSORS, metadata={"made": "here"})


def _file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _entry(start: int, end: int, **changes: Any) -> dict[str, Any]:
    shape = [(end - start) // 4]
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]} | changes


def _refused(content: bytes) -> None:
    with opened(content) as file, pytest.raises(VerificationError) as caught:
        file.tensors()
    assert caught.value.step == "weights"


def test_names_types_and_shapes_come_from_the_header() -> None:
    with opened(CONTENT) as file:
        found = file.tensors()
        digest = file.sha256()
    assert {name: (t.dtype, t.shape, t.size) for name, t in found.items()} == {
        "b": ("F64", (2, 3), 6),
        "a": ("F32", (4,), 4),
        "empty": ("F16", (0, 3), 0),
        "number": ("I64", (), 1),
    }
    assert digest == hashlib.sha256(CONTENT).hexdigest()


def test_a_file_on_disk_reads_as_one_in_memory(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(CONTENT)
    with opened(tmp_path / "weights") as disk, opened(CONTENT) as memory:
        assert disk.tensors() == memory.tensors()
        assert disk.sha256() == memory.sha256()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(VerificationError, match="digest"), opened(path):
            pass


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        CONTENT[:-1],
        CONTENT + b"x",
        (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b" " * 100,
        (2**63).to_bytes(8, "little") + b"{}",
        _file({}),
        _file([]),
        _file(b"nothing"),
        _file(b'{"a":' * 10_000),
        _file({"a": _entry(0, 4)}),
        _file({"a": _entry(0, 4), "b": _entry(0, 4)}, b"1234"),
        _file({"a": _entry(0, 4), "b": _entry(8, 12)}, b"1234" * 3),
        _file({"a": _entry(4, 8)}, b"1234" * 2),
        _file({"a": _entry(0, 4)}, b"1234" * 2),
        _file({"a": _entry(0, 4, shape=[2])}, b"1234"),
        _file({"a": _entry(0, 4, shape=[-1])}, b"1234"),
        _file({"a": _entry(0, 4, shape=[True])}, b"1234"),
        _file({"a": _entry(0, 4, shape=[1.0])}, b"1234"),
        _file({"a": _entry(0, 4, shape=1)}, b"1234"),
        _file({"a": _entry(0, 4, shape=[1] * 17)}, b"1234"),
        _file({"a": _entry(0, 4, dtype="F24")}, b"1234"),
        _file({"a": _entry(0, 4, dtype=[])}, b"1234"),
        _file({"a": _entry(0, 4, data_offsets=[0])}, b"1234"),
        _file({"a": _entry(0, 4, data_offsets=[4, 0])}, b"1234"),
        _file({"a": _entry(0, 4, extra=1)}, b"1234"),
        _file({"a": None}, b"1234"),
        _file(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            b"1234",
        ),
    ],
)
def test_bytes_that_are_no_such_file(content: bytes) -> None:
    _refused(content)


@given(st.binary(max_size=300) | st.binary(max_size=200).map(_file))
def test_nothing_but_a_verification_error_comes_of_garbage(content: bytes) -> None:
    with opened(content) as file:
        try:
            file.tensors()
        except VerificationError as error:
            assert error.step == "weights"  # noqa: PT017


@pytest.mark.parametrize("grid", [2.0**-24, 2.0**-3, 1.0, 2.0**70])
def test_numbers_on_a_grid_and_beside_it(grid: float) -> None:
    numbers = np.random.default_rng(1).integers(-(2**50), 2**50, (3, 5)) * grid
    assert _on_grid(numbers, grid)
    assert _on_grid(-0.0 * numbers, grid)
    for other in (numbers[2, 4] + grid / 2, 5e-324, -5e-324, np.nan, np.inf, -np.inf):
        beside = numbers.copy()
        beside[2, 4] = other
        assert not _on_grid(beside, grid)


def test_the_norm_of_a_tensor_is_of_all_its_numbers() -> None:
    numbers = np.array([[3.0, 0.0], [0.0, -4.0]])
    for stored, norm in ((numbers, 5.0), (np.ones(10**6), 1000.0), (numbers * np.nan, math.nan)):
        with opened(safetensors.numpy.save({"weight": stored})) as file:
            found = file.norm(file.tensors()["weight"])
        assert found == pytest.approx(norm, nan_ok=True)


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(safetensors.numpy.save({"weight": np.zeros(100_000)}))
    with opened(path) as file:
        tensor = file.tensors()["weight"]
        os.truncate(path, tensor.end - 80)
        with pytest.raises(VerificationError, match="changed while it was read"):
            file.is_on_grid(tensor, 1.0)


def test_a_tensor_knows_its_size() -> None:
    assert StoredTensor("F32", (2, 3, 4), 0, 96).size == 24
    assert StoredTensor("F32", (), 0, 4).size == 1


def _on_grid(numbers: np.ndarray, grid: float) -> bool:
    with opened(safetensors.numpy.save({"weight": numbers})) as file:
        return file.is_on_grid(file.tensors()["weight"], grid)


def test_only_an_ensembles_file_has_members() -> None:
    number = np.zeros(1, np.float32)
    with opened(safetensors.numpy.save({"members.3.a": number, "members.5.a": number})) as file:
        assert file.digests_of_members().keys() == {3, 5}
    for beside in ({"a": number}, {"members.1.a": number, "a": number}):
        refused = pytest.raises(VerificationError, match="not those of an ensemble")
        with opened(safetensors.numpy.save(beside)) as file, refused:
            file.digests_of_members()
