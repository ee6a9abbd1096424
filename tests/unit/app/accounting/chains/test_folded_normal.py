"""Masses and moments with and without NumPy: equal, and those of the density."""

import math

import numpy as np
import pytest

from app.accounting.chains import folded_normal
from app.accounting.chains.folded_normal import FoldedNormals
from app.accounting.chains.noisy_chain import NoisyStep
from app.accounting.chains.reflection import ReflectionCoupling

RUNS = [
    (2.0, 0.5, 0.2, 0.275702, 38),
    (40.0, 0.5, 0.2, 0.25679, 11),
    (1e5, 1.0, 0.05, 0.3, 5),
    (2.0, 0.0, 0.5, 1.0, 4),
    (0.01, 0.9, 0.0, 0.4, 60),
]


@pytest.fixture
def without_arrays(monkeypatch):
    return lambda: monkeypatch.setattr(folded_normal, "arrays", lambda: None)


def deltas(start, contraction, shift, noise, steps):
    coupling = ReflectionCoupling(start_distance=start)
    coupling.follow(((NoisyStep(contraction, shift, noise), steps),))
    return [coupling.apart(steps=steps).delta(epsilon=epsilon) for epsilon in (0.0, 0.1, 1.0, 8.0)]


def test_a_coupling_is_the_same_with_and_without_numpy(without_arrays):
    assert folded_normal.arrays() is not None
    quick = [deltas(*run) for run in RUNS]
    without_arrays()
    for run, expected in zip(RUNS, quick, strict=True):
        assert deltas(*run) == pytest.approx(expected, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("with_arrays", [True, False])
def test_they_are_the_integrals_of_the_density(with_arrays, without_arrays):
    if not with_arrays:
        without_arrays()
    centres, masses = [30.0, 0.3, 2.0], [0.2, 0.5, 0.1]
    points = np.linspace(0, 45, 900_001)
    middles = (points[1:] + points[:-1]) / 2
    density = sum(
        mass
        * (np.exp(-((middles - centre) ** 2) / 2) - np.exp(-((middles + centre) ** 2) / 2))
        / math.sqrt(2 * math.pi)
        for centre, mass in zip(centres, masses, strict=True)
    )
    ends = [0.0, 0.7, 3.0, 12.0, 31.0, 45.0]
    at = [round(end / 5e-5) for end in ends]
    found = FoldedNormals(centres, masses).below(ends)
    mass = [density[:index].sum() * 5e-5 for index in at]
    moment = [(density * middles)[:index].sum() * 5e-5 for index in at]
    assert [one[0] - found[0][0] for one in found] == pytest.approx(mass, rel=1e-8)
    assert [one[1] for one in found] == pytest.approx(moment, rel=1e-8, abs=1e-15)
    assert found[-1][0] == pytest.approx(0.0, abs=1e-15)
