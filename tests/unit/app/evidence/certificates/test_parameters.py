"""How many numbers a run draws follows from its parameters alone."""

import math

import pytest

from app.accounting.precision import grid_of as precision_grid
from app.domain.errors import VerificationError
from app.domain.states import Basis
from app.evidence.certificates.parameters import Draws, draws_of, grid_of
from tests.support import mechanisms as cases

FIRST, LATER = Basis.CERTIFIED_RELEASE, Basis.UNLEARNED


def test_every_step_of_gradient_clipping_draws_one_number_a_weight() -> None:
    assert draws_of("gradient_clipping", cases.CLIPPED, basis=LATER) == [Draws(0.62, 24)]
    varied = cases.CLIPPED | {"noise_std": [0.9, 0.8, 0.7]}
    assert draws_of("gradient_clipping", varied, basis=FIRST) == [
        Draws(0.9, 8),
        Draws(0.8, 8),
        Draws(0.7, 8),
    ]


def test_model_clipping_may_begin_with_noise_of_its_own() -> None:
    assert draws_of("model_clipping", cases.PROJECTED, basis=LATER) == [
        Draws(2.0, 8),
        Draws(1.0, 24),
    ]
    silent = cases.PROJECTED | {"initial_noise_std": 0.0}
    assert draws_of("model_clipping", silent, basis=LATER) == [Draws(1.0, 24)]


def test_dp_sgd_draws_in_its_training_only() -> None:
    assert draws_of("dp_sgd", cases.PRIVATE, basis=FIRST) == [Draws(6.2, 64)]
    assert draws_of("dp_sgd", cases.PRIVATE, basis=LATER) == []


def test_nonconvex_descent_draws_its_start_and_its_training_once() -> None:
    steps = Draws(cases.NONCONVEX["noise_std"], 8 * 10**7)
    training = Draws(cases.NONCONVEX["noise_std"], 8 * 2 * 10**7)
    assert draws_of("noisy_gd_nonconvex", cases.NONCONVEX, basis=LATER) == [steps]
    start, *others = draws_of("noisy_gd_nonconvex", cases.NONCONVEX, basis=FIRST)
    assert others == [training, steps]
    assert (start.noise_std, start.count) == (pytest.approx(2.0), 8)


def test_a_tracked_lineage_drew_what_its_last_run_added() -> None:
    assert draws_of("tracked_release", cases.RELEASED, basis=LATER) == [Draws(0.05, 12)]
    assert draws_of("projected_noisy_sgd", cases.NOISY_BATCHES, basis=LATER) == [
        Draws(0.1, 12 * 150)
    ]
    first = {
        "history": cases.NOISY_BATCHES["history"]
        | {"events": [{"steps": 40, "noise_std": 0.1}, {"release": 0.2}]}
    }
    assert draws_of("projected_noisy_sgd", first, basis=FIRST) == [
        Draws(0.1, 12 * 40),
        Draws(0.2, 12),
    ]


def test_retraining_and_a_run_without_noise_draw_nothing() -> None:
    assert draws_of("retraining", {}, basis=LATER) == []
    events = [*cases.RELEASED["history"]["events"][:-1], {"release": 0.0}]
    silent = {"history": cases.RELEASED["history"] | {"events": events}}
    assert draws_of("tracked_release", silent, basis=LATER) == []


def test_the_grid_is_that_of_the_last_noise() -> None:
    draws = [Draws(2.0, 8), Draws(0.62, 24)]
    assert grid_of("gradient_clipping", draws) == precision_grid(0.62)
    assert math.log2(grid_of("gradient_clipping", draws) or 0).is_integer()
    assert grid_of("dp_sgd", draws) is None


def test_parameters_of_another_form_are_refused() -> None:
    for name, parameters in (("magic", {}), ("retraining", {"x": 1}), ("dp_sgd", {})):
        with pytest.raises(VerificationError):
            draws_of(name, parameters, basis=LATER)
