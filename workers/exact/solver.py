"""What computes the head of a run whose release is a function of its records."""

from typing import Protocol

from app.domain.tasks.spec import TaskSpec
from workers.data.loading import RunData
from workers.networks.network import Network


class Solver(Protocol):
    """A mechanism at work: see ``workers.mechanisms.exact_training``."""

    def solve(self, network: Network, data: RunData, task: TaskSpec) -> None:
        """Set the weights of a fresh network from the retained records, or their sums, alone."""
