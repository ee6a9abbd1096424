"""A membership attack: can a loss distinguish forgotten records from held-out ones?

The loss-threshold attack (Yeom et al. 2018, arXiv 1709.01604) classifies a record with a small loss
as a training record. Over all thresholds, its strength is the area under the ROC curve: the
probability that a forgotten record has a smaller loss than a held-out one, with ties counting half.
0.5 is guessing; 1 is certainty.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from workers.training.evaluate import EVALUATION_BATCH, evaluating
from workers.training.examples import Records
from workers.training.networks.network import Network
from workers.training.tasks.metrics import area_under_roc


def membership_auc(network: Network, *, forgotten: Records, held_out: Records) -> float:
    """Return the attack's area under the curve, from 0 to 1; the network's modes are kept.

    Args:
        network: the attacked network.
        forgotten: records that it may have been trained on.
        held_out: records that it was not trained on.

    Raises:
        RunFailedError: there are no forgotten or no held-out records.
    """
    return loss_threshold_auc(
        members=record_losses(network, forgotten), others=record_losses(network, held_out)
    )


def loss_threshold_auc(*, members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the probability that a member's loss is below a non-member's; ties count half.

    NaN counts as infinite.

    Raises:
        RunFailedError: either is empty.
    """
    if not len(members) or not len(others):
        raise RunFailedError("a membership attack needs a forgotten and a held-out record")
    members, others = (np.nan_to_num(each, nan=np.inf, posinf=np.inf) for each in (members, others))
    return area_under_roc(above=others, below=members)


def record_losses(network: Network, examples: Records) -> NDArray[np.float64]:
    """Return each record's loss, in evaluation mode and in the stored order."""
    module = network.module
    losses = [torch.empty(0)]
    with evaluating(module):
        losses += [
            network.task.loss(module, batch).cpu()
            for batch in examples.in_order(EVALUATION_BATCH, device=network.flat.device)
        ]
    return torch.cat(losses).to(torch.float64).numpy()
