"""Rules of what entries of the log do to the rows they name."""

import pytest

from app.operations.story_rules import born, born_or_changed, sets


def test_what_is_made_once_cannot_be_made_again() -> None:
    rule = born(sets(state="new"))
    assert rule({}, {}) == {"state": "new"}
    with pytest.raises(ValueError, match="made twice"):
        rule({}, {"state": "old"})


def test_what_may_be_made_again_is_changed() -> None:
    assert born_or_changed(sets(state="new"))({}, {"state": "old"}) == {"state": "new"}
