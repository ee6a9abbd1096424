"""The rule of ``app.planning.mechanisms.sufficient_statistics``: one function of the sums."""

import torch

from app.domain.errors import RunFailedError
from app.domain.tasks.spec import TaskSpec
from app.planning.mechanisms.sufficient_statistics import SufficientStatistics
from workers.data.loading import RunData
from workers.training.exact import ridge
from workers.training.exact.statistics import LEVELS, Targets
from workers.training.networks.heads import RidgeHead
from workers.training.networks.network import Network


def solve(mechanism: SufficientStatistics, network: Network, data: RunData, task: TaskSpec) -> None:
    """Put what is computed from a run's sums into a ridge head.

    Raises:
        RunFailedError: the network or the run's data are of another mechanism, or there is no
            finite solution.
    """
    head = network.module
    if not isinstance(head, RidgeHead) or data.summed is None:
        raise RunFailedError("a ridge solution needs a ridge_head and its sums")
    solution = ridge.solve(data.summed.statistics, regularisation=mechanism.regularisation)
    levels = LEVELS / mechanism.feature_range
    unit = Targets(task, mechanism.target_range).unit
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(solution.weight * levels * unit))
        head.bias.copy_(torch.from_numpy(solution.bias * unit))
