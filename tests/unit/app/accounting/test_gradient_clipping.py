import json
import math
from pathlib import Path
from statistics import NormalDist

import mpmath
import pytest
from hypothesis import strategies as st

from app.accounting import gaussian, gradient_clipping
from app.accounting.chains.noisy_chain import NoisyStep
from app.accounting.exact import RETRAINING as TERMS
from app.accounting.gradient_clipping import CoupledGuarantee, chain_residue, with_rounding
from app.accounting.guarantees import GaussianGuarantee, PointGuarantee, ProfileGuarantee
from app.accounting.precision import cell_diagonal, noise_norm, sampling_residue
from app.domain.errors import CalibrationError, ParameterError
from benchmarks.published_tables import distinct, gradient_clipping_setting
from tests.support.invented import invented

ROOT = Path(__file__).parents[4]
PUBLISHED = json.loads((ROOT / "benchmarks/published/koloskova-2025.json").read_text())
ROWS = distinct(PUBLISHED["gradient_clipping"], "epsilon", "lam", "C1", "gamma", "C0", "T", "sigma")
GOOD = {
    "initial_clip": 20.0,
    "gradient_clip": 10.0,
    "learning_rate": 0.01,
    "weight_decay": 50.0,
    "noise_std": 0.25679,
    "steps": 11,
}
TEN = {
    "initial_clip": 1.0,
    "gradient_clip": 1.0,
    "learning_rate": 0.01,
    "weight_decay": 10.0,
    "steps": 10,
}


def test_published_rows_have_half_mu_squared_at_the_claimed_epsilon():
    true = {0.1: 1.7601, 1: 6.573, 10: 28.37}
    for row in ROWS:
        claimed = row["epsilon"]
        setting = gradient_clipping_setting(row)
        guarantee = gradient_clipping.account(noise_std=row["sigma"], **setting).alone()
        assert guarantee.mu**2 / 2 == pytest.approx(claimed, rel=4e-4)
        assert guarantee.epsilon(delta=1e-5) == pytest.approx(true[claimed], rel=4e-4)
        assert not guarantee.meets(epsilon=claimed, delta=1e-5)


def test_the_noise_for_the_published_target_is_five_times_larger():
    for row in ROWS:
        if row["epsilon"] != 1:
            continue
        setting = gradient_clipping_setting(row)
        noise_std = gradient_clipping.calibrate(epsilon=1.0, delta=1e-5, **setting)
        assert noise_std / row["sigma"] == pytest.approx(5.28, abs=0.005)
        published = gradient_clipping.account(noise_std=row["sigma"], **setting).alone()
        assert published.delta(epsilon=1.0) == pytest.approx(0.286, abs=5e-4)
        again = gradient_clipping.account(noise_std=noise_std, **setting)
        assert again.meets(epsilon=1.0, delta=1e-5)
        assert again.epsilon(delta=1e-5) == pytest.approx(1.0, rel=1e-10)


def test_what_is_reached_from_one_start_is_reached_from_any_other():
    normal, mu = NormalDist(), gaussian.mu_of(epsilon=1.0, delta=1e-5)
    assert (0.99 - 1e-5) / math.e == pytest.approx(0.364, abs=5e-4)
    assert normal.cdf(normal.inv_cdf(0.99) - mu) == pytest.approx(0.980, abs=5e-4)
    # On the line, from both ends of the ball, with gradients that push outward.
    near = gradient_clipping.calibrate(epsilon=1.0, delta=1e-5, **TEN)
    contraction = 1 - TEN["learning_rate"] * TEN["weight_decay"]
    centre, variance = TEN["initial_clip"], 0.0
    for _ in range(TEN["steps"]):
        centre = contraction * centre + TEN["learning_rate"] * TEN["gradient_clip"]
        variance = contraction**2 * variance + near**2
    good, bad = (NormalDist(side * centre, math.sqrt(variance)) for side in (1, -1))
    for quantile in (1e-6, 1e-3, 0.01, 0.5, 0.99):
        reached = good.inv_cdf(quantile)
        assert 1 - good.cdf(reached) <= math.e * (1 - bad.cdf(reached)) + 1e-5


