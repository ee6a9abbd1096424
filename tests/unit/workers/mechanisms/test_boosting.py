"""Boosted trees answer as scikit-learn's do, as a network and in NumPy, and twice the same."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import save
from safetensors.torch import save_file
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import expunge
from app.client.published import _trees, head_outputs, read_published
from app.domain.architectures import ArchitectureSpec
from app.domain.columns import CategoryColumn, InputColumns, NumberColumn
from app.domain.description import ModelDescription
from app.domain.errors import RunFailedError
from app.domain.heads.boosted_trees import categories_of
from app.planning.mechanisms.boosting import Boosting
from tests.support.patience import PATIENCE_S
from tests.support.specs import classification, multi_label, regression
from workers.mechanisms.boosting import solve
from workers.training.networks.trees import BoostedTrees
from workers.training.published.onnx_export import export
from workers.training.tasks.catalogue import task_of
from workers.training.tasks.task import INPUTS, TARGET

OPTIONS = {"trees": 30, "leaves": 12, "depth": 6, "smallest_leaf": 5, "shrinkage": 0.2}
SPEC = ArchitectureSpec("boosted_trees", options=OPTIONS)
RANDOM = np.random.default_rng(3)
INPUT = RANDOM.normal(size=(700, 6)).astype(np.float32).round(2)
INPUT[:, 4] = RANDOM.integers(0, 2, 700)  # a category's column
TRUTH = INPUT[:, 0] * INPUT[:, 1] + np.sin(2 * INPUT[:, 2]) + INPUT[:, 4]


def learned(task, targets, inputs=INPUT, *, told=None, **options):
    """Return trees that learned from records, in two batches; ``told`` are held-out ones."""
    rows = getattr(task, "rows", 1)
    trees = BoostedTrees(
        task.outputs,
        rows=rows,
        **{name: OPTIONS[name] for name in ("trees", "leaves", "depth")},
        categories=categories_of(SPEC, task),
    )
    data = SimpleNamespace(retain=records(inputs, targets), held_out=told)
    network = SimpleNamespace(module=trees, task=task_of(task))
    solve(Boosting(**OPTIONS, **options), network, data, task)
    return trees


def records(inputs, targets):
    """Return records that come in two batches."""
    batches = [
        {INPUTS: torch.from_numpy(inputs[half]), TARGET: torch.from_numpy(targets[half])}
        for half in (slice(0, len(inputs) // 2), slice(len(inputs) // 2, None))
    ]
    return SimpleNamespace(in_order=lambda *_, **__: iter(batches))


def reference(kind, targets, inputs=INPUT, **more):
    return kind(
        max_iter=30,
        max_leaf_nodes=12,
        max_depth=6,
        min_samples_leaf=5,
        learning_rate=0.2,
        early_stopping=False,
        **more,
    ).fit(inputs, targets)


def answers(trees, inputs=INPUT, task=None):
    """Return a network's outputs, which NumPy has to compute alike."""
    with torch.no_grad():
        outputs = trees(torch.from_numpy(inputs)).numpy()
    tensors = {name: tensor.detach().numpy() for name, tensor in trees.named_parameters()}
    said = SimpleNamespace(architecture=SPEC, task=task or classification(2))
    same = _trees(np, inputs.astype(np.float64), tensors, said)
    np.testing.assert_allclose(outputs[:, -same.shape[1] :], same, atol=1e-12)
    return outputs


