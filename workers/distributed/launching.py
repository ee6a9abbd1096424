"""Starts the processes of a run on this host, and says why it failed if it did.

PyTorch's ``elastic_launch`` starts them, watches them and ends all when one ends. A process says in
a pipe how it failed, since what it raised would be written to a file.
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from app.domain.errors import LeaseLostError, ProcessLostError, RunFailedError, RunInterruptedError
from app.runtime.logs import describe
from workers.leases.attempts import is_permanent

_LOOPBACK: Final = "127.0.0.1"
_NAME: Final = "expunge_loopback"
_FOUND_WITHIN: Final = timedelta(minutes=5)
_END_WITHIN_S: Final = 15
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


_LOST: Final = "lost"  # another one ended, or all were told to
_RAISED: Final[dict[str, type[Exception]]] = {
    "lease_lost": LeaseLostError,
    "permanent": RunFailedError,
    "other": ProcessLostError,
}
"""By the word that a process says; the first of them is the reason."""


def confess(pipe: Connection, error: BaseException) -> NoReturn:
    """Say why this process fails, in what may be shown, and end it."""
    kind = "permanent" if is_permanent(error) else "other"
    if isinstance(error, LeaseLostError):
        kind = "lease_lost"
    elif isinstance(error, ProcessLostError | RunInterruptedError):
        kind = _LOST
    pipe.send_bytes(f"{kind} {describe(error)}".encode())
    os._exit(1)


def launch(entry: Callable[..., None], *arguments: object, devices: int, name: str) -> None:
    """Run a function in so many processes, until all have returned.

    It gets ``arguments`` and all ranks' pipes for ``confess``, and must not raise. ``name`` is the
    run's id.

    Raises:
        LeaseLostError, RunFailedError: a process said so.
        RunInterruptedError: this process was asked to stop.
        ProcessLostError: a process ended otherwise.
    """
    rendezvous_handler_registry.register(_NAME, _Loopback)
    context = get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(devices)]
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=name,
        rdzv_backend=_NAME,
        rdzv_endpoint=_LOOPBACK,
        local_addr=_LOOPBACK,
        max_restarts=0,
        start_method="spawn",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        shutdown_timeout=_END_WITHIN_S,
    )
    told, tell = ([pipe[end] for pipe in pipes] for end in (0, 1))
    with _signals_restored():
        try:
            elastic_launch(config, entry)(*arguments, tell)
        except SignalException as error:
            raise RunInterruptedError("the worker was asked to stop") from error
        except ChildFailedError as error:
            raise _why(told, error) from None


def _why(told: list[Connection], error: ChildFailedError) -> Exception:
    """Return what the processes said; one that lost another is not the reason."""
    said = {
        rank: pipe.recv_bytes().decode().split(" ", 1)
        for rank, pipe in enumerate(told)
        if pipe.poll()
    }
    silent = {rank: each for rank, each in error.failures.items() if rank not in said}
    for kind, raised in _RAISED.items():
        for known, reason in said.values():
            if known == kind and not (kind == "other" and silent):
                return raised(reason)
    for rank, failure in silent.items():
        code = failure.exitcode
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return ProcessLostError(f"process {rank} of this run ended: {how}")
    return ProcessLostError(next(reason for _, reason in said.values()))


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Give this process its own handlers back, which PyTorch's launcher replaces."""
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Loopback(RendezvousHandler):
    """Where processes of one host find each other.

    PyTorch's own rendezvous listens on every interface. This one is theirs but for the socket,
    which is bound to the loopback address before the store gets it.
    """

    def __init__(self, given: RendezvousParameters) -> None:
        self._run_id = given.run_id
        self._store: Store | None = None
        self._port = 0

    def get_backend(self) -> str:
        return _NAME

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            listening = socket.create_server((_LOOPBACK, 0))
            self._port = listening.getsockname()[1]
            self._store = TCPStore(
                _LOOPBACK,
                self._port,
                is_master=True,
                timeout=_FOUND_WITHIN,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
        return RendezvousInfo(
            PrefixStore(self._run_id, self._store),
            0,
            1,
            RendezvousStoreInfo(_LOOPBACK, self._port),
        )

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass  # no other host can join

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._store = None
        return True
