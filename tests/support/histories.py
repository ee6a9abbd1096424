"""Histories of made-up lineages, for tests of what is counted from them."""

from typing import Any

from hypothesis import strategies as st

from app.accounting.histories.history import History, Recipe

CONSTANTS: dict[str, Any] = {
    "learning_rate": 1.0,
    "weight_decay": 0.05,
    "smoothness": 0.25,
    "lipschitz": 1.0,
    "batch_size": 4,
    "batches": 5,
}


def recipe(**change: Any) -> Recipe:
    """Return a small recipe: contraction 0.95, shift 0.25, five batches of four records."""
    return Recipe(**{**CONSTANTS, **change})


_NOISE = st.sampled_from([0.0, 0.0, 0.01, 0.1, 1.0])
_EVENTS = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 40), _NOISE),
    st.tuples(st.just("release"), _NOISE),
    st.tuples(
        st.just("forget"),
        st.dictionaries(st.integers(0, 4), st.just(1), min_size=1, max_size=3),
    ),
)


@st.composite
def histories(draw: st.DrawFn, *, radius: bool = False) -> History:
    """Histories of every kind of event, in every order; with ``radius`` some project."""
    made = History(
        recipe(
            weight_decay=draw(st.sampled_from([0.0, 1e-9, 0.05, 0.4])),
            learning_rate=draw(st.sampled_from([1.0, 0.3])),
            batch_size=16,
            neighbours=draw(st.sampled_from(["zero_out", "replacement"])),
            radius=draw(st.sampled_from([None, 0.1, 3.0])) if radius else None,
        )
    )
    for kind, *numbers in draw(st.lists(_EVENTS, min_size=1, max_size=9)):
        match kind:
            case "steps":
                made = made.after_steps(numbers[0], noise_std=numbers[1])
            case "release":
                made = made.after_release(noise_std=numbers[0])
            case "forget":
                made = made.after_request(numbers[0])
    return made
