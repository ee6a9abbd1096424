"""The sealed phase leaves nothing in files: each barrier by itself, and an end to them."""

import ctypes
import mmap
import os
import resource
import socket
import sqlite3
import subprocess
import tempfile
import threading
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from app.domain.errors import WriteRefusedError
from workers.leases.attempts import is_permanent
from workers.seal.ram_only import NOWHERE, ram_only
from workers.seal.write_guard import encoding, writes_refused

WEIGHTS = {"w": np.arange(1000, dtype=np.float32)}


def map_shared(directory):
    with (directory / "old").open("rb") as file:
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_DEFAULT)


WAYS_OUT = {
    "open": lambda d: (d / "new").open("w"),
    "append": lambda d: (d / "old").open("a"),
    "update": lambda d: (d / "old").open("r+b"),
    "os.open": lambda d: os.open(d / "new", os.O_CREAT | os.O_RDWR),
    "rename": lambda d: (d / "old").rename(d / "new"),
    "remove": lambda d: (d / "old").unlink(),
    "mkdir": lambda d: (d / "new").mkdir(),
    "symlink": lambda d: (d / "new").symlink_to("secret"),
    "truncate": lambda d: os.truncate(d / "old", 0),
    "chmod": lambda d: (d / "old").chmod(0o644),
    "attribute": lambda d: os.setxattr(d / "old", "user.secret", b"1"),
    "map": map_shared,
    "temporary file": lambda _: tempfile.TemporaryFile().close(),
    "temporary directory": lambda d: tempfile.mkdtemp(dir=d),
    "numpy": lambda d: np.save(d / "new.npy", WEIGHTS["w"]),
    "safetensors": lambda d: safetensors.numpy.save_file(WEIGHTS, d / "new"),
    "torch": lambda d: torch.save(WEIGHTS, (d / "new").open("wb")),
    "sqlite": lambda d: sqlite3.connect(d / "new"),
    "program": lambda d: subprocess.run(["true"], check=True),
    "shell": lambda d: os.system("true"),
    "fork": lambda d: os.fork() or os._exit(0),
    "connect": lambda d: socket.create_connection(("127.0.0.1", 9), timeout=1),
    "datagram": lambda d: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "shared memory": lambda d: shared_memory.SharedMemory(create=True, size=4096),
}


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "old").write_bytes(b"old")
    return tmp_path


@pytest.mark.parametrize("way", WAYS_OUT)
def test_no_way_leads_out(directory, way):
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with ram_only(), pytest.raises((WriteRefusedError, OSError, safetensors.SafetensorError)):
        WAYS_OUT[way](directory)
    after = {p.name: p.read_bytes() for p in directory.iterdir() if p.stat().st_size}
    assert after == before


@pytest.mark.parametrize("way", sorted(set(WAYS_OUT) - {"safetensors", "shared memory"}))
def test_the_guard_alone_refuses_what_python_does(directory, way):
    with writes_refused(), pytest.raises(WriteRefusedError, match="under their target") as refused:
        WAYS_OUT[way](directory)
    assert str(directory) not in str(refused.value)
    assert is_permanent(refused.value)


def test_the_kernel_alone_refuses_what_compiled_code_does(directory):
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(directory / "old", os.O_RDWR)  # before the phase
    in_memory = os.memfd_create("secret")
    try:
        with ram_only():
            for descriptor in (file, in_memory):
                assert libc.write(descriptor, b"secret", 6) == -1
                assert libc.pwrite(descriptor, b"secret", 6, 0) == -1
                assert libc.ftruncate(descriptor, 100) == -1
            fresh = libc.creat(bytes(directory / "new"), 0o600)
            assert libc.write(fresh, b"secret", 6) == -1
            os.close(fresh)
        assert (directory / "old").read_bytes() == b"old"
        assert (directory / "new").read_bytes() == b""
        assert os.write(file, b"new") == 3
    finally:
        os.close(file)
        os.close(in_memory)


def test_directories_for_caches_cannot_be_made():
    with ram_only():
        for name in ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR"):
            assert os.environ[name] == NOWHERE
        assert tempfile.gettempdir() == NOWHERE
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mkdir(NOWHERE.encode(), 0o700) == -1  # nobody: below a device there is nothing


def test_other_threads_are_held_too(directory):
    found = []

    def write():
        try:
            (directory / "new").write_bytes(b"secret")
        except WriteRefusedError as error:
            found.append(error)

    with ram_only():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert len(found) == 1


def test_reading_computing_and_the_null_device_go_on(directory):
    with ram_only():
        assert (directory / "old").read_bytes() == b"old"
        with Path(os.devnull).open("wb") as null:
            null.write(b"anything")
        reading, writing = os.pipe()
        os.write(writing, b"progress")
        assert os.read(reading, 8) == b"progress"
        os.close(reading)
        os.close(writing)
        assert torch.ones(3).sum() == 3


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_before_when_the_phase_ends(directory, fails):
    before = dict(os.environ), tempfile.tempdir, resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with ram_only():
            assert not fails
    except AssertionError:
        pass
    after = dict(os.environ), tempfile.tempdir, resource.getrlimit(resource.RLIMIT_FSIZE)
    assert after == before
    (directory / "new").write_bytes(b"new")
    subprocess.run(["true"], check=True)


def test_one_phase_may_end_while_another_goes_on(directory):
    with writes_refused():
        with writes_refused():
            pass
        with pytest.raises(WriteRefusedError):
            (directory / "new").touch()


@pytest.mark.parametrize("way", sorted(set(WAYS_OUT) - {"safetensors", "shared memory"}))
def test_what_encodes_records_leaves_nothing(directory, way):
    with encoding(), pytest.raises(WriteRefusedError, match="while records are encoded") as refused:
        WAYS_OUT[way](directory)
    assert str(directory) not in str(refused.value)
    (directory / "new").touch()


def test_other_threads_may_write_while_one_encodes(directory):
    with encoding():
        thread = threading.Thread(target=(directory / "new").touch)
        thread.start()
        thread.join()
    assert (directory / "new").exists()