@pytest.mark.parametrize("classes", [2, 5])
def test_classes_are_told_apart_as_by_the_library(classes):
    ranks = np.digitize(TRUTH, np.quantile(TRUTH, np.linspace(0, 1, classes + 1)[1:-1]))
    trees = learned(classification(classes), ranks)
    expected = reference(HistGradientBoostingClassifier, ranks).predict_proba(INPUT)
    found = torch.softmax(torch.from_numpy(answers(trees)), dim=1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (found.argmax(axis=1) == ranks).mean() > 0.9


def test_numbers_are_predicted_as_by_the_library():
    targets = np.stack([TRUTH, -2 * TRUTH + INPUT[:, 3]], axis=1).astype(np.float32)
    task = regression(("a", "b"), loss="squared")
    found = answers(learned(task, targets))
    for row in range(2):
        expected = reference(HistGradientBoostingRegressor, targets[:, row]).predict(INPUT)
        np.testing.assert_allclose(found[:, row], expected, atol=1e-6)


def test_each_label_has_trees_of_its_own_and_one_that_always_holds_none():
    targets = np.stack([TRUTH > 0, np.ones(len(TRUTH)), TRUTH < 1], axis=1).astype(np.float32)
    found = answers(learned(multi_label(("a", "b", "c")), targets))
    for row in (0, 2):
        library = reference(HistGradientBoostingClassifier, targets[:, row] > 0)
        np.testing.assert_allclose(found[:, row], library.decision_function(INPUT), atol=1e-6)
    assert np.all(found[:, 1] == found[0, 1])
    assert found[0, 1] == pytest.approx(np.log(2 * len(TRUTH) + 1))


@pytest.mark.parametrize("present", [[1], [0, 3], [0, 1, 3]])
def test_a_class_without_a_record_is_improbable_and_never_impossible(present):
    ranks = np.array(present)[RANDOM.integers(0, len(present), len(INPUT))]
    found = answers(learned(classification(4), ranks))
    chances = torch.softmax(torch.from_numpy(found), dim=1).numpy()
    absent = [each for each in range(4) if each not in present]
    assert np.all(chances > 0)
    assert np.all(chances[:, absent].max(axis=1) < chances[:, present].max(axis=1))
    assert np.isin(found.argmax(axis=1), present).all()


def test_the_same_records_make_the_same_bytes_and_a_record_less_makes_others():
    ranks = (TRUTH > 0.3).astype(np.int64)
    task = classification(2)
    files = [
        save({name: each.detach().numpy() for name, each in trees.named_parameters()})
        for trees in (
            learned(task, ranks),
            learned(task, ranks),
            learned(task, ranks[1:], INPUT[1:]),
        )
    ]
    assert files[0] == files[1] != files[2]


def grown(trees):
    """Return how many trees each row has."""
    return (trees.left[:, :, 0] > 0).sum(dim=1).tolist()


def test_held_out_records_tell_how_many_trees_are_kept():
    noisy = (TRUTH + 2 * RANDOM.normal(size=len(TRUTH))).astype(np.float32)[:, None]
    task, told = regression(("y",), loss="squared"), records(INPUT[500:], noisy[500:])
    trees = learned(task, noisy[:500], INPUT[:500], told=told, patience=5)
    (kept,) = grown(trees)
    library = reference(HistGradientBoostingRegressor, noisy[:500, 0], INPUT[:500])
    errors = [((each - noisy[500:, 0]) ** 2).mean() for each in library.staged_predict(INPUT[500:])]
    assert 0 < kept < 30 - 5
    assert errors[kept - 1] == min(errors[: kept + 5])
    found = answers(trees, INPUT[500:])[:, 0]
    assert ((found - noisy[500:, 0]) ** 2).mean() == pytest.approx(errors[kept - 1])
    assert grown(learned(task, noisy[:500], INPUT[:500], told=told)) == [30]
    nobody = records(INPUT[:0], noisy[:0])
    assert grown(learned(task, noisy[:500], INPUT[:500], told=nobody, patience=5)) == [30]


@pytest.mark.parametrize("classes", [2, 4])
def test_a_held_out_record_of_a_class_that_no_other_has_tells_nothing(classes):
    ranks = np.digitize(TRUTH + RANDOM.normal(size=len(TRUTH)), [-0.5, 0.5])[:600] % classes
    told = records(INPUT[600:], np.full(100, classes - 1, dtype=np.int64))
    trees = learned(classification(classes), ranks, INPUT[:600], told=told, patience=3)
    assert max(grown(trees)) == (30 if classes == 4 else grown(trees)[0])


CATEGORIES = tuple(f"c{place}" for place in range(70))


def of_categories():
    """Return a task, its inputs and the columns that the library reads for them."""
    columns = (
        NumberColumn(name="first"),
        CategoryColumn(name="town", values=CATEGORIES, other=True),
        NumberColumn(name="age"),
        CategoryColumn(name="plan", values=("a", "b"), other=True),
        CategoryColumn(name="only", values=("a",)),
    )
    codes = [RANDOM.integers(0, column.width, len(INPUT)) for column in columns[1::2]]
    hot = [np.eye(each)[code] for each, code in zip((71, 3), codes, strict=True)]
    numbers = (INPUT[:, :1], INPUT[:, 1:2], np.ones((len(INPUT), 1)))
    inputs = np.concatenate([numbers[0], hot[0], numbers[1], hot[1], numbers[2]], axis=1)
    library = np.stack([*codes, *(each[:, 0] for each in numbers)], axis=1)
    task = replace(regression(("y",), loss="squared"), inputs=InputColumns(columns=columns))
    return task, inputs.astype(np.float32), library.astype(np.float64)


def test_a_column_of_categories_is_split_by_sets_as_by_the_library():
    task, inputs, library = of_categories()
    known = (library[:, 0] < 60) & (library[:, 0] != 5)  # the others have no record
    worth = RANDOM.normal(size=71)[library[:, 0].astype(int)]
    targets = (worth + INPUT[:, 0] * (library[:, 1] == 2)).astype(np.float32)[:, None]
    trees = learned(task, targets[known], inputs[known])
    assert trees.categories.shape[-1] == 3
    expected = reference(
        HistGradientBoostingRegressor,
        targets[known, 0],
        library[known],
        categorical_features=[0, 1],
    ).predict(library)
    found = answers(trees, inputs, task)[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(found - targets[:, 0])[known].mean() < np.abs(worth).mean() / 2
    records = {"features": {0: torch.export.Dim("records")}}
    example = (torch.from_numpy(inputs[:2]),)
    program = torch.export.export(trees, example, dynamic_shapes=records, strict=True)
    written = torch.onnx.export(program, dynamo=True, input_names=["features"], verbose=False)
    session = onnxruntime.InferenceSession(written.model_proto.SerializeToString())
    (same,) = session.run(None, {"features": inputs})
    np.testing.assert_allclose(same[:, 0], found, atol=1e-6)


@pytest.mark.parametrize("kind", ["two", "five", "labels", "numbers"])
def test_an_ensemble_says_what_the_librarys_models_say_on_average(kind, tmp_path):
    """Of three members that are active, of four; as a network, in NumPy and in ONNX."""
    task, inputs, seen = of_categories()
    task, targets, expected = {
        "two": (classification(2), TRUTH > 0.3, lambda each: each.predict_proba(seen)),
        "five": (
            classification(5),
            np.digitize(TRUTH, [-1, 0, 0.5, 1]),
            lambda each: each.predict_proba(seen),
        ),
        "labels": (multi_label(("a",)), TRUTH[:, None] > 0, lambda each: each.predict_proba(seen)),
        "numbers": (
            regression(("y",), loss="squared", offset=5.0, scale=0.5),
            TRUTH[:, None],
            lambda each: 5 + each.predict(seen)[:, None] / 0.5,
        ),
    }[kind]
    task = replace(task, inputs=of_categories()[0].inputs)
    regressed = kind == "numbers"
    library = HistGradientBoostingRegressor if regressed else HistGradientBoostingClassifier
    parts = {member: slice(each, None, 3) for each, member in enumerate((0, 1, 3))}
    tensors, found = dict[str, torch.Tensor](), []
    for member, part in parts.items():
        of_task = np.float32 if kind in ("labels", "numbers") else np.int64
        trees = learned(task, targets[part].astype(of_task), inputs[part])
        tensors |= {f"members.{member}.{name}": each for name, each in trees.state_dict().items()}
        own = reference(library, targets[part].reshape(-1), seen[part], categorical_features=[0, 1])
        found.append(expected(own))
    described = ModelDescription(
        model="m",
        version=2,
        architecture=ArchitectureSpec("ensemble", members=4, of=SPEC),
        task=task,
        out={2: 2},
    )
    path, graph = tmp_path / "m.safetensors", tmp_path / "m.onnx"
    save_file(tensors, path, metadata=described.to_metadata())

    model = expunge.load(path, check=False)
    outputs = model.outputs_of(inputs).numpy()
    plain = head_outputs(read_published(path, check=False), inputs)
    given = [outputs, plain]
    if kind == "two":  # takes ten seconds
        export(model, graph)
        session = onnxruntime.InferenceSession(graph)
        given += session.run(None, {session.get_inputs()[0].name: inputs})

    average = np.mean(found, axis=0)
    answered = {
        "labels": lambda logits: 1 / (1 + np.exp(-logits)),
        "numbers": lambda numbers: numbers,
    }.get(kind, np.exp)
    average = average[:, 1:] if kind == "labels" else average
    for each in given:
        np.testing.assert_allclose(answered(each), average, atol=1e-6)
    np.testing.assert_allclose(outputs, plain, atol=1e-9)
    assert np.abs(found[0] - average).max() > 0.01


def test_what_is_no_number_counts_as_nought():
    trees = learned(classification(2), (TRUTH > 0).astype(np.int64))
    strange = INPUT[:3].copy()
    strange[:, 0] = [np.nan, np.inf, -np.inf]
    plain = INPUT[:3].copy()
    plain[:, 0] = 0
    with torch.no_grad():
        assert torch.equal(trees(torch.from_numpy(strange)), trees(torch.from_numpy(plain)))


def test_without_a_record_or_trees_nothing_is_grown():
    empty = SimpleNamespace(retain=SimpleNamespace(in_order=lambda *_, **__: iter([])))
    trees = BoostedTrees(2, rows=1, trees=1, leaves=2, depth=1)
    task = classification(2)
    with pytest.raises(RunFailedError, match="no record is left"):
        solve(Boosting(**OPTIONS), SimpleNamespace(module=trees, task=task_of(task)), empty, task)
    with pytest.raises(RunFailedError, match="needs boosted_trees"):
        solve(Boosting(**OPTIONS), SimpleNamespace(module=torch.nn.Linear(2, 2)), empty, task)


FORKED = """
import os, sys
import numpy as np
from workers.mechanisms import boosting
from app.planning.mechanisms.boosting import Boosting

def refuse(event, arguments):
    if event == "subprocess.Popen" or (event == "open" and arguments[1] not in ("r", "rb", None)):
        os._exit(3)

child = os.fork()
if child == 0:
    sys.addaudithook(refuse)
    sizes = {"trees": 3, "leaves": 4, "depth": 3, "smallest_leaf": 1}
    mechanism = Boosting(**sizes, shrinkage=0.5, patience=2)
    seen = np.arange(80.0).reshape(-1, 2) % 7
    trees = boosting.BoostedTrees(2, rows=1, trees=3, leaves=4, depth=3, categories=[(0, 7)])
    with boosting.repeatable(), boosting.threadpool_limits(limits=1, user_api="openmp"):
        kind = boosting.HistGradientBoostingClassifier
        holds = seen[:, 0] > 3
        with boosting.torch.no_grad():
            boosting._Grower(mechanism, trees, seen, seen).grow(kind, holds, holds, [0])
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_grows_trees_without_a_program_or_a_file_that_is_written():
    """As a worker does, whose environment limits no threads."""
    unlimited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env=unlimited, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0
