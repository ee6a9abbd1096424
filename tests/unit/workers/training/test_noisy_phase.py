"""The noisy phase on real digits: what it stops at, and what cannot carry data past the noise."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from app.accounting import gradient_clipping as accountant
from app.accounting.precision import grid_of
from app.domain.errors import PlanError, RunFailedError, SealedStateError, TargetNotMetError
from tests.support.insecure_noise import InsecureNoise
from workers.mechanisms.descent import Descent
from workers.mechanisms.gradient_clipping import GradientClipping, GradientClippingRun
from workers.training.examples import classified
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network
from workers.training.noisy_phase import FixedBatches, RandomBatches, descend, run_noisy_phase

CPU = torch.device("cpu")
TARGET = {"epsilon": 1.0, "delta": 1e-5}
SETTING = {"initial_clip": 5.0, "gradient_clip": 2.0, "learning_rate": 0.01, "weight_decay": 50.0}


def mechanism(steps=6, **changes):
    setting = SETTING | changes
    noise_std = accountant.calibrate(**TARGET, **setting, steps=steps)
    return GradientClipping(**setting, noise_std=noise_std, steps=steps)


def normalised():
    """A small network with both kinds of running statistics."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(4 * 36, 10),
    )


def run(network, retain, *, factory=normalised, rule=None, seed=0, on_progress=None):
    return run_noisy_phase(
        network,
        rule or mechanism(),
        RandomBatches(retain, len(retain)),
        frame=ReferenceFrame.of(factory),
        noise=InsecureNoise(seed, environment="test"),
        **TARGET,
        on_progress=on_progress or (lambda *_: None),
    )


def test_buffers_stay_at_their_initial_values_whatever_the_data(digit_images):
    network = Network(normalised, device=CPU)
    before = {name: buffer.clone() for name, buffer in network.module.named_buffers()}
    with torch.no_grad():
        for buffer in network.module.buffers():
            buffer.fill_(7)  # what training on forgotten records would have left behind
    run(network, digit_images)
    after = dict(network.module.named_buffers())
    assert before.keys() == after.keys()
    assert len(after) == 6
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_earlier_statistics_leave_no_trace_in_the_parameters(digit_images):
    start = Network(normalised, device=CPU).tensors()
    ends = []
    for poison in (0.0, 1e6):
        network = Network(normalised, device=CPU)
        poisoned = {
            name: np.full_like(tensor, poison) if "running" in name else tensor
            for name, tensor in start.items()
        }
        network.load(poisoned)
        run(network, digit_images)
        ends.append(network.flat.values.clone())
    # The order of records within the one batch differs, hence the last digits.
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-3)


def test_steps_use_the_gradient_of_the_records_in_the_frame(digit_images):
    """The whole loop once more, by hand, tensor by tensor, with autograd on a plain module."""
    network = Network(normalised, device=CPU)
    frame, rule = ReferenceFrame.of(normalised), mechanism(steps=3, gradient_clip=300.0)
    plain = normalised()
    plain.load_state_dict(network.module.state_dict())
    scale = torch.cat(
        [torch.full((p.numel(),), frame.scale[name]) for name, p in plain.named_parameters()]
    ).double()
    centre = torch.cat(
        [frame.centre[name].expand(p.shape).reshape(-1) for name, p in plain.named_parameters()]
    ).double()
    noise = InsecureNoise(0, environment="test")
    x = nn.utils.parameters_to_vector(plain.parameters()).detach().double()
    u = (x - centre) / scale
    u = u * min(1.0, rule.initial_clip / float(u.norm()))
    features, labels = next(digit_images.in_order(len(digit_images), device=CPU)).values()
    for _ in range(rule.steps):
        nn.utils.vector_to_parameters((centre + scale * u).float(), plain.parameters())
        loss = nn.functional.cross_entropy(plain(features), labels)
        g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, plain.parameters())])
        g = g.double() * scale
        g = g * min(1.0, rule.gradient_clip / float(g.norm()))
        u = u - rule.learning_rate * (g + rule.weight_decay * u)
        noise.add_(u, rule.noise_std)
    run(network, digit_images, rule=rule)
    torch.testing.assert_close(
        network.flat.values, (centre + scale * u).float(), rtol=1e-5, atol=1e-5
    )


