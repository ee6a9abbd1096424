import threading
from concurrent.futures import wait

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from app.runtime.database.group_commit import GroupCommit
from tests.support.patience import PATIENCE_S
from tests.support.threads import none_can_be_started


class Recorder:
    """Doubles numbers; negative ones are refused, and zero makes everything fail."""

    def __init__(self, error=None):
        self.error = error or ZeroDivisionError()
        self.groups = []
        self.first_is_waiting = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, calls):
        self.groups.append(list(calls))
        if len(self.groups) == 1:
            self.first_is_waiting.set()
            assert self.go_on.wait(PATIENCE_S)
        if 0 in calls:
            raise self.error
        return [ValueError(call) if call < 0 else 2 * call for call in calls]


class Abandoned:
    """Lends a thread that does not keep the process: it lingers in the end."""

    def submit(self, lead):
        threading.Thread(target=lead, daemon=True).start()


def answers_of(together, recorder, first, others):
    """Let the others arrive while the first is carried out."""
    futures = [together.start(first)]
    assert recorder.first_is_waiting.wait(PATIENCE_S)
    futures += [together.start(call) for call in others]
    recorder.go_on.set()
    return [future.exception(10) or future.result() for future in futures]


def test_what_arrives_meanwhile_is_carried_out_together():
    recorder = Recorder()
    together = GroupCommit(recorder, most=3)
    assert answers_of(together, recorder, 1, [2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert recorder.groups == [[1], [2, 3, 4], [5]]


def test_a_refused_call_concerns_nobody_else():
    recorder = Recorder()
    answers = answers_of(GroupCommit(recorder), recorder, 1, [2, -3, 4])
    assert answers[:2] == [2, 4]
    assert isinstance(answers[2], ValueError)
    assert answers[3] == 8


def test_where_a_group_fails_each_call_is_tried_by_itself():
    recorder = Recorder()
    answers = answers_of(GroupCommit(recorder), recorder, 1, [2, 0, 4])
    assert answers[:2] == [2, 4]
    assert isinstance(answers[2], ZeroDivisionError)
    assert answers[3] == 8
    assert recorder.groups == [[1], [2, 0, 4], [2], [0], [4]]


def test_without_a_database_nobody_is_tried_by_themselves():
    away = OperationalError("SELECT 1", {}, psycopg.OperationalError("nobody answers"))
    recorder = Recorder(away)
    answers = answers_of(GroupCommit(recorder), recorder, 1, [2, 0, 4])
    assert answers == [2, away, away, away]
    assert recorder.groups == [[1], [2, 0, 4]]


def test_a_call_that_fails_alone_is_not_tried_again():
    recorder = Recorder()
    recorder.go_on.set()
    together = GroupCommit(recorder)
    with pytest.raises(ZeroDivisionError):
        together.start(0).result(PATIENCE_S)
    assert recorder.groups == [[0]]
    assert together.start(7).result(PATIENCE_S) == 14


def test_after_several_it_waits_for_as_many_and_no_longer():
    recorder = Recorder()
    together = GroupCommit(recorder, linger_s=600, leaders=Abandoned())
    answers_of(together, recorder, 1, [2, 3, 4])
    futures = [together.start(5), together.start(6)]
    assert not wait(futures, timeout=0.2).done
    futures.append(together.start(7))
    assert not wait(futures, timeout=PATIENCE_S).not_done
    assert recorder.groups == [[1], [2, 3, 4], [5, 6, 7]]


def test_those_who_do_not_come_again_are_not_waited_for_in_vain():
    recorder = Recorder()
    together = GroupCommit(recorder, linger_s=0.05)
    answers_of(together, recorder, 1, [2, 3, 4])
    assert together.start(5).result(timeout=PATIENCE_S) == 10


def test_a_call_for_which_no_thread_can_be_started_fails_and_holds_up_no_other():
    recorder = Recorder()
    recorder.go_on.set()
    together = GroupCommit(recorder)
    with none_can_be_started(), pytest.raises(RuntimeError, match="new thread"):
        together.start(1)
    assert together.start(2).result(timeout=PATIENCE_S) == 4
    assert recorder.groups == [[2]]
