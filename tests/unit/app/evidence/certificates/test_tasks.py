"""A head's certificate counts with the constants of the task that its file says it learned."""

from dataclasses import replace

import pytest

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import VerificationError
from app.domain.tasks.spec import Augmentation, TaskSpec, WeightColumn
from tests.support.specs import classification, language_model, multi_label, regression
from tests.support.statements import synthetic
from tests.unit.app.evidence.certificates.test_description import PLAIN, _checked

THREE = classification(3)
NAMES = ("a", "b", "c")
LABELS = multi_label(NAMES)
SQUARED = regression(NAMES)
HUBER = replace(SQUARED, loss="huber")
HEAVY = WeightColumn(column="w", most=2.0)


def said(task: TaskSpec, architecture: str = "linear_head", **options: object) -> dict[str, str]:
    return replace(
        PLAIN,
        architecture=ArchitectureSpec(architecture, options),
        task=task,
    ).to_metadata()


@pytest.mark.parametrize("mechanism", ["tracked_release", "exact_training"])
def test_a_file_of_the_accounted_task_is_accepted(mechanism: str) -> None:
    assert "NOT COMPARED" not in _checked(synthetic()[mechanism], said(THREE))


@pytest.mark.parametrize(
    "task",
    [
        LABELS,
        HUBER,
        SQUARED,
        replace(HUBER, threshold=1e-6),
        replace(THREE, weight=HEAVY),
        replace(THREE, class_weights=(1.0, 1.0, 1.5)),
        replace(THREE, weight=replace(HEAVY, most=0.5)),
    ],
)
@pytest.mark.parametrize("mechanism", ["tracked_release", "projected_noisy_sgd", "noisy_gd_convex"])
def test_a_history_with_the_constants_of_another_task_is_refused(
    mechanism: str, task: TaskSpec
) -> None:
    with pytest.raises(VerificationError, match="smoothness or lipschitz"):
        _checked(synthetic()[mechanism], said(task))


@pytest.mark.parametrize("task", [LABELS, HUBER, SQUARED, replace(THREE, class_weights=(1, 2, 3))])
def test_exact_training_needs_a_minimum_and_no_slope(task: TaskSpec) -> None:
    assert "NOT COMPARED" not in _checked(synthetic()["exact_training"], said(task))


@pytest.mark.parametrize("task", [replace(SQUARED, loss="quantile"), language_model(3)])
def test_exact_training_of_what_has_no_minimum_is_refused(task: TaskSpec) -> None:
    with pytest.raises(VerificationError, match="no linear head learns its task"):
        _checked(synthetic()["exact_training"], said(task))


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (THREE, None),
        (replace(LABELS, class_weights=(1.0, 2.0, 3.0)), None),
        (HUBER, "below that of a linear head's task, regression"),
        (SQUARED, "below that of a linear head's task, regression"),
        (replace(THREE, weight=HEAVY), "below that of a linear head's task, classification"),
        (replace(LABELS, class_weights=(1.0, 1.0, 4.0)), "below that of a linear head's task"),
        (language_model(3), "below that of a linear head's task, language_model"),
    ],
)
def test_a_smoothness_is_that_of_a_heads_task_under_its_bound(
    task: TaskSpec, reason: str | None
) -> None:
    case = synthetic()["noisy_gd_nonconvex"]
    assert "NOT COMPARED" not in _checked(case, said(task, "logistic"))  # the operator's word
    if reason is None:
        assert "NOT COMPARED" not in _checked(case, said(task))
        return
    with pytest.raises(VerificationError, match=reason):
        _checked(case, said(task))


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (replace(SQUARED, loss="quantile"), "curvature of its loss: the quantile loss has a kink"),
        (replace(THREE, augment=(Augmentation(name="flip"),)), "curvature of its loss: augment"),
    ],
)
def test_no_smoothness_is_that_of_a_rough_loss(task: TaskSpec, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        _checked(synthetic()["noisy_gd_nonconvex"], said(task, "logistic"))


def test_sums_over_targets_are_those_of_the_stated_range() -> None:
    numbers = synthetic()["sufficient_statistics_of_numbers"]
    ranges = {"feature_range": 16.0, "target_range": 4.0}
    assert "NOT COMPARED" not in _checked(numbers, said(SQUARED, "ridge_head", **ranges))
    for other in ({"target_range": 5.0}, {"feature_range": 1.0}):
        with pytest.raises(VerificationError, match="was computed otherwise"):
            _checked(numbers, said(SQUARED, "ridge_head", **ranges | other))
    with pytest.raises(VerificationError, match="target_range is for regression only"):
        _checked(numbers, said(LABELS, "ridge_head", **ranges))


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (SQUARED, "needs target_range"),
        (replace(THREE, weight=HEAVY), "weight is not for a ridge_head"),
        (replace(LABELS, label_smoothing=0.1), "label_smoothing is not for a ridge_head"),
        (classification(4), "has 4 rows"),
    ],
)
def test_a_ridge_head_of_what_no_sums_determine_is_refused(task: TaskSpec, reason: str) -> None:
    case = synthetic()["sufficient_statistics"]
    assert "NOT COMPARED" not in _checked(case, said(LABELS, "ridge_head", feature_range=16.0))
    with pytest.raises(VerificationError, match=reason):
        _checked(case, said(task, "ridge_head", feature_range=16.0))
