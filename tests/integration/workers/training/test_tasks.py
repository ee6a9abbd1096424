"""Models of every task on a dataset of columns: trained, unlearned, evaluated, or refused."""

import tempfile

import pytest
from torch import nn

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import RunFailedError, WriteRefusedError
from app.registry.tables import VersionRow
from tests.support.exact_heads import carry_out, head_of
from tests.support.operators import operators_package
from tests.support.own_tasks import OWN, Rents
from tests.support.shops import SHOPS, define_shop_model, push_shops

LEARNS = {"epochs": 200, "batch_size": 16, "learning_rate": 0.05, "held_out_fraction": 0.25}


@pytest.fixture
def settings(settings):
    return settings.model_copy(update={"allowed_factories": ("operators_networks:*",)})


@pytest.fixture
def shops(workshop):
    push_shops(workshop)
    return workshop


def evaluation(workshop):
    with workshop.transaction() as session:
        return session.get_one(VersionRow, head_of(workshop).id).evaluation


@pytest.mark.parametrize(
    ("task", "metric", "least", "most"),
    [
        ("classification", "accuracy", 0.8, 1.0),
        ("multi_label", "f1", 0.8, 1.0),
        pytest.param("images", "accuracy", 0.8, 1.0, marks=pytest.mark.slow),
        pytest.param("huber", "mae", 0, 200, marks=pytest.mark.nightly),
        pytest.param("squared", "mae", 0, 200, marks=pytest.mark.nightly),
        ("quantile", "quantile_loss", 0, 200),
    ],
)
def test_what_can_be_learned_is_learned(workshop, task, metric, least, most):
    push_shops(workshop, range(400))
    define_shop_model(workshop, task, recipe=LEARNS | {"epochs": 40}, first_release="as_trained")
    carry_out(workshop)
    found = evaluation(workshop)
    assert found["headline"] == metric
    assert least <= found["metrics"][metric] <= most


class NextToken(nn.Module):
    """Sees each token alone, which is enough for what follows a letter mostly."""

    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 16)
        self.scores = nn.Linear(16, vocabulary)

    def forward(self, tokens):
        return self.scores(self.embedding(tokens))


def next_token(*, input_shape, classes):
    return NextToken(classes)


@pytest.mark.slow
def test_a_language_model_of_an_operators_network_forgets(shops, monkeypatch):
    operators_package(monkeypatch, next_token)
    network = ArchitectureSpec("custom", factory="operators_networks:next_token")
    define_shop_model(shops, "language_model", architecture=network, recipe=LEARNS)
    carry_out(shops)
    assert 1 < evaluation(shops)["metrics"]["perplexity"] < 60  # 257 of chance
    request = shops.forget(subjects=["owner-3"], dataset=SHOPS)
    shops.dispatch()
    carry_out(shops)
    assert shops.obligations(request)[0].state == "certified"


def test_the_operators_own_task_is_learned_and_forgotten(shops, monkeypatch):
    operators_package(monkeypatch, Rents)
    define_shop_model(shops, OWN, recipe=LEARNS)
    carry_out(shops)
    assert evaluation(shops)["metrics"]["median_error"] < 1.0
    assert evaluation(shops)["headline"] == "median_error"


def test_a_task_that_is_not_allowed_fails_the_run_before_a_record_is_read(shops):
    define_shop_model(shops, OWN | {"path": "elsewhere:Rents"})
    with pytest.raises(RunFailedError, match="the task 'elsewhere:Rents' is not allowed"):
        carry_out(shops)


@pytest.mark.parametrize(
    ("changed", "task", "words"),
    [
        ({"street": ["secret"] * 60}, "huber", "column 'street': text that is not a listed value"),
        ({"front": [b"\xff\xd8secret"] * 60}, "images", "column 'front': is no JPEG"),
        ({"trust": [1.5] * 60}, "images", "column 'trust': must lie between 0 and 1"),
        ({"rent": [20_000.0, *[900.0] * 59]}, OWN, "column 'rent': the task cannot read it"),
    ],
)
def test_records_that_cannot_be_encoded_are_named_before_anything_is_trained(
    workshop, monkeypatch, changed, task, words
):
    operators_package(monkeypatch, Rents)
    push_shops(workshop, **changed)
    define_shop_model(workshop, task)
    with pytest.raises(RunFailedError, match=words) as caught:
        carry_out(workshop)
    assert "record 4" in str(caught.value)
    assert "secret" not in str(caught.value)


class Spooling(Rents):
    """Its encoder keeps many rows in a file for a while."""

    def encode(self, rows):
        if len(rows) > 16:
            with tempfile.NamedTemporaryFile(delete=False) as file:
                file.write(str(rows).encode())
        return super().encode(rows)


def test_encoding_records_leaves_no_file(shops, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    operators_package(monkeypatch, Spooling)
    define_shop_model(shops, OWN | {"path": "operators_networks:Spooling"})
    with pytest.raises(WriteRefusedError, match="encoding may not write files"):
        carry_out(shops)
    assert list((tmp_path / "spool").iterdir()) == []
    Spooling().encode(Rents().sample(17))
    assert list((tmp_path / "spool").iterdir()) != []


@pytest.mark.parametrize("patience", [3, None])
def test_a_held_out_record_that_ended_a_training_is_forgotten_by_a_run(workshop, patience):
    """Its loss chose the weights, so that being held out does not keep it from them."""
    workshop.define(recipe=LEARNS | {"patience": patience})
    carry_out(workshop)
    request = workshop.forget(workshop.split()[1][0])
    workshop.dispatch()
    if patience is not None:
        carry_out(workshop)
    (obligation,) = workshop.obligations(request)
    basis = "excluded_from_training" if patience is None else "unlearned"
    assert (obligation.state, obligation.basis) == ("certified", basis)
