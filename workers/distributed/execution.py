"""One of the processes of a run: the leading one carries it out, the others take part."""

import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch

from app.runtime import log_context, logs
from app.runtime.failpoints import reach
from app.runtime.processes.hardening import harden
from app.runtime.processes.stopping import GRACE_S, StopSignal, stop_with_parent
from app.runtime.settings import Settings
from app.services import open_services
from workers.data.memory import free_at_once
from workers.distributed.connecting import connected
from workers.distributed.following import follow
from workers.distributed.launching import confess, launch
from workers.leases.lease import Lease
from workers.mechanisms.catalogue import load_rules
from workers.run import execute
from workers.training.orders import Order


def carry_out(lease: Lease, devices: int) -> None:
    """Carry out a leased run in several processes of this host.

    Raises:
        ProcessLostError: one of them ended; another attempt may succeed.
        ExpungeError: as ``workers.run.execute``.
    """
    lease.check()
    launch(
        _process, os.getpid(), lease.run_id, lease.fencing_token, devices=devices, name=lease.run_id
    )


def _process(parent_pid: int, run_id: str, fencing_token: int, pipes: Sequence[Connection]) -> None:
    """Be one of the processes; ``elastic_launch`` has told the environment which."""
    rank = int(os.environ["RANK"])
    stop = StopSignal()
    try:
        _prepare(parent_pid, stop if rank == 0 else None)
        log_context.note_process(run=run_id, process=str(rank))
        _take_part(run_id, fencing_token, stop)
    except BaseException as error:  # noqa: BLE001 - said in what may be shown, and never raised
        confess(pipes[rank], error)


def _prepare(parent_pid: int, stop: StopSignal | None) -> None:
    """Make this process as quiet as its parent, before it reads anything.

    The leading one ends at its next step when it is asked to stop, the others at once.
    """
    harden()
    logs.configure()
    if stop is not None:
        stop.listen()
    else:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    stop_with_parent(parent_pid, hangs_after_s=Settings().lease_s + GRACE_S)
    sys.dont_write_bytecode = True
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    with open(os.devnull, "w", encoding="utf-8") as nothing:  # noqa: PTH123 - libraries write to it directly
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["WORLD_SIZE"])))
    load_rules()
    free_at_once()


def _take_part(run_id: str, fencing_token: int, stop: StopSignal) -> None:
    if int(os.environ["RANK"]) != 0:
        reach("follower_connecting")
    team = connected(os.environ)
    services = open_services(Settings(), process="worker")
    try:
        if not team.leads:
            follow(services, team)
            return
        lease = Lease.shared(
            services.database, run_id, fencing_token, lease_s=services.settings.lease_s, stop=stop
        )
        with lease:
            execute(services, lease, team)
        team.announce(Order.END)
    finally:
        services.close()
