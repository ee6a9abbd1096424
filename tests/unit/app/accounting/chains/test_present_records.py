import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting.chains import minorant
from app.domain.errors import ParameterError


def hull(start_distance, contractions, shifts, noise_stds):
    """The greatest convex minorant by gift wrapping, in eighty digits."""
    with mpmath.workdps(80):
        unit, run, rise = mpmath.mpf(1), [mpmath.mpf(0)], [mpmath.mpf(0)]
        height = mpmath.mpf(start_distance)
        for contraction, shift, noise_std in zip(contractions, shifts, noise_stds, strict=True):
            unit *= contraction
            height += shift / unit
            run.append(run[-1] + mpmath.mpf(noise_std) ** 2 / unit**2)
            rise.append(height)
        here, squared = 0, mpmath.mpf(0)
        while here < len(run) - 1:
            there = min(
                range(here + 1, len(run)),
                key=lambda k: ((rise[k] - rise[here]) / (run[k] - run[here]), -k),
            )
            squared += (rise[there] - rise[here]) ** 2 / (run[there] - run[here])
            here = there
        return mpmath.sqrt(squared)


def flat(steps, noise_std, contraction=0.95, shift=0.1):
    return {
        "contractions": [contraction] * steps,
        "shifts": [shift] * steps,
        "noise_stds": [noise_std] * steps,
    }


def straight_line(*, contraction, shift, noise_std, steps):
    """The minorant of constant parameters, in closed form."""
    with mpmath.workdps(40):
        rate = mpmath.mpf(contraction)
        kept = rate**steps
        factor = (1 - kept) * (1 + rate) / ((1 + kept) * (1 - rate)) if rate < 1 else steps
        return float(shift / mpmath.mpf(noise_std) * mpmath.sqrt(factor))


def test_reference_value_for_constant_parameters():
    walked = minorant.minorant_mu(start_distance=0.0, **flat(100, 0.3))
    assert walked == pytest.approx(2.069377704, abs=5e-10)


@pytest.mark.parametrize("contraction", [1.0, 1 - 2.0**-53, 1 - 1e-9, 0.95, 0.1])
@pytest.mark.parametrize("steps", [1, 2, 5000])
def test_constant_parameters_give_one_straight_line(contraction, steps):
    walked = minorant.minorant_mu(start_distance=0.0, **flat(steps, 0.3, contraction))
    closed = straight_line(contraction=contraction, shift=0.1, noise_std=0.3, steps=steps)
    assert closed <= walked <= closed * (1 + 1e-10)


def test_reference_value_for_falling_noise():
    schedule = flat(40, 0.3)
    schedule["noise_stds"] = [0.3] * 20 + [0.03] * 20
    found = minorant.minorant_mu(start_distance=0.0, **schedule)
    assert found == pytest.approx(14.3763, abs=5e-5)


def test_the_straight_line_would_claim_too_little():
    schedule = flat(40, 0.3)
    schedule["noise_stds"] = [0.3] * 20 + [0.03] * 20
    unit = run = rise = 0.0
    unit = 1.0
    for noise_std in schedule["noise_stds"]:
        unit *= 0.95
        rise += 0.1 / unit
        run += noise_std**2 / unit**2
    assert rise / math.sqrt(run) == pytest.approx(5.2215, abs=5e-5)


@settings(max_examples=80, deadline=None)
@given(
    st.floats(0.0, 5.0),
    st.lists(
        st.tuples(
            st.sampled_from([1.0, 0.99, 0.5, 1e-3]),
            st.sampled_from([0.0, 0.01, 0.3, 2.0]),
            st.floats(0.01, 5.0),
        ),
        min_size=1,
        max_size=14,
    ),
)
def test_any_schedule_matches_gift_wrapping(start_distance, steps):
    contractions, shifts, noise_stds = map(list, zip(*steps, strict=True))
    found = minorant.minorant_mu(
        start_distance=start_distance,
        contractions=contractions,
        shifts=shifts,
        noise_stds=noise_stds,
    )
    truth = hull(start_distance, contractions, shifts, noise_stds)
    assert truth * (1 - mpmath.mpf("1e-15")) <= found <= truth * (1 + mpmath.mpf("1e-10")) + 1e-280


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.floats(0.5, 1.0), st.floats(1.01, 2.0))
def test_minorant_is_monotone(position, contraction, factor):
    base = flat(12, 0.3, contraction)

    def mu(name=None, scale=1.0):
        schedule = {key: list(values) for key, values in base.items()}
        if name:
            schedule[name][position - 1] *= scale
        return minorant.minorant_mu(start_distance=0.5, **schedule)

    slack = 1 + 1e-11
    assert mu("shifts", factor) * slack >= mu()
    assert mu("noise_stds", factor) <= mu() * slack


def test_an_intermediate_step_without_noise_waits():
    waiting = minorant.minorant_mu(
        start_distance=0.0, contractions=[1.0, 1.0], shifts=[0.1, 0.2], noise_stds=[0.0, 1.0]
    )
    assert waiting == pytest.approx(0.3, rel=1e-11)


def test_a_step_that_forgets_everything_starts_again():
    reset = minorant.minorant_mu(
        start_distance=9.0, contractions=[1.0, 0.0], shifts=[5.0, 0.3], noise_stds=[0.1, 1.0]
    )
    assert reset == pytest.approx(0.3, rel=1e-11)


def test_units_neither_overflow_nor_underflow():
    steps = 100_000
    found = minorant.minorant_mu(start_distance=1.0, **flat(steps, 0.3, 0.5))
    limit = 0.1 / 0.3 * math.sqrt(1.5 / 0.5)
    assert found == pytest.approx(limit, rel=1e-8)
    tiny = minorant.minorant_mu(
        start_distance=1.0, **{**flat(5000, 1.0, 0.5), "shifts": [0.0] * 5000}
    )
    assert 0 < tiny < 1e-200


def test_a_record_seen_once_a_cycle_is_worst_at_the_end():
    cycle, passes = 6, 9
    by_position = []
    for position in range(cycle):
        schedule = flat(cycle * passes, 0.4, 0.97)
        schedule["shifts"] = [0.2 * (k % cycle == position) for k in range(cycle * passes)]
        by_position.append(minorant.minorant_mu(start_distance=0.0, **schedule))
    assert max(by_position) == by_position[-1]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("contractions", [0.9, 1.1]),
        ("contractions", [0.9, math.nan]),
        ("shifts", [0.1, -0.1]),
        ("shifts", [0.1, math.inf]),
        ("noise_stds", [0.1, math.nan]),
        ("noise_stds", [0.1, -1.0]),
        ("noise_stds", [0.1]),
        ("noise_stds", [0.1, 0.0]),
        ("noise_stds", []),
    ],
)
def test_refuses_schedules_outside_their_range(name, values):
    schedule = {**flat(2, 0.3), name: values}
    with pytest.raises(ParameterError) as caught:
        minorant.minorant_mu(start_distance=0.0, **schedule)
    assert caught.value.name == name
