"""The lattice attack: the digits of a release must not tell what is under its noise.

The attacker knows both candidates for what the noise was added to, its standard deviation, the grid
and every format, and asks of each candidate whether numbers exist that the arithmetic would have
made this very release from. If that is true of one candidate only, it is the one; if of both, the
nearer one is the better guess. Numbers rounded to float32 and added in float32, as this service
once did it, make the attacker right every time. Now it may be right as often as the certificate
allows: Phi(mu / 2).

Noise is the service's own. A test of an honest rule fails by chance with probability below 1e-9.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from app.accounting import gaussian, gradient_clipping, output_perturbation
from app.accounting.precision import grid_of
from app.domain.recipes import TrainingRecipe
from tests.support.representatives import mostly_nightly
from workers.mechanisms.descent import Descent, DescentRule
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.mechanisms.model_clipping import ModelClipping
from workers.mechanisms.output_perturbation import OutputPerturbation
from workers.noise.box_muller import round_to_
from workers.noise.generators import SecureNoise
from workers.seal.sealed import Sealed
from workers.training.dp_sgd.training import PrivateTraining, train_privately
from workers.training.examples import classified
from workers.training.networks.heads import LinearHead
from workers.training.networks.network import Network
from workers.training.noisy_phase import Conditions, RandomBatches, descend

CPU = torch.device("cpu")
TRIALS = 120
FAILURE = 1e-9
TARGET = {"epsilon": 1.0, "delta": 1e-5}
MU = gaussian.mu_of(**TARGET) * (1 - 1e-9)  # what every rule here is calibrated to
SIZE = 600
NEIGHBOURS = range(-8, 9)
WORLDS = (0, 1)


class Silent:
    """Adds nothing, and keeps what noise would have been added to."""

    name, drawn = "none", {}

    def add_(self, position, noise_std):
        self.position, self.noise_std = position.clone(), noise_std


def as_it_is(position):
    return position


@dataclass(frozen=True)
class Rule:
    """A rule that ends in one release.

    Attributes:
        releases: so many releases of one of two worlds, each with noise of its own from a source.
        finish: what follows the noise.
        divisor: of the noisy sum, in ``finish``.
    """

    releases: Callable
    finish: Callable = as_it_is
    divisor: float = 1.0

    def before(self, world):
        """What the noise is added to, and its standard deviation."""
        silent = Silent()
        self.releases(world, silent, 1)
        return silent.position, silent.noise_std


def one_by_one(release):
    return Rule(lambda world, noise, count: [release(world, noise) for _ in range(count)])


def numbers(size, seed):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def opposite(world, norm=5.0):
    """Starts as far apart as clips allow."""
    direction = numbers(SIZE, 1)
    return (norm if world else -norm) * direction / direction.norm()


def tracked_release():
    """A head trained on digits with and without some records, released without a step."""
    draws = np.random.default_rng(0)
    labels = draws.integers(0, 10, 300)
    features = draws.normal(size=(300, 60)) + labels[:, None] * np.eye(10)[labels].repeat(6, axis=1)
    records = classified(features, labels)

    def factory():
        return LinearHead(60, 10, rows=10, feature_norm=None, bias=0.1)

    ends = []
    for kept in (np.arange(300), np.arange(5, 300)):
        network = Network(factory, device=CPU)
        feed = RandomBatches(records.select(kept), 300)
        descend(
            network,
            Descent(1.5, 0.01).step_,
            feed,
            steps=40,
            noise=Silent(),
            on_progress=lambda *_: None,
        )
        ends.append(network.tensors())
    apart = float(np.linalg.norm(ends[0]["weight"] - ends[1]["weight"]))
    rule = DescentRule(
        descent=Descent(1.5, 0.01),
        release_noise_std=apart / MU,
        steps=0,
        account=lambda _: output_perturbation.account(
            initial_clip=apart / 2, noise_std=apart / MU * (1 + 1e-12)
        ),
    )

    def release(world, noise):
        sealed = Sealed(factory, device=CPU, **TARGET)
        sealed.load(ends[world])
        sealed.unlearn(rule, RandomBatches(records, 300), frame=None, noise=noise)
        return torch.from_numpy(sealed.open().tensors()["weight"].ravel())

    return one_by_one(release)


def noisy_descent(radius):
    """One step of projected noisy descent, on a ball that the release stays in or not."""
    contraction, apart = 1 - 0.5 * 0.1, 0.3
    noise_std = contraction * apart / MU * (1 + 1e-9)
    rule = DescentRule(
        descent=Descent(0.5, 0.1, noise_std=noise_std, radius=radius),
        steps=1,
        account=lambda _: output_perturbation.account(
            initial_clip=contraction * apart / 2, noise_std=noise_std
        ),
    )

    def release(world, noise):
        position = numbers(SIZE, 2) / 10 + opposite(world, apart / 2)
        run = rule.begin(position, Conditions(noise=noise, **TARGET))
        run.step(position, numbers(SIZE, 3) / 20)
        return position

    return one_by_one(release)


def output():
    rule = OutputPerturbation(initial_clip=1.0, noise_std=2.0 / MU)

    def release(world, noise):
        position = opposite(world)
        rule.begin(position, Conditions(noise=noise, **TARGET))
        return position

    return one_by_one(release)


def clipped_gradients():
    """One step from opposite starts, along gradients that are opposite too: the worst of all."""
    setting = {"initial_clip": 1.0, "gradient_clip": 3.0, "learning_rate": 0.01}
    noise_std = gradient_clipping.calibrate(**TARGET, **setting, weight_decay=50.0, steps=1)
    rule = GradientClipping(**setting, weight_decay=50.0, noise_std=noise_std, steps=1)

    def release(world, noise):
        position = opposite(world)
        run = rule.begin(position, Conditions(noise=noise, **TARGET))
        run.step(position, -opposite(world).float())
        return position

    return one_by_one(release)


def clipped_models():
    rule = ModelClipping(
        epsilon=1.0,
        initial_clip=2.0,
        initial_noise_std=0.0,
        model_clip=1.0,
        noise_std=2.0 / MU * (1 + 1e-6),
        steps=1,
        learning_rate=0.01,
        weight_decay=0.1,
    )

    def release(world, noise):
        position = opposite(world)
        run = rule.begin(position, Conditions(noise=noise, **TARGET))
        run.step(position, torch.zeros(SIZE))
        return position

    return one_by_one(release)


def private_gradient():
    """The gradient of one step of DP-SGD on records with and without one of them."""
    features, labels = numbers(20 * 12, 4).view(20, 12).float() * 3, torch.arange(20) % 5
    start = numbers(12 * 40 + 40 * 5 + 45, 5).float() / 5

    def factory():
        return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 5))

    def releases(world, noise, count):
        """Steps of a rate at which float32 weights stay as they are: each has the same sum."""
        records = features.clone()
        if world:
            records[3] = torch.nan  # counts as a gradient of zero
        network, seen = Network(factory, device=CPU), []
        network.flat.values.copy_(start)
        train_privately(
            network,
            classified(records, labels),
            TrainingRecipe(learning_rate=1e-30, momentum=0.0, schedule="constant", batch_size=20),
            PrivateTraining(
                noise_multiplier=1 / MU, gradient_clip=0.7, sampling_rate=1.0, steps=count
            ),
            noise=noise,
            on_progress=lambda *_: seen.append(network.flat.gradients.clone()),
        )
        assert torch.equal(network.flat.values, start)
        return seen

    return Rule(releases, finish=lambda noisy: (noisy / 20).float(), divisor=20.0)


RULES = {
    "tracked release": tracked_release,
    "noisy descent": lambda: noisy_descent(radius=1e6),
    "noisy descent, no ball": lambda: noisy_descent(radius=None),
    "output perturbation": output,
    "gradient clipping": clipped_gradients,
    "model clipping": clipped_models,
    "private training": private_gradient,
}


@pytest.fixture(
    scope="module",
    params=mostly_nightly(RULES, "tracked release", "gradient clipping", "private training"),
)
def rule(request):
    return RULES[request.param]()


def old_arithmetic(rule, position, noise_std, drawn):
    """What this service did: numbers rounded to float32, and added in float32."""
    return position.float().add_(drawn.float(), alpha=noise_std) / rule.divisor


def without_grid(rule, position, noise_std, drawn):
    """Numbers of float64, added in float64."""
    return rule.finish(position.add(drawn, alpha=noise_std))


def new_arithmetic(rule, position, noise_std, drawn):
    """What this service does."""
    noisy = position.add(drawn, alpha=noise_std)
    round_to_(noisy, grid_of(noise_std))
    return rule.finish(noisy)


class Attacker:
    """Tells which world a release is from, by what could have made it.

    Args:
        rule: whose candidates it knows.
        arithmetic: which it supposes.
        dtype: of the numbers, and of what they are added to.
    """

    def __init__(self, rule, arithmetic, dtype=torch.float64):
        self._rule, self._arithmetic, self._dtype = rule, arithmetic, dtype
        pairs = [rule.before(world) for world in WORLDS]
        self.candidates = [position.to(dtype).double() for position, _ in pairs]
        self.noise_std = pairs[0][1]

    def remake(self, world, drawn):
        """The release of a world and numbers."""
        return self._arithmetic(self._rule, self.candidates[world], self.noise_std, drawn)

    def explains(self, world, release):
        """Say whether numbers exist that make the release from this candidate."""
        sums = release.double() * self._rule.divisor
        guess = ((sums - self.candidates[world]) / self.noise_std).to(self._dtype)
        found = torch.zeros(len(release), dtype=torch.bool)
        for steps in NEIGHBOURS:
            found |= self.remake(world, neighbour(guess, steps)) == release
        return bool(found.all())

    def proof(self, release):
        """Return the world that alone explains the release, or None."""
        possible = [world for world in WORLDS if self.explains(world, release)]
        return possible[0] if len(possible) == 1 else None

    def likelier(self, release):
        """Return the world whose candidate is nearer."""
        sums = release.double() * self._rule.divisor
        return min(WORLDS, key=lambda world: float((sums - self.candidates[world]).norm()))


def neighbour(drawn, steps):
    """The numbers so many units in the last place further from zero."""
    bits = torch.int32 if drawn.dtype == torch.float32 else torch.int64
    return (drawn.view(bits) + steps).view(drawn.dtype)


def test_numbers_of_float32_are_seen_through_every_time(rule):
    attacker = Attacker(rule, old_arithmetic, torch.float32)
    for trial in range(TRIALS):
        world = trial % 2
        release = attacker.remake(world, numbers(len(attacker.candidates[0]), trial))
        assert attacker.proof(release) == world


def test_the_service_gives_away_no_more_than_it_certifies(rule):
    """No release has one possible world; a "proof" that supposes float32 is a guess like others."""
    attacker = Attacker(rule, new_arithmetic)
    outdated = Attacker(rule, old_arithmetic, torch.float32)
    noise, right = SecureNoise(), 0
    for world in WORLDS:
        for release in rule.releases(world, noise, TRIALS // 2):
            assert all(attacker.explains(each, release) for each in WORLDS)
            guess = outdated.proof(release)
            right += world == (attacker.likelier(release) if guess is None else guess)
    assert right <= stats.binom.isf(FAILURE, TRIALS, stats.norm.cdf(MU / 2))
    assert noise.drawn == {attacker.noise_std: TRIALS * len(attacker.candidates[0])}


def test_the_worlds_are_as_far_apart_as_is_certified():
    """Else the attacker's guesses would be tested on an easier question than the certificate's."""
    for name, make in RULES.items():
        rule = make()
        (first, noise_std), (second, _) = (rule.before(world) for world in WORLDS)
        reached = float((first - second).norm()) / noise_std
        assert (0.3 if name == "private training" else 0.9) * MU < reached <= MU * (1 + 1e-12), name


def test_releases_lie_on_the_public_grid(rule):
    grid = grid_of(rule.before(0)[1])
    (release,) = rule.releases(0, SecureNoise(), 1)
    cells = torch.round(release.double() * rule.divisor / grid)
    assert torch.equal(rule.finish(cells * grid), release)
    assert release.unique().numel() > SIZE // 2


def test_without_the_grid_float64_would_be_seen_through_too():
    """The control: it is the grid that hides the lattice, and not the longer numbers."""
    attacker = Attacker(output(), without_grid)
    for trial in range(20):
        assert attacker.proof(attacker.remake(trial % 2, numbers(SIZE, trial))) == trial % 2
