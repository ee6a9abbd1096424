"""What ensembles cost and score: ``python -m benchmarks.ensembles [--case NAME] [--quick]``.

Pictures from scratch, the same fine-tuned whole from public weights, a table of customers, texts
with adapters on a frozen transformer, and all of EfficientNet-Lite0: each as an ensemble of 1, 4,
8, 16 and 32 members. 100 people ask by themselves, then 100 together: the gradients of the members
that are trained anew are compared with those of one training of everything. Beside them two other
ways to forget the same 100: clipped and noised steps, and a ridge head. What is in the results
already is not measured again, so that the benchmark can be stopped and go on.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from app.planning.mechanisms.gradient_clipping import GradientClipping
from app.planning.shape import ModelShape
from benchmarks import harness
from benchmarks.ensembles_cases import OPTIONS, TITLES, Case, measured
from benchmarks.leaving_out import Ensemble
from benchmarks.public_features import RidgeSums
from benchmarks.unlearning_vs_retraining import DELTA, EPSILON, unlearned
from tests.support.lineages import planned
from workers.training.exact import ridge
from workers.training.examples import classified
from workers.training.frame import ReferenceFrame

PEOPLE: Final = 100
_SEED: Final = 11
_OF_RECIPE: Final = ("optimizer", "learning_rate", "epochs", "batch_size")
_RIVALS: Final = ("ridge_head", "gradient_clipping")
Document = dict[str, Any]


def leaving(case: Case) -> NDArray[np.int64]:
    """Return the people who ask to be forgotten, the same ones of each ensemble."""
    draws = np.random.default_rng(_SEED)
    return draws.choice(np.unique(case.person), size=PEOPLE, replace=False)


def row_of(case: Case, members: int) -> Document:
    """Measure an ensemble of so many members.

    Returns:
        Its accuracy, and the gradients of a request as a part of one training of everything: of
        ``each`` person, in the mean of requests one after the other, and of all ``together``.
    """
    ensemble = Ensemble(case, members)
    ensemble.train(np.ones(len(ensemble.of_person), dtype=bool))
    owner, left = ensemble.owner, np.ones(len(case.person), dtype=bool)
    each = list[float]()
    for person in leaving(case):
        own = case.person == person
        left[own] = False
        each.append(float((owner[left] == owner[own][0]).mean()))
    return {
        "members": members,
        "accuracy": ensemble.without(0),
        "each": float(np.mean(each)),
        "together": float(np.isin(owner[left], owner[~left]).mean()),
    }


def gradient_clipping(case: Case, left: NDArray[np.bool_]) -> Document:
    """Return the whole network after noisy steps to (1, 1e-5), and fine-tuning.

    Both together may compute as many gradients as one training of the records that are left.
    """
    network = case.trained()
    retain = case.train.select(np.flatnonzero(left))
    shape = ModelShape(
        retained=len(retain),
        batch_size=case.recipe.batch_size,
        recipe_epochs=case.recipe.epochs,
        dimension=network.flat.size,
    )
    policy = {"epsilon": EPSILON, "delta": DELTA, "budget_epochs": case.recipe.epochs}
    plan = planned(shape, GradientClipping.name, **policy)
    frame = ReferenceFrame.of(case.random, public_weights=case.public)
    original, size = network.tensors(), case.recipe.batch_size
    certified = unlearned(plan, case.start, original, retain, size, frame)
    spent = certified.noisy_steps / retain.steps_per_epoch(size)
    certified.fine_tune(retain, case.recipe, epochs=max(0.0, plan.budget_epochs - spent))
    score = certified.evaluate(case.test).score
    return {"method": GradientClipping.name, "accuracy": score, "gradients": 1.0}


def ridge_head(case: Case, left: NDArray[np.bool_]) -> Document:
    """Return a ridge head on what a public network sees; forgetting subtracts, exactly."""
    features = case.features_of(case.train.select(np.flatnonzero(left)))
    labels = case.train.target.numpy()[left]
    sums = RidgeSums(features, labels, case.feature_range, classes=case.task.outputs)
    solution = ridge.solve(sums.over(slice(None)), regularisation=None)
    test = classified(torch.from_numpy(case.features_of(case.test)), case.test.target)
    return {"method": "ridge_head", "accuracy": sums.accuracy(solution, test), "gradients": 0.0}


def measure(case: Case, known: Mapping[str, Any]) -> Iterator[Document]:
    """Yield a case's results, each time with one more figure; what is known is kept."""
    recipe = case.recipe.to_json()
    document: Document = {
        "note": case.note,
        "records": len(case.train),
        "people": len(np.unique(case.person)),
        "tested": len(case.test),
        "recipe": {name: recipe[name] for name in _OF_RECIPE},
        "rows": list(known.get("rows", ())),
        "rivals": list(known.get("rivals", ())),
    }
    for count in case.sizes:
        if count not in {row["members"] for row in document["rows"]}:
            document["rows"].append(row_of(case, count))
            yield document
    if not document["rivals"]:
        left = ~np.isin(case.person, leaving(case))
        document["rivals"] = [rival(case, left) for rival in (ridge_head, gradient_clipping)]
    yield document


def run(given: Namespace) -> Iterator[Document]:
    """Yield all cases, again with each figure."""
    names = ("churn", "texts", "scratch", "public", "pictures")
    yield from measured(given, {name: name for name in names}, measure)


def table(document: Document) -> str:
    """Return a table of all cases, in Markdown."""
    sizes = sorted({row["members"] for found in document.values() for row in found["rows"]})
    rows = []
    for case, found in document.items():
        scores = {row["members"]: row["accuracy"] for row in found["rows"]}
        scores |= {row["method"]: row["accuracy"] for row in found["rivals"]}
        cells = (f"{scores[key]:.2%}" if key in scores else "" for key in (*sizes, *_RIVALS))
        rows.append((TITLES[case], *cells))
    rivals = " | ".join(name.replace("_", " ") for name in _RIVALS)
    return harness.table(f"members | {' | '.join(map(str, sizes))} | {rivals}", rows)


if __name__ == "__main__":
    harness.main("ensembles", __doc__, run, options=OPTIONS, table=table)
