"""Retraining, and lineages trained with DP-SGD: a price once, then nothing until it is spent."""

from dataclasses import replace

import pytest

from app.accounting import dp_sgd
from app.domain.errors import CalibrationError, PlanError
from app.domain.plan import TrainingKind
from app.domain.policy import Policy
from app.planning.planner import make_plan
from app.planning.shape import DpTrainingShape, ModelShape

NEW = ModelShape(retained=1000, batch_size=100, recipe_epochs=2)
POLICY = Policy(mechanism="dp_sgd", epsilon=8.0, parameters={"capacity": 5})
TRAINING = make_plan(policy=POLICY, shape=NEW)


def trained(forgotten: int) -> ModelShape:
    """The same model later, so many records short."""
    settings = TRAINING.settings
    return replace(
        NEW,
        retained=1000 - forgotten,
        earlier_releases=1,
        dp_training=DpTrainingShape(
            noise_multiplier=settings["noise_multiplier"],
            sampling_rate=settings["sampling_rate"],
            steps=int(settings["private_steps"]),
            forgotten=forgotten,
        ),
    )


def test_a_new_lineage_is_trained_with_the_noise_that_its_group_needs() -> None:
    assert TRAINING.mechanism == "dp_sgd"
    assert TRAINING.training is TrainingKind.PRIVATE
    assert TRAINING.settings["private_steps"] == TRAINING.parameters["steps"] == 20
    assert TRAINING.parameters["sampling_rate"] == 0.1
    assert TRAINING.predicted["gradient_computations"] == pytest.approx(2000)
    group = {**TRAINING.parameters, "group_size": 5}
    assert dp_sgd.account(**group).meets(epsilon=8.0, delta=1e-5)
    assert not dp_sgd.account(**{**group, "group_size": 6}).meets(epsilon=8.0, delta=1e-5)


def test_forgetting_takes_nothing_while_the_group_lasts() -> None:
    for forgotten in (1, 5):
        plan = make_plan(policy=POLICY, shape=trained(forgotten))
        assert plan.mechanism == "dp_sgd"
        assert plan.parameters["group_size"] == forgotten
        assert plan.predicted["gradient_computations"] == 0
        assert plan.settings == TRAINING.settings


def test_a_spent_group_is_a_retraining_with_noise_for_the_next_one() -> None:
    plan = make_plan(policy=POLICY, shape=trained(6))
    assert plan.mechanism == "retraining"
    assert plan.training is TrainingKind.PRIVATE
    assert plan.settings["sampling_rate"] == pytest.approx(100 / 994)
    assert plan.settings["noise_multiplier"] == pytest.approx(
        TRAINING.settings["noise_multiplier"], rel=0.02
    )


def test_a_spent_group_within_too_small_a_budget_is_refused() -> None:
    with pytest.raises(PlanError, match="budget_epochs"):
        make_plan(policy=replace(POLICY, budget_epochs=1.0), shape=trained(6))


def test_a_fixed_noise_is_kept_and_must_meet_the_target() -> None:
    plan = make_plan(policy=replace(POLICY, parameters={"noise_multiplier": 9.0}), shape=NEW)
    assert plan.parameters["noise_multiplier"] == 9.0
    with pytest.raises(PlanError, match="leave it out"):
        make_plan(policy=replace(POLICY, parameters={"noise_multiplier": 0.5}), shape=NEW)


def test_it_is_taken_only_by_name_and_only_from_the_start() -> None:
    assert make_plan(policy=Policy(epsilon=8.0), shape=NEW).mechanism != "dp_sgd"
    with pytest.raises(PlanError, match="from its start"):
        make_plan(policy=POLICY, shape=replace(NEW, earlier_releases=1))
    with pytest.raises(PlanError, match="from its start"):
        make_plan(policy=POLICY, shape=replace(NEW, trained_here=False))
    with pytest.raises(PlanError, match="adaptive"):
        make_plan(policy=replace(POLICY, adaptive=True), shape=NEW)


def test_retraining_is_exact_and_costs_the_recipe() -> None:
    plan = make_plan(policy=Policy(mechanism="retraining"), shape=NEW)
    assert plan.predicted["epsilon"] == 0
    assert plan.predicted["gradient_computations"] == 2000
    with pytest.raises(PlanError, match="no parameters"):
        make_plan(policy=Policy(mechanism="retraining", parameters={"steps": 3}), shape=NEW)


def test_noise_that_protects_nobody_is_declined_at_once() -> None:
    with pytest.raises(PlanError, match="next to nothing"):
        make_plan(policy=replace(POLICY, parameters={"noise_multiplier": 1e-6}), shape=NEW)


def test_a_target_that_needs_no_noise_is_declined_at_once() -> None:
    with pytest.raises(CalibrationError, match="without noise"):
        dp_sgd.calibrate(epsilon=4.8e-5, delta=0.5, sampling_rate=1e-8, steps=1, group_size=1)


def test_a_known_dimension_is_counted_with_the_records_of_the_training() -> None:
    known = replace(NEW, dimension=10**4)
    plan = make_plan(policy=POLICY, shape=known)
    assert plan.parameters["dimension"] == 10**4
    assert plan.parameters["records"] == 1000
    noise = TRAINING.settings["noise_multiplier"]
    assert noise < plan.settings["noise_multiplier"] < noise * 1.05
    later = make_plan(policy=POLICY, shape=replace(trained(1), dimension=10**4, records=1000))
    assert later.parameters["records"] == 1000


def test_a_training_anew_counts_only_the_records_that_it_reads() -> None:
    spent = replace(trained(6), dimension=10**4, retained=700, records=1000)
    assert make_plan(policy=POLICY, shape=spent).settings["records"] == 700
