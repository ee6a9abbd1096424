"""What a thread makes ahead: one item, its failures without what they saw, and its end."""

import threading
import time

import pytest

from app.domain.errors import LeaseLostError
from tests.support.patience import PATIENCE_S, until
from workers.data.streaming import ReadAhead


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def test_items_come_in_order_and_the_thread_ends_after_the_last():
    assert list(ReadAhead(lambda _: iter(range(100)))) == list(range(100))
    assert threads() == []


def test_one_item_is_made_ahead_and_not_two():
    made = []

    def numbers(_):
        for number in range(10):
            made.append(number)
            yield number

    reading = ReadAhead(numbers)
    until(lambda: made == [0])
    assert next(reading) == 0
    until(lambda: made == [0, 1])
    time.sleep(0.05)
    assert made == [0, 1]
    reading.close()
    assert threads() == []


def test_an_error_comes_where_its_item_would_have_come_and_carries_no_frame():
    record = "a record of somebody"

    def failing(_):
        yield 1
        kept = record
        raise ValueError(f"cannot read {kept}")

    reading = ReadAhead(failing)
    assert next(reading) == 1
    with pytest.raises(RuntimeError, match=r"reading records failed: ValueError") as caught:
        next(reading)
    assert record not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    frames = []
    traceback = caught.value.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    assert not any(record in map(str, frame.f_locals.values()) for frame in frames[1:])
    assert threads() == []


def test_the_services_own_errors_keep_their_type():
    def lost(_):
        raise LeaseLostError("the run is held by another worker or is over")
        yield

    with pytest.raises(LeaseLostError, match="another worker"):
        next(ReadAhead(lost))


def test_closing_ends_a_thread_in_the_middle_of_its_work():
    begun = threading.Event()

    def endless(check):
        while True:
            begun.set()
            check()
            time.sleep(0.001)
        yield

    reading = ReadAhead(endless)
    assert begun.wait(PATIENCE_S)
    reading.close()
    reading.close()
    assert threads() == []
    assert list(reading) == []
