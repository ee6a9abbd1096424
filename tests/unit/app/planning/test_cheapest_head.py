"""``auto`` takes for a head what is cheapest at equal accuracy: see benchmarks/head_costs.py."""

import json

import pytest

from app.domain.policy import Policy
from app.planning.planner import quote_all
from app.planning.shape import ConvexShape, ModelShape
from benchmarks.head_costs import EXACT, RESULTS, SETTINGS, Setting, cheapest
from tests.support.lineages import trained
from tests.support.specs import classification

MEASURED = json.loads(RESULTS.read_text())["settings"]
BATCH = 100


def shape_of(setting: Setting) -> ModelShape:
    """Return the setting's head, tracked since its training, with the request."""
    bounds = classification(setting.classes).bounds
    smoothness = bounds.smoothness
    rows = 1 if setting.classes == 2 else setting.classes
    new = ModelShape(
        retained=setting.records,
        records=setting.records,
        batch_size=BATCH,
        recipe_epochs=setting.epochs,
        dimension=rows * (setting.size + 1),
        convex=ConvexShape(
            lipschitz=bounds.lipschitz,
            smoothness=smoothness,
            weight_decay=setting.weight_decay,
            learning_rate=1 / (smoothness + setting.weight_decay),
        ),
    )
    in_each, left = divmod(setting.forgotten, -(-setting.records // BATCH))
    forget = dict.fromkeys(range(setting.records // BATCH), in_each)
    forget[0] += left
    return trained(
        "tracked_release", shape=new, forget={batch: n for batch, n in forget.items() if n}
    )


def test_all_settings_were_measured() -> None:
    names = Setting.__dataclass_fields__
    assert [Setting(**{name: row[name] for name in names}) for row in MEASURED] == list(SETTINGS)
    assert len(set(SETTINGS)) == 20


@pytest.mark.parametrize(
    ("setting", "row"), list(zip(SETTINGS, MEASURED, strict=True)), ids=range(len(SETTINGS))
)
def test_auto_takes_the_cheapest_exact_offer(setting: Setting, row: dict) -> None:
    quotes = quote_all(policy=Policy(), shape=shape_of(setting))

    offered = {offer.mechanism for offer in quotes.offers}
    assert offered.issuperset(offer["mechanism"] for offer in row["offers"])
    assert quotes.choice == cheapest(row["offers"])


@pytest.mark.parametrize("setting", SETTINGS[::5])
def test_where_the_budget_allows_nothing_exact_it_takes_the_fewest_gradients(
    setting: Setting,
) -> None:
    quotes = quote_all(policy=Policy(budget_epochs=0.5), shape=shape_of(setting))
    offers = {offer.mechanism: offer.gradient_computations for offer in quotes.offers}

    assert not offers.keys() & set(EXACT)
    assert quotes.choice is not None
    assert offers[quotes.choice] == min(offers.values())


@pytest.mark.parametrize(
    ("seconds", "losses", "expected"),
    [
        ((2.0, 1.0, 0.1), (0.5, 0.5, 0.5), "retraining"),
        ((2.0, 1.0, 0.1), (0.5, 0.51, 0.5), "exact_training"),
        ((1.0, 2.0, 0.1), (0.5, 0.5, 0.4), "exact_training"),
    ],
)
def test_the_table_is_read_rightly(
    seconds: tuple[float, ...], losses: tuple[float, ...], expected: str
) -> None:
    names = (*EXACT, "tracked_release")
    offers = [
        {"mechanism": name, "seconds": s, "loss": loss}
        for name, s, loss in zip(names, seconds, losses, strict=True)
    ]
    assert cheapest(offers) == expected
