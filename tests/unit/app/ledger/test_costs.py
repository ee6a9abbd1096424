"""How long runs take, from what earlier ones took."""

from app.ledger.costs import Measured, Seconds, seconds_of

EARLIER = [
    Measured("retraining", True, 1000.0, 2.0, 0.5),
    Measured("retraining", True, 500.0, 2.0, 0.1),
    Measured("retraining", True, 1000.0, 3.0, 1.0),
    Measured("retraining", False, 1000.0, 90.0, 9.0),
    Measured("boosting", False, 0.0, 1.0, 0.25),
]


def test_what_takes_gradients_is_scaled_by_them_and_the_rest_is_not() -> None:
    found = seconds_of(EARLIER, "retraining", 2000.0)
    assert found == Seconds(expected=7.0, least=4.5, most=8.1)


def test_trainings_tell_it_where_nothing_was_unlearned() -> None:
    assert seconds_of(EARLIER, "boosting", 0.0) == Seconds(1.25, 1.25, 1.25)


def test_neither_another_mechanism_nor_another_kind_of_work_tells_it() -> None:
    assert seconds_of(EARLIER, "sharded_retraining", 10.0) is None
    assert seconds_of(EARLIER, "retraining", 0.0) is None
    assert seconds_of(EARLIER, "boosting", 10.0) is None
