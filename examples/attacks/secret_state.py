"""A service that keeps what it does not publish: Chourasia & Shah 2023, Theorem 3.2.

Each release after a deletion is certified by itself, and all of them together give the forgotten
people away if each is made from weights that were kept: their noise averages out. A service whose
runs go on from the last release, or from the retained records, has nothing to average.
"""

import numpy as np
import torch
from people import PEOPLE, Service, coins, told

from app.accounting.output_perturbation import calibrate
from workers.mechanisms.output_perturbation import OutputPerturbation
from workers.noise.generators import SecureNoise
from workers.training.noisy_phase import Conditions

RELEASES, LATER = 20_000, 5
TARGET = {"epsilon": 1.0, "delta": 1e-5}
POLICIES = {
    "exact_training": {"mechanism": "exact_training", "adaptive": True},
    "noisy_gd_convex": {
        "mechanism": "noisy_gd_convex",
        "adaptive": True,
        "parameters": {"earlier_releases": LATER + 1, "forgotten": PEOPLE + 2 * LATER},
    },
}


def average(labels: np.ndarray, *, keeps_start: bool) -> np.ndarray:
    """Return the mean of many releases of output perturbation, which is certified each time."""
    noise_std = calibrate(**TARGET, initial_clip=1.0, dimension=PEOPLE)
    mechanism = OutputPerturbation(initial_clip=1.0, noise_std=noise_std, dimension=PEOPLE)
    conditions = Conditions(noise=SecureNoise(), **TARGET)
    start = torch.from_numpy(2.0 * labels - 1)
    release, total = start.clone(), torch.zeros_like(start)
    for _ in range(RELEASES):
        position = start.clone() if keeps_start else release
        mechanism.begin(position, conditions)
        release, total = position, total + position
    return (total / RELEASES).numpy()


for keeps_start in (True, False):
    labels = coins()
    scores = average(labels, keeps_start=keeps_start)
    what = "that keeps its start" if keeps_start else "that goes on from the last release"
    told(f"output_perturbation {what}", TARGET | {"adaptive": False}, scores, labels)

for mechanism, policy in POLICIES.items():
    labels = coins()
    service = Service(labels, policy)
    service.forget(f"person-{axis}" for axis in range(PEOPLE))
    releases = [service.release()]
    for axis in range(LATER):
        service.forget((f"zero-{axis}", f"one-{axis}"))
        releases.append(service.release())
    scores = np.mean([found for found, _ in releases], axis=0)
    told(mechanism, releases[0][1]["guarantee"], scores, labels)
    service.archive()
