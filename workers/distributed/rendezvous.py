"""Where processes of one host find each other: a store that listens on the loopback address alone.

PyTorch's own rendezvous listens on every interface. This one is theirs but for the socket, which is
bound before the store gets it.
"""

import socket
from datetime import timedelta
from typing import Final

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

LOOPBACK: Final = "127.0.0.1"
NAME: Final = "expunge_loopback"
_TIMEOUT: Final = timedelta(minutes=5)


class _Loopback(RendezvousHandler):
    """The rendezvous of one host with itself."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._store: Store | None = None
        self._port = 0

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            listening = socket.create_server((LOOPBACK, 0))
            self._port = listening.getsockname()[1]
            self._store = TCPStore(
                LOOPBACK,
                self._port,
                is_master=True,
                timeout=_TIMEOUT,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
        return RendezvousInfo(
            PrefixStore(self._run_id, self._store),
            0,
            1,
            RendezvousStoreInfo(LOOPBACK, self._port),
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


def _created(parameters: RendezvousParameters) -> RendezvousHandler:
    return _Loopback(parameters.run_id)


def register() -> None:
    """Make it known to ``elastic_launch`` under ``NAME``; safe to repeat."""
    rendezvous_handler_registry.register(NAME, _created)