def test_what_the_rule_moves_is_float64_and_the_weights_are_it_rounded_once(digit_images):
    network, seen = Network(normalised, device=CPU), []

    class Watched(GradientClipping):
        def begin(self, position, conditions):
            seen.append(position)
            return super().begin(position, conditions)

    def report(*_):
        weights = [torch.empty_like(held) for held in network.flat.held]
        frame.weights_at(seen[0], out=weights)
        assert torch.equal(torch.cat(weights), network.flat.values)
        assert (seen[0] / grid_of(rule.noise_std)).frac().eq(0).all()

    rule = Watched(**vars(mechanism()))
    frame = ReferenceFrame.of(normalised).on(network.flat)
    run(network, digit_images, rule=rule, on_progress=report)
    assert seen[0].dtype == torch.float64


@pytest.mark.parametrize("noisy", [True, False])
def test_a_descent_on_weights_of_float32_is_refused(noisy, digit_images):
    """They would round its steps away: their drift is not the one that is accounted for."""
    network = Network(normalised, device=CPU)
    before = network.flat.values.clone()
    with pytest.raises(ValueError, match="float64"):
        descend(
            network,
            Descent(0.1, 0.1, noise_std=0.1 * noisy).step_,
            RandomBatches(digit_images, 8),
            steps=1,
            noise=InsecureNoise(0, environment="test"),
            on_progress=lambda *_: None,
        )
    assert torch.equal(network.flat.values, before)


def test_a_descent_moves_a_network_of_float64_by_its_gradient(digit_images):
    network = Network(normalised, device=CPU, dtype=torch.float64)
    start = network.flat.values.clone()
    plain = normalised().double()
    plain.load_state_dict(network.module.state_dict())
    features, labels = next(digit_images.in_order(len(digit_images), device=CPU)).values()
    nn.functional.cross_entropy(plain(features.double()), labels).backward()
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters()])
    descend(
        network,
        Descent(0.1, 1e-9).step_,
        RandomBatches(digit_images, len(digit_images)),
        steps=1,
        noise=InsecureNoise(0, environment="test"),
        on_progress=lambda *_: None,
    )
    expected = (1 - 1e-10) * start - 0.1 * gradient
    torch.testing.assert_close(network.flat.values, expected, rtol=1e-12, atol=1e-13)


def test_the_first_gradient_is_taken_at_the_clipped_start(digit_images):
    network, seen = Network(normalised, device=CPU), []
    network.module.register_forward_pre_hook(
        lambda *_: seen.append([held.clone() for held in network.flat.held])
    )
    run(network, digit_images)
    frame = ReferenceFrame.of(normalised).on(network.flat)
    assert float(frame.position_of(seen[0]).norm()) == pytest.approx(5.0, rel=1e-5)


def test_the_loop_stops_at_the_first_step_that_meets_the_target(digit_images):
    network, seen = Network(normalised, device=CPU), []

    def look(step, total, guarantee):
        seen.append((step, total, guarantee()))

    going = run(network, digit_images, on_progress=look)
    assert going.steps == len(seen) == 6
    assert [(step, total) for step, total, _ in seen] == [(step, 6) for step in range(1, 7)]
    assert [guarantee.meets(**TARGET) for *_, guarantee in seen] == [False] * 5 + [True]
    planned = accountant.account(**SETTING, noise_std=mechanism().noise_std, steps=6)
    assert going.guarantee().mu == pytest.approx(planned.mu, rel=1e-13)


