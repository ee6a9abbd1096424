"""Files on the owner's side: what they hold reaches the service as it is."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.datasets.files import RecordFile, read_record_file
from app.datasets.uploads import Upload
from app.domain.errors import InvalidInputError
from app.domain.schema import FeatureSchema
from tests.support.uploads import parse_upload


def _parsed(file: RecordFile) -> Upload:
    schema = FeatureSchema(
        shape=file.shape, dtype=file.dtype, offset=0.0, scale=1.0, classes=file.classes
    )
    return parse_upload(file.parquet, schema)


def test_csv_keeps_ids_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("record_id,age,subject_id,label,height\n007,30,NA,0,1.5\n7,31,,2,1.75\n")

    file = read_record_file(path)
    upload = _parsed(file)

    assert (file.shape, file.dtype, file.classes) == ((2,), "float32", 3)
    assert upload.record_ids == ["007", "7"]
    assert upload.subject_ids == ["NA", None]
    assert upload.features.tolist() == [[30.0, 1.5], [31.0, 1.75]]


def test_npz_keeps_shape_and_dtype(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.savez(path, record_id=np.array([10, 11]), label=np.array([1, 0]), features=images,
             subject_id=np.array(["x", "y"]))  # fmt: skip

    file = read_record_file(path)
    upload = _parsed(file)

    assert (file.shape, file.dtype, file.classes) == ((3, 4), "uint8", 2)
    assert upload.record_ids == ["10", "11"]
    assert upload.subject_ids == ["x", "y"]
    assert (upload.features.reshape(images.shape) == images).all()


def test_npz_in_another_memory_order_is_the_same_data(tmp_path: Path) -> None:
    images = np.asfortranarray(np.arange(24.0).reshape(2, 3, 4))
    path = tmp_path / "images.npz"
    np.savez(path, record_id=["a", "b"], label=[0, 1], features=images)

    assert (_parsed(read_record_file(path)).features.reshape(images.shape) == images).all()


def test_parquet_lists_declare_their_length(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table({"record_id": ["a"], "label": [4], "features": [[0.5, 0.25, 0.125]]}), path
    )

    file = read_record_file(path)

    assert (file.shape, file.dtype, file.classes) == ((3,), "float32", 5)
    assert _parsed(file).features.tolist() == [[0.5, 0.25, 0.125]]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("data.txt", b"", "expected a .parquet"),
        ("data.parquet", b"junk", "cannot be read"),
        ("data.npz", b"junk", "cannot be read"),
        ("data.npz", b"PK\x03\x04junk", "cannot be read"),
        ("data.npz", b"\x93NUMPY\x01\x00", "cannot be read"),
        ("data.csv", b"", "cannot be read"),
        ("data.csv", b"record_id,label\n1,2\n", "no feature columns"),
        ("data.csv", b"record_id,x\n1,2\n", "no column 'label'"),
        ("data.csv", b"record_id,label,x\n1,2,word\n", "must hold numbers"),
        ("data.csv", b"record_id,label,x\n1,1.5,2\n", "whole numbers"),
        ("data.csv", b"record_id,label,x,x\n1,1,2,3\n", "must be unique"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_words(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(InvalidInputError, match=reason):
        read_record_file(path)


def test_fractional_labels_in_npz_are_refused_rather_than_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, record_id=["a"], label=[1.7], features=np.zeros((1, 2)))

    with pytest.raises(InvalidInputError, match="whole numbers"):
        read_record_file(path)


def test_what_unpacks_to_too_much_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.datasets.files.MAX_UNPACKED_BYTES", 100_000)
    columns = {"record_id": ["a"], "label": [1], "features": np.zeros((1, 100_000))}
    np.savez_compressed(tmp_path / "data.npz", **columns)
    columns["features"] = pa.array([np.arange(100_000)])
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")

    for name in ("data.npz", "data.parquet"):
        with pytest.raises(InvalidInputError, match=r"unpacks to \d+ bytes; the limit is 100000"):
            read_record_file(tmp_path / name)


def test_objects_in_npz_are_refused(tmp_path: Path) -> None:
    ids = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "data.npz", record_id=ids, label=[1], features=np.zeros((1, 2)))

    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_record_file(tmp_path / "data.npz")


def test_a_single_array_is_no_record_file(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")

    with pytest.raises(InvalidInputError):
        read_record_file(tmp_path / "array.npz")
