"""Connects the processes of a run: CPU tensors by gloo, CUDA tensors by NCCL.

Rendezvous and all connections are on the loopback interface. Nothing is encrypted there: what may
read a process's loopback traffic is root, which can read its memory too.
"""

import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from app.domain.errors import ProcessLostError, RunFailedError
from workers.distributed.processes import Processes

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
