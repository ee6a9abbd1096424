"""One of the processes of a run: the leading one carries it out, the others take part.

They are connected by gloo for CPU tensors and by NCCL for CUDA tensors. Rendezvous and all
connections are on the loopback interface. Nothing is encrypted there: what may read a process's
loopback traffic is root, which can read its memory too.
"""

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from app.domain.errors import ProcessLostError, RunFailedError
from app.runtime import log_context, logs
from app.runtime.failpoints import reach
from app.runtime.processes.hardening import harden
from app.runtime.processes.stopping import GRACE_S, StopSignal, stop_with_parent
from app.runtime.settings import Settings
from app.services import open_services
from workers.data.memory import free_at_once
from workers.distributed.following import follow
from workers.distributed.launching import confess, launch
from workers.distributed.processes import Processes
from workers.leases.lease import Lease
from workers.mechanisms.catalogue import load_rules
from workers.run import execute
from workers.training.orders import Order

VARIABLE: Final = "EXPUNGE_DEVICES"
CONNECTED_WITHIN: Final = timedelta(minutes=5)
ANSWERED_WITHIN: Final = timedelta(minutes=20)
"""How long a process waits for the others' part in what all of them do at once. Each has the same
work before it, so this is more than the slowest is behind; a process that waits for something else,
or stands still, ends the attempt."""
# The leading process may read records, or evaluate, for hours before it says what is next. If it
# ends, its connections are closed, which the others notice at once.
_TOLD_WITHIN: Final = timedelta(days=365)


def connected(
    environment: Mapping[str, str],
    *,
    within: timedelta = CONNECTED_WITHIN,
    answered_within: timedelta = ANSWERED_WITHIN,
) -> Processes:
    """Return the processes of this run, connected, as ``elastic_launch`` describes them.

    Raises:
        ProcessLostError: not all of them came in time.
        RunFailedError: this host has fewer GPUs than there are processes.
    """
    rank, devices = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    device = _device(rank, devices)
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = next(
            name for _, name in socket.if_nameindex() if name.startswith("lo")
        )
    try:
        store = TCPStore(
            environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), timeout=within
        )
        store.set(f"here/{rank}", "")
        store.wait([f"here/{other}" for other in range(devices)], within)
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
            store=PrefixStore("run", store),
            rank=rank,
            world_size=devices,
            timeout=answered_within,
        )
        orders = dist.new_group(backend="gloo", timeout=_TOLD_WITHIN)
    except RuntimeError as error:
        raise ProcessLostError(
            f"the {devices} processes of this run did not all connect within "
            f"{within.total_seconds():g} s"
        ) from error
    return Processes(rank, devices, orders=orders, device=device)


def _device(rank: int, devices: int) -> torch.device:
    """Return this process's own device, which PyTorch uses from now on where it is told "cuda"."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if torch.cuda.device_count() < devices:
        raise RunFailedError(
            f"{VARIABLE} is {devices}, and this host has {torch.cuda.device_count()} GPUs: lower it"
        )
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


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
