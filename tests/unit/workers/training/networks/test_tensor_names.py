"""Names of uploaded tensors: the network's own, under a prefix, or refused."""

import pytest

from app.domain.errors import RunFailedError
from workers.training.networks.network import renamed

OWN = ["first.weight", "first.bias", "head.weight"]


@pytest.mark.parametrize(
    "spelt",
    [
        "{}",
        "model.{}",
        "module.{}",
        "_orig_mod.{}",
        "model._orig_mod.module.{}",
        "student.encoder.{}",
    ],
)
def test_a_common_prefix_is_left_out(spelt):
    tensors = {spelt.format(name): number for number, name in enumerate(OWN)}
    assert renamed(tensors, OWN) == {name: number for number, name in enumerate(OWN)}


def test_a_part_that_was_compiled_is_found():
    tensors = {"first._orig_mod.weight": 0, "first._orig_mod.bias": 1, "head.weight": 2}
    assert renamed(tensors, OWN) == {name: number for number, name in enumerate(OWN)}


def test_a_network_whose_own_names_begin_like_that_keeps_them():
    own = [f"model.{name}" for name in OWN]
    assert set(renamed(dict.fromkeys(own, 0), own)) == set(own)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda names: names[1:], "they lack 'first.weight'"),
        (lambda names: [*names, "loss.weight"], "they hold 'loss.weight', which the network"),
        (lambda names: [*names[1:], "x"], "they lack 'first.weight'; they hold"),
        (lambda names: [f"m.{name}" for name in names[1:]] + ["first.weight"], "they hold"),
        (lambda names: [f"m.{name}" for name in names] + ["n.head.weight"], "they hold"),
        (lambda names: [*names, "head._orig_mod.weight"], "are not the network's"),
        (lambda _: ["other"], "'first.bias', 'first.weight', 'head.weight'"),
    ],
)
def test_anything_else_is_refused_by_name(change, words):
    with pytest.raises(RunFailedError, match=words):
        renamed(dict.fromkeys(change(OWN), 0), OWN)