CONVERGES = {
    "initial_clip": 1.0,
    "gradient_clip": 10.0,
    "learning_rate": 0.01,
    "weight_decay": 50.0,
    "noise_std": 0.275702,
}


def test_published_noise_is_enough_once_the_worlds_have_met():
    few = gradient_clipping.account(**CONVERGES, steps=5)
    assert few.epsilon(delta=1e-5) == pytest.approx(6.573, abs=1e-3)
    many = gradient_clipping.account(**CONVERGES, steps=40)
    assert many.epsilon(delta=1e-5) == 0.0
    assert 3.73e-6 < many.delta(epsilon=0.0) == many.advantage() < 3.75e-6
    assert many.mu == pytest.approx(0.2 * math.sqrt(3) / 0.275702, rel=1e-6)
    assert many.meets(epsilon=1.0, delta=1e-5)
    assert not many.alone().meets(epsilon=1.0, delta=1e-5)


def test_calibration_takes_the_smaller_noise_of_both():
    given_ = {name: value for name, value in CONVERGES.items() if name != "noise_std"}
    noise_std = gradient_clipping.calibrate(epsilon=1.0, delta=1e-5, **given_, steps=40)
    assert noise_std < 0.2485
    found = gradient_clipping.account(**given_, noise_std=noise_std, steps=40)
    assert found.meets(epsilon=1.0, delta=1e-5)
    less = gradient_clipping.account(**given_, noise_std=noise_std * 0.9998, steps=40)
    assert not less.meets(epsilon=1.0, delta=1e-5)


def test_the_odometer_meets_when_account_does_and_not_before():
    size = gradient_clipping.step_size(gradient_clip=10.0, learning_rate=0.01, weight_decay=50.0)
    for dimension in (None, 1000):
        odometer = gradient_clipping.Odometer(initial_clip=1.0, dimension=dimension)
        assert not odometer.meets(epsilon=1.0, delta=1e-5)
        for steps in range(1, 45):
            odometer.step(size, 0.275702)
            claimed = gradient_clipping.account(**CONVERGES, steps=steps, dimension=dimension)
            assert odometer.guarantee() == claimed
            assert odometer.meets(epsilon=1.0, delta=1e-5) is claimed.meets(epsilon=1.0, delta=1e-5)
        assert odometer.meets(epsilon=1.0, delta=1e-5)


def test_a_guarantee_keeps_to_the_steps_it_was_asked_for():
    size = gradient_clipping.step_size(gradient_clip=10.0, learning_rate=0.01, weight_decay=50.0)
    odometer = gradient_clipping.Odometer(initial_clip=1.0)
    for _ in range(5):
        odometer.step(size, 0.275702)
    early = odometer.guarantee()
    for _ in range(35):
        odometer.step(size, 0.275702)
    assert early.delta(epsilon=0.0) == pytest.approx(0.31891, abs=1e-5)


def test_floats_cost_a_shift_a_step_and_what_the_sampler_leaves():
    for dimension in (1, 10**4, 10**6):
        real = gradient_clipping.account(**GOOD)
        found = gradient_clipping.account(**GOOD, dimension=dimension)
        cell = math.sqrt(dimension) * 2.0**-21  # 2^-20 of the noise and up to twice that
        assert 0.25 <= GOOD["noise_std"] < 0.5
        drift = 40 * 0.5**11 + (0.2 + 0.5 * cell + 2.0**-24 * 0.25679) * (2 - 2 * 0.5**11)
        noise = 0.25679 * math.sqrt((1 - 0.25**11) / 0.75)
        reach = 20 + noise * (math.sqrt(dimension) + 10)
        sampler = math.sqrt(11) * (2.2e-7 * math.sqrt(dimension) + 6e-10 * reach / 0.25679)
        assert found.mu == pytest.approx(drift / noise + 2 * sampler, rel=1e-9)
        assert found.slack == pytest.approx(11 * (dimension * 2.0**-56 + 2.0**-58), rel=1e-9)
        assert found.mu > real.mu
        assert found.delta(epsilon=0.0) > real.delta(epsilon=0.0)


