"""What ensembles cost and score: ``python -m benchmarks.ensembles [--data mnist] [--quick]``.

A network from scratch, and the same fine-tuned whole from public weights (of the other half of the
pictures), each as an ensemble of 1, 4, 8, 16 and 32 members. Each picture is a person. 100 of them
ask by themselves, then 100 together: compared are the gradients of the members that are trained
anew with those of one training of everything, and the accuracy before and after. Then a service of
its own answers a request that concerns four members, with one worker and with two. Results go to
benchmarks/results/ensembles.json.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from app.accounting.sharded_retraining import expected_members
from app.domain.architecture import ArchitectureSpec
from app.domain.recipes.recipe import TrainingRecipe
from app.domain.tasks.classification import ClassificationSpec
from benchmarks import ensembles_service
from benchmarks.convex_backbone import public_half
from benchmarks.data import CLASSES, Pictures, load
from workers.training.architectures import build
from workers.training.data import Examples
from workers.training.ensemble import Ensemble
from workers.training.network import Network

RESULTS: Final = Path(__file__).parent / "results" / "ensembles.json"
MEMBERS: Final = (1, 4, 8, 16, 32)
PERSONS: Final = 100
HIDDEN: Final = (128,)
_RECIPE: Final = TrainingRecipe(learning_rate=0.05, momentum=0.9, batch_size=64, epochs=10)
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """One ensemble.

    Attributes:
        start: ``scratch``, or ``public`` weights.
        accuracy, after: on the test pictures, before and after 100 persons were forgotten.
        each: gradients of a request of one person, as a part of one training of everything, in the
            mean of 100 requests one after the other.
        together: the same of one request of 100 persons.
        expected: what the planner expects of that, from the number of members alone.
    """

    start: str
    members: int
    accuracy: float
    after: float
    each: float
    together: float
    expected: float


class Case:
    """Pictures, a start and a recipe.

    Args:
        start: ``scratch`` or ``public``.
        train, test: pictures; those to train on are persons each.
        initial: public weights, or none.
    """

    def __init__(
        self,
        start: str,
        train: Examples,
        test: Examples,
        initial: dict[str, torch.Tensor] | None = None,
    ) -> None:
        self._start = start
        self._train, self._test = train, test
        self._initial = initial
        self._random = np.random.default_rng(11)

    def row(self, members: int) -> Row:
        """Measure an ensemble of so many members."""
        owner = self._random.integers(members, size=len(self._train))
        networks = [self.trained(np.flatnonzero(owner == own)) for own in range(members)]
        before = self._accuracy(networks)
        gone = self._random.choice(len(self._train), size=PERSONS, replace=False)
        left = np.ones(len(self._train), dtype=bool)
        each = []
        for person in gone:
            left[person] = False
            each.append((left & (owner == owner[person])).sum() / left.sum())
        concerned = np.unique(owner[gone])
        for member in concerned:
            networks[member] = self.trained(np.flatnonzero(left & (owner == member)))
        return Row(
            start=self._start,
            members=members,
            accuracy=before,
            after=self._accuracy(networks),
            each=float(np.mean(each)),
            together=float((left & np.isin(owner, concerned)).sum() / left.sum()),
            expected=expected_members(members, PERSONS) / members,
        )

    def trained(self, places: NDArray[np.int64]) -> nn.Module:
        """Return a network that learned from the pictures at these places."""
        network = Network(self._fresh, device=_CPU)
        network.train(self._train.select(places), _RECIPE, epochs=_RECIPE.epochs)
        return network.module

    def _fresh(self) -> nn.Module:
        module = build(
            ArchitectureSpec("mlp", {"hidden": list(HIDDEN)}),
            input_shape=tuple(self._train.inputs.shape[1:]),
            classes=CLASSES,
            allowed_factories=(),
        )
        if self._initial is not None:
            module.load_state_dict(self._initial)
        return module

    def _accuracy(self, networks: Sequence[nn.Module]) -> float:
        whole = Network(
            lambda: Ensemble(networks, ClassificationSpec(classes=CLASSES)), device=_CPU
        )
        return float(whole.evaluate(self._test).metrics["accuracy"])


def cases(pictures: Pictures) -> list[Case]:
    """Return the network from scratch, and from weights of the public half of the pictures."""
    public, private = public_half(pictures)
    scratch = Case("scratch", pictures.train, pictures.test)
    teacher = Case("teacher", public, pictures.test).trained(np.arange(len(public)))
    initial = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    return [scratch, Case("public", private, pictures.test, initial)]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="mnist", choices=("mnist", "cifar10", "digits"))
    parser.add_argument("--quick", action="store_true", help="small digits, two sizes, no service")
    chosen = parser.parse_args()
    pictures = load("digits" if chosen.quick else chosen.data)
    torch.set_num_threads(1)
    rows = []
    for case in cases(pictures):
        for members in MEMBERS[:2] if chosen.quick else MEMBERS:
            began = time.perf_counter()
            row = case.row(members)
            rows.append(asdict(row))
            print(f"{row} {time.perf_counter() - began:.0f} s", flush=True)
    document: dict[str, Any] = {
        "data": pictures.name,
        "note": pictures.note,
        "hidden": list(HIDDEN),
        "epochs": _RECIPE.epochs,
        "rows": rows,
    }
    if not chosen.quick:
        document["service"] = ensembles_service.measure(pictures)
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
