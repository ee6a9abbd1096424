"""Delete-to-Descent (Neel, Roth & Sharifi-Malvajerdi 2021), with the drift that remains.

Full-batch gradient descent with the largest step size, eta = 2 / (smoothness + 2 weight_decay), and
one noisy release from which the lineage goes on: ``tracked_release`` at that step size. One step
contracts by gamma = smoothness / (smoothness + 2 weight_decay), the paper's own factor.

Unlike the theorems as published (``published.neel_theorem_9`` and ``_28``) this assumes no
convergence of training, covers any number of records at once, and keeps no secret state.

Guarantee: mu-GDP, by ``history_account``. Assumptions: as there.
"""

from dataclasses import replace

from app.accounting import tracked_release
from app.accounting.tracked_release import account

__all__ = ["NAME", "TERMS", "VERSION", "account"]

NAME = "delete_to_descent"
VERSION = 1
TERMS = replace(
    tracked_release.TERMS,
    source="Neel, Roth & Sharifi-Malvajerdi 2021; " + tracked_release.TERMS.source,
)