def test_the_coupling_pays_for_floats_too():
    real = gradient_clipping.account(**CONVERGES, steps=40)
    found = gradient_clipping.account(**CONVERGES, steps=40, dimension=10**6)
    added = found.advantage() - real.advantage()
    residue = 2 * math.sqrt(40) * 2.2e-7 * 1e3 / math.sqrt(2 * math.pi)
    assert residue < added < 3 * residue
    assert found.coupled().kind == "profile"


def test_calibration_counts_floats():
    for steps in (5, 40):
        given_ = {**CONVERGES, "steps": steps, "dimension": 10**6}
        del given_["noise_std"]
        noise_std = gradient_clipping.calibrate(epsilon=1.0, delta=1e-5, **given_)
        found = gradient_clipping.account(**given_, noise_std=noise_std)
        assert found.meets(epsilon=1.0, delta=1e-5)
        real = gradient_clipping.account(**{**given_, "dimension": None}, noise_std=noise_std)
        assert real.meets(epsilon=1.0 - 1e-4, delta=1e-5)


def test_noise_that_floats_would_show_through_is_refused():
    given_ = {**CONVERGES, "steps": 40, "dimension": 10, "noise_std": 1e-9}
    with pytest.raises(ParameterError) as caught:
        gradient_clipping.account(**given_)
    assert caught.value.name == "noise_std"
    with pytest.raises(ParameterError) as caught:
        gradient_clipping.account(**{**given_, "dimension": 0})
    assert caught.value.name == "dimension"


def test_varying_schedules_match_sixty_digits():
    steps = 30
    schedule = {
        "gradient_clip": [1.0 + 0.1 * k for k in range(steps)],
        "learning_rate": [0.1 / (1 + k) for k in range(steps)],
        "weight_decay": [0.5 + 0.05 * k for k in range(steps)],
        "noise_std": [0.3 + 0.02 * (k % 4) for k in range(steps)],
    }
    drift, variance, best = mpmath.mpf(4), mpmath.mpf(0), mpmath.inf
    for clip, rate, decay, noise in zip(*schedule.values(), strict=True):
        contraction = 1 - mpmath.mpf(rate) * mpmath.mpf(decay)
        drift = contraction * drift + 2 * mpmath.mpf(rate) * mpmath.mpf(clip)
        variance = contraction**2 * variance + mpmath.mpf(noise) ** 2
        best = min(best, drift / mpmath.sqrt(variance))
    found = gradient_clipping.account(initial_clip=2.0, steps=steps, **schedule).mu
    assert best <= found <= best * (1 + mpmath.mpf("1e-12"))


def test_a_constant_schedule_is_the_constant():
    spread = {**GOOD, "noise_std": [GOOD["noise_std"]] * 11, "gradient_clip": [10.0] * 11}
    assert gradient_clipping.account(**spread).mu == pytest.approx(
        gradient_clipping.account(**GOOD).mu, rel=1e-12
    )


def test_the_odometer_counts_what_account_predicts():
    odometer = gradient_clipping.Odometer(initial_clip=20.0)
    size = gradient_clipping.step_size(gradient_clip=10.0, learning_rate=0.01, weight_decay=50.0)
    for count in range(1, 12):
        mu = odometer.step(size, 0.25679)
        assert odometer.steps == count
        assert mu == odometer.mu
    assert odometer.guarantee().mu == pytest.approx(1.41421246110, abs=5e-12)
    assert odometer.guarantee().terms == gradient_clipping.TERMS