def test_the_guarantee_is_computed_only_for_those_who_ask(digit_images, monkeypatch):
    """The stopping rule asks the odometer for itself; progress alone asks for nothing."""
    asked, computed = [], GradientClippingRun.guarantee

    def counted(run):
        asked.append(run.steps)
        return computed(run)

    def third(step, _, guarantee):
        if step == 3:
            guarantee()

    monkeypatch.setattr(GradientClippingRun, "guarantee", counted)
    assert run(Network(normalised, device=CPU), digit_images, on_progress=third).steps == 6
    assert asked == [3]


def test_a_rule_that_never_meets_its_target_is_stopped_at_its_plan(digit_images):
    class Endless:
        met, steps = False, 0

        def step(self, position, gradient):
            self.steps += 1

        def guarantee(self):
            return None

    class Plan:
        steps = 3

        def begin(self, position, conditions):
            return Endless()

    with pytest.raises(TargetNotMetError):
        run(Network(normalised, device=CPU), digit_images, rule=Plan())


def test_a_network_that_explodes_is_still_noised_to_the_target(digit_images):
    class Exploding(nn.Linear):
        def forward(self, features):
            return super().forward(features.flatten(1)) * torch.inf

    def factory():
        return Exploding(64, 10)

    network = Network(factory, device=CPU)
    assert run(network, digit_images, factory=factory).met
    assert torch.isfinite(network.flat.values).all()


class Escaping(nn.Module):
    """Networks that would keep data outside of the parameters."""

    def __init__(self, way):
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.way = way

    def forward(self, features):
        if self.training and self.way == "parameter":
            self.linear.bias = nn.Parameter(features.mean(dim=(1, 2, 3))[:10].clone())
        elif self.training and self.way == "buffer":
            self.register_buffer("seen", features.mean(dim=0))
        return self.linear(features.flatten(1))


@pytest.mark.parametrize(("way", "error"), [("parameter", SealedStateError), ("buffer", PlanError)])
def test_a_network_that_smuggles_data_is_refused(way, error, digit_images):
    def factory():
        return Escaping(way)

    with pytest.raises(error):
        run(Network(factory, device=CPU), digit_images, factory=factory)


def test_no_retained_records_are_an_error(digit_images):
    nothing = digit_images.select(np.array([], dtype=np.int64))
    with pytest.raises(RunFailedError, match="no records"):
        run_noisy_phase(
            Network(normalised, device=CPU),
            mechanism(),
            RandomBatches(nothing, 8),
            frame=ReferenceFrame.of(normalised),
            noise=InsecureNoise(0, environment="test"),
            **TARGET,
            on_progress=lambda *_: None,
        )


@pytest.mark.parametrize("fails", [False, True])
def test_position_and_gradients_are_overwritten_when_the_phase_ends(digit_images, fails):
    network, rule, kept = Network(normalised, device=CPU), mechanism(), []
    begin, attach = GradientClipping.begin, network.flat.attach_gradients

    class Watched(GradientClipping):
        def begin(self, position, conditions):
            kept.append(position)
            return begin(self, position, conditions)

    def attach_and_watch():
        attach()
        kept.append(network.flat.gradients)

    network.flat.attach_gradients = attach_and_watch

    def report(*_):
        assert kept[0].any()
        if fails:
            raise KeyboardInterrupt

    rule = Watched(**vars(rule))
    if fails:
        with pytest.raises(KeyboardInterrupt):
            run(network, digit_images, rule=rule, on_progress=report)
        network.destroy()
    else:
        run(network, digit_images, rule=rule, on_progress=report)
    assert len(kept) == 2
    assert not any(bool(buffer.any()) for buffer in kept)


BATCHES, BATCH_SIZE = 4, 3
BATCH_OF = np.array([2, 0, 1, 0, 3, 2, 1, 0, 2, 1])


def numbered(numbers):
    """Records of one feature, their own number, with two classes."""
    numbers = np.asarray(numbers)
    return classified(numbers.astype(np.float32)[:, None], numbers % 2)


