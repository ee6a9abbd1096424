"""Gradients in parts, and in bfloat16."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from app.domain.recipes import TrainingRecipe
from workers.training.loop import add_gradient
from workers.training.networks.network import Network
from workers.training.tasks.built_in import CLASSIFICATION
from workers.training.team import parts_of


class Watched(nn.Module):
    """A network that notes how it computes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 10)
        self.seen = []

    def forward(self, inputs):
        outputs = self.layer(inputs)
        self.seen.append((len(inputs), outputs.dtype))
        return outputs


def batch(records):
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (records,), generator=generator)
    return {"inputs": torch.randn(records, 64, generator=generator), "target": labels}


@pytest.mark.parametrize("records", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_parts_are_the_batch_and_none_has_a_single_record(records, parts):
    whole = batch(records)
    split = parts_of(whole, parts)
    for name, tensor in whole.items():
        assert torch.equal(torch.cat([part[name] for part, _ in split]), tensor)
    assert sum(share for _, share in split) == pytest.approx(1)
    sizes = [len(part["target"]) for part, _ in split]
    assert max(sizes) - min(sizes) <= 1
    assert len(split) <= parts
    assert min(sizes) > 1 or records == 1


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_the_gradients_of_the_parts_add_up_to_that_of_the_batch(parts):
    module, records = Watched(), batch(50)
    features, labels = records.values()
    loss = cross_entropy(module(features), labels)
    (expected,) = torch.autograd.grad(loss, [module.layer.weight])
    found = add_gradient(module, CLASSIFICATION, parts_of(records, parts), precision="float32")
    torch.testing.assert_close(module.layer.weight.grad, expected)
    torch.testing.assert_close(found, loss.detach())


def test_bfloat16_is_for_the_forward_pass_alone():
    module, records = Watched(), batch(50)
    features, labels = records.values()
    loss = add_gradient(module, CLASSIFICATION, parts_of(records, 1), precision="bfloat16")
    assert module.seen == [(50, torch.bfloat16)]
    assert loss.dtype == module.layer.weight.grad.dtype == torch.float32
    expected = cross_entropy(module.layer(features).detach(), labels)
    assert float(loss) == pytest.approx(float(expected), abs=0.02)
    assert not torch.is_autocast_enabled("cpu")


def test_a_clip_bounds_each_step_and_accumulates_before_it(digits):
    clipped = TrainingRecipe(
        learning_rate=1.0,
        momentum=0.0,
        weight_decay=0.0,
        schedule="constant",
        clip_norm=1e-3,
        batch_size=len(digits),
        micro_batches=4,
    )
    module = Watched()
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    Network(lambda: module, device=torch.device("cpu")).train(digits, clipped, epochs=1)
    moved = nn.utils.parameters_to_vector(module.parameters()).detach() - before
    assert float(moved.norm()) == pytest.approx(1e-3, rel=1e-2)
    assert len(module.seen) == 4