def test_an_odometer_with_calibrated_noise_meets_the_target_on_time():
    for steps in (1, 11, 2_000):
        setting = {name: value for name, value in GOOD.items() if name != "noise_std"}
        setting["steps"] = steps
        noise_std = gradient_clipping.calibrate(epsilon=1.0, delta=1e-5, **setting)
        size = gradient_clipping.step_size(
            gradient_clip=10.0, learning_rate=0.01, weight_decay=50.0
        )
        odometer = gradient_clipping.Odometer(initial_clip=20.0)
        for _ in range(steps):
            odometer.step(size, noise_std)
        assert odometer.guarantee().meets(epsilon=1.0, delta=1e-5)


def test_an_odometer_without_steps_guarantees_nothing():
    with pytest.raises(ParameterError):
        gradient_clipping.Odometer(initial_clip=1.0).guarantee()


@invented(
    few=4,
    many=40,
    epsilon=st.sampled_from([1e-3, 0.1, 1.0, 8.0, 50.0]),
    delta=st.sampled_from([1e-15, 1e-5, 0.01]),
    initial_clip=st.floats(0.01, 100.0),
    gradient_clip=st.floats(0.0, 100.0),
    learning_rate=st.floats(1e-5, 0.1),
    decay=st.sampled_from([0.0, 0.01, 0.5, 0.999999]),
    steps=st.sampled_from([1, 2, 17, 100, 10**6]),
)
def test_calibrate_then_account_meets_the_target(
    epsilon, delta, initial_clip, gradient_clip, learning_rate, decay, steps
):
    given_ = {
        "initial_clip": initial_clip,
        "gradient_clip": gradient_clip,
        "learning_rate": learning_rate,
        "weight_decay": decay / learning_rate * (1 - 1e-15),
        "steps": steps,
    }
    noise_std = gradient_clipping.calibrate(epsilon=epsilon, delta=delta, **given_)
    if noise_std < 1e-140:
        return
    guarantee = gradient_clipping.account(noise_std=noise_std, **given_)
    assert guarantee.meets(epsilon=epsilon, delta=delta)
    largest = gaussian.mu_of(epsilon=epsilon, delta=delta)
    assert guarantee.mu >= largest * (1 - 1e-8)
    if guarantee.mu > largest * (1 + 1e-8):
        assert guarantee.coupled().delta(epsilon=epsilon) <= delta


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        (name, bad)
        for name in ("initial_clip", "learning_rate", "noise_std")
        for bad in (math.nan, math.inf, 0.0, -1.0)
    ]
    + [(name, bad) for name in ("gradient_clip", "weight_decay") for bad in (math.nan, -1.0)]
    + [("weight_decay", 100.0), ("weight_decay", 1e6), ("steps", 0), ("steps", 1.0)],
)
def test_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        gradient_clipping.account(**{**GOOD, name: bad})
    assert caught.value.name == name
    assert caught.value.allowed


def test_refuses_a_schedule_of_the_wrong_length():
    with pytest.raises(ParameterError) as caught:
        gradient_clipping.account(**{**GOOD, "noise_std": [0.1] * 10})
    assert caught.value.name == "noise_std"
    with pytest.raises(ParameterError):
        gradient_clipping.account(**{**GOOD, "noise_std": [0.1] * 10 + [math.nan]})


def test_a_step_from_a_grid_point_is_shifted_by_a_cell():
    step = NoisyStep(0.5, 0.2, 0.3)
    moved = with_rounding(step, after_noise_std=8.0, dimension=100).shift - 0.2
    cell = cell_diagonal(dimension=100, noise_std=8.0)
    assert cell == pytest.approx(10 * 8 * 2.0**-20)
    assert 0.5 * cell < moved <= 0.5 * cell + 0.3 * 2.0**-23


