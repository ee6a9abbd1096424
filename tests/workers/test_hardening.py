"""What the child that carries out a run is made before it reads anything."""

import ctypes
import json
import os
import resource
import sys
from pathlib import Path

from rq import Worker
from rq.serializers import JSONSerializer

from app.services import redis_connection
from workers.hardening import harden, may_lock_memory
from workers.queue import NAME
from workers.worker import RunWorker

PR_GET_DUMPABLE = 3


def in_a_child(work):
    """Return what ``work`` returns in a forked child, by way of JSON."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def state():
    status = Path("/proc/self/status").read_text().splitlines()
    return {
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "dumpable": ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0),
        "locked_kb": int(next(line for line in status if line.startswith("VmLck")).split()[1]),
        "bytecode": not sys.dont_write_bytecode,
        "cuda_cache": os.environ.get("CUDA_CACHE_DISABLE") != "1",
    }


def test_a_hardened_process_leaves_nothing_to_look_at():
    def work():
        harden()
        return state()

    found = in_a_child(work)
    assert found["core"] == [0, 0]
    assert found["dumpable"] == 0
    assert not found["bytecode"]
    assert not found["cuda_cache"]
    if may_lock_memory():
        assert found["locked_kb"] > 0


def test_a_process_that_may_not_lock_its_memory_works_all_the_same():
    def work():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
        if os.geteuid() == 0:
            os.setuid(65534)
        refused = not may_lock_memory()
        harden()
        return refused, len(bytes(1 << 24)), state()

    refused, allocated, found = in_a_child(work)
    assert refused
    assert allocated == 1 << 24
    assert found["dumpable"] == 0


def test_the_child_of_a_worker_is_hardened_before_its_job(services, monkeypatch):
    connection = redis_connection(services.settings)
    worker = RunWorker([NAME], connection=connection, serializer=JSONSerializer)

    def work():
        seen = []
        monkeypatch.setattr(Worker, "main_work_horse", lambda *_: seen.append(state()))
        worker.main_work_horse(None, None)
        return seen

    (found,) = in_a_child(work)
    assert found["dumpable"] == 0
    assert ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1