def feed_without(forgotten=(), **options):
    kept = np.array([n for n in range(len(BATCH_OF)) if n not in forgotten])
    return FixedBatches(
        numbered(kept), BATCH_OF[kept], batches=BATCHES, batch_size=BATCH_SIZE, **options
    )


def numbers_of(batches, count):
    return [
        sorted(int(x) for x in features) for features, _ in map(dict.values, islice(batches, count))
    ]


def gradient_of(feed, features, labels, weight):
    weight = weight.clone().requires_grad_()
    losses = cross_entropy(features @ weight, labels, reduction="none")
    feed.objective(losses).backward()
    return weight.grad


def test_batches_come_in_their_cycle_and_hold_their_records():
    assert numbers_of(feed_without().forever(CPU), 6) == [
        [1, 3, 7],
        [2, 6, 9],
        [0, 5, 8],
        [4],
        [1, 3, 7],
        [2, 6, 9],
    ]


def test_labels_go_with_their_records():
    for features, labels in map(dict.values, feed_without().once(CPU)):
        assert (features[:, 0].long() % 2 == labels).all()


def test_records_that_are_forgotten_leave_every_other_in_its_batch():
    left = numbers_of(feed_without({3, 4, 9}).forever(CPU), BATCHES)
    assert left == [[1, 7], [2, 6], [0, 5, 8], []]


def test_a_forgotten_record_counts_as_a_gradient_of_zero():
    weight = torch.tensor([[0.3, -0.2]])
    whole, left = feed_without(), feed_without({3})
    features, labels = next(whole.forever(CPU)).values()
    present = features[:, 0] != 3
    assert int(present.sum()) == 2
    losses = cross_entropy(features @ weight, labels, reduction="none")
    remaining = gradient_of(left, *next(left.forever(CPU)).values(), weight)
    alone = gradient_of(whole, features[~present], labels[~present], weight)
    assert torch.allclose(remaining + alone, gradient_of(whole, features, labels, weight))
    loss = left.objective(losses[present])
    assert float(loss) == pytest.approx(float(losses[present].sum()) / BATCH_SIZE)


def test_a_batch_without_records_keeps_its_turn_and_moves_nothing():
    feed = feed_without({4})
    features, labels = next(islice(feed.forever(CPU), 3, None)).values()
    assert len(labels) == 0
    assert (gradient_of(feed, features, labels, torch.ones(1, 2)) == 0).all()
    assert numbers_of(feed.once(CPU), 9) == [[1, 3, 7], [2, 6, 9], [0, 5, 8]]


@pytest.mark.parametrize("position", [0, 2, BATCHES - 1, BATCHES, 5 * BATCHES + 3])
def test_the_cycle_goes_on_where_the_lineage_stopped(position):
    cycle = numbers_of(feed_without().forever(CPU), BATCHES)
    (first,) = numbers_of(feed_without(position=position).forever(CPU), 1)
    assert first == cycle[position % BATCHES]


def test_a_second_phase_goes_on_where_the_first_stopped_and_a_look_changes_nothing():
    cycle = numbers_of(feed_without().forever(CPU), BATCHES)
    feed = feed_without()
    assert numbers_of(feed.forever(CPU), 3) == cycle[:3]
    list(feed.once(CPU))
    assert numbers_of(feed.forever(CPU), 2) == [cycle[3], cycle[0]]


def test_a_loss_bound_caps_each_record_and_leaves_small_losses_alone():
    bounded, plain = feed_without(loss_bound=2.0), feed_without()
    large, small = torch.tensor([50.0]), torch.tensor([0.007])
    assert float(plain.objective(large)) == pytest.approx(50 / BATCH_SIZE)
    assert float(bounded.objective(large)) == pytest.approx(2 / BATCH_SIZE)
    assert float(bounded.objective(small)) == pytest.approx(float(plain.objective(small)), rel=1e-4)
    both = bounded.objective(large.expand(2))
    assert float(both) == pytest.approx(4 / BATCH_SIZE)