def test_the_reach_of_a_run_is_its_furthest_point_and_its_largest_noise():
    far = NoisyStep(1.0, 2.0, 0.1)
    back = NoisyStep(0.01, 0.0, 0.1)
    found = chain_residue(start_norm=1.0, run=((far, 50), (back, 10)), dimension=9)
    reach = 1.0 + 50.0 + noise_norm(dimension=9, noise_std=0.1 * math.sqrt(50))
    expected = sampling_residue(dimension=9, draws=60, reach=reach, noise_std=0.1)
    assert found.mu == pytest.approx(expected.mu, rel=1e-8)
    assert found.mu >= expected.mu
    assert found.delta == expected.delta


def test_the_smallest_noise_of_a_run_counts():
    quiet, loud = NoisyStep(0.5, 0.1, 0.01), NoisyStep(0.5, 0.1, 1.0)
    mixed = chain_residue(start_norm=1.0, run=((loud, 1), (quiet, 1)), dimension=4)
    alone = chain_residue(start_norm=1.0, run=((loud, 2),), dimension=4)
    assert mixed.mu > alone.mu


def test_noise_in_the_last_digits_of_a_position_is_refused():
    step = NoisyStep(1.0, 0.0, 1e-9)
    with pytest.raises(ParameterError) as caught:
        chain_residue(start_norm=1.0, run=((step, 1),), dimension=1)
    assert caught.value.name == "noise_std"


ALONE = GaussianGuarantee(terms=TERMS, mu=1.0)


def better_of(coupled, *, least=lambda _: 0.0, slack=0.0):
    return CoupledGuarantee(terms=TERMS, mu=1.0, slack=slack, coupled=coupled, least=least)


def profile(delta):
    """delta at every epsilon; epsilon 0 from there on, none below."""

    def epsilon_at(target):
        if target < delta:
            raise CalibrationError("none")
        return 0.0

    return ProfileGuarantee(terms=TERMS, delta_at=lambda _: delta, epsilon_at=epsilon_at)


def refuse():
    raise AssertionError("the coupling was asked for nothing")


def test_the_better_of_both_counts_at_each_epsilon():
    both = better_of(lambda: profile(1e-4))
    assert both.delta(epsilon=0.5) == 1e-4 < ALONE.delta(epsilon=0.5)
    assert both.delta(epsilon=8.0) == ALONE.delta(epsilon=8.0) < 1e-4
    assert both.epsilon(delta=1e-3) == 0.0
    assert both.epsilon(delta=1e-5) == ALONE.epsilon(delta=1e-5)
    assert both.advantage() == 1e-4
    assert both.meets(epsilon=0.0, delta=1e-4)
    assert both.meets(epsilon=5.0, delta=1e-5)
    assert not both.meets(epsilon=0.1, delta=1e-5)
    assert both.kind == "gaussian"


def test_the_coupling_is_not_asked_where_it_cannot_help():
    both = better_of(refuse, least=lambda _: 1.0)
    assert both.delta(epsilon=1.0) == ALONE.delta(epsilon=1.0)
    assert both.epsilon(delta=1e-5) == ALONE.epsilon(delta=1e-5)
    assert both.advantage() == ALONE.advantage()
    assert not both.meets(epsilon=1.0, delta=1e-5)
    assert better_of(refuse).meets(epsilon=5.0, delta=1e-5)


def test_a_coupling_that_cannot_be_evaluated_does_not_help():
    def fails():
        raise CalibrationError("too far apart")

    both = better_of(fails)
    assert both.delta(epsilon=1.0) == ALONE.delta(epsilon=1.0)
    assert both.epsilon(delta=1e-5) == ALONE.epsilon(delta=1e-5)


def test_where_rounding_leaves_the_gaussian_no_epsilon_the_coupling_answers():
    both = better_of(lambda: profile(1e-7), slack=1e-6)
    assert both.epsilon(delta=1e-6) == 0.0


def test_any_form_may_come_from_the_coupling():
    point = PointGuarantee(terms=TERMS, at_epsilon=0.0, at_delta=1e-6)
    assert better_of(lambda: point).delta(epsilon=1.0) == pytest.approx(1e-6)
