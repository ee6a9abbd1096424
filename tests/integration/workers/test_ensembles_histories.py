"""Whatever happens to an ensemble, each member has learned from exactly what is left of its own."""

import random
from contextlib import nullcontext, suppress

import pytest
from sqlalchemy import select

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import ConflictError, LeaseLostError
from app.domain.states import ObligationState
from app.ledger import member_trainings
from app.ledger.models import retraining
from app.registry.datasets.tables import RecordRow
from tests.support.exact_heads import carry_out, head_of
from tests.support.workshop import RECORDS, Workshop, record_ids
from workers.data.member_records import MemberRecords
from workers.mechanisms.ensembles import run as ensembles
from workers.recompute import recompute

MEMBERS = 3
ENSEMBLE = ArchitectureSpec("ensemble", members=MEMBERS, of=ArchitectureSpec("logistic"))
STEPS = 25


class Story:
    """A model's history, and what each version's members learned from."""

    def __init__(self, services, monkeypatch, seed, forget):
        self.random = random.Random(seed)
        self.workshop = Workshop(services)
        self.workshop.define(architecture=ENSEMBLE, mechanism="auto", forget=forget)
        self.ids, self.requests = record_ids(), []
        self.learned, self.attempt, self.meanwhile = {}, {}, []
        real = MemberRecords.of

        def of(records, member):
            self.attempt[member] = set(records.seqs[member].tolist())
            while self.meanwhile:
                self.meanwhile.pop()()
            return real(records, member)

        monkeypatch.setattr(MemberRecords, "of", of)
        monkeypatch.setattr(ensembles, "ram_only", nullcontext)  # requests come while it trains

    def forget(self):
        chosen = self.random.sample(self.ids, self.random.choice([1, 1, 2]))
        self.requests.append(self.workshop.forget(*chosen))

    def replace(self):
        request = self.workshop.replace(*self.random.sample(self.ids, 2)).forget_request
        self.requests += [] if request is None else [request]

    def cancel(self):
        if not self.requests:
            return
        request = self.requests.pop(self.random.randrange(len(self.requests)))
        try:
            with self.workshop.transaction() as session:
                self.workshop.services.forget_requests.cancel(session, request)
        except ConflictError:
            return  # a run has started on it

    def push_again(self):
        """Have forgotten records come back as new ones, which the next training learns from."""
        self.workshop.push_again(*self.random.sample(self.ids, 5))

    def push(self):
        if len(self.ids) == RECORDS:
            self.workshop.push(first=RECORDS)
            self.ids += record_ids(first=RECORDS)

    def retrain(self):
        if self.workshop.active_run() is None and head_of(self.workshop) is not None:
            self.workshop.retrain()

    def refill(self):
        with suppress(ConflictError):  # no member is out, or a run is going
            retraining.refill(self.workshop.services.database, "model")

    def fail(self):
        """Let an attempt end after it has begun, with a member in another worker's hands."""
        if self.workshop.active_run() is None:
            return
        held = self.workshop.lease()
        selection = self.workshop.begin(held)
        with self.workshop.transaction() as session:
            member_trainings.begin(session, held.run_id, held.token, selection.members)
            member_trainings.take(session, held.run_id, lease_s=30.0)
        self.workshop.give_up(held, permanent=False, attempts=99)

    def work(self):
        self.workshop.dispatch()
        if self.workshop.active_run() is None:
            return
        self.meanwhile = self.random.choices([self.forget, self.cancel], k=self.random.randrange(3))
        self.attempt = {}
        with suppress(LeaseLostError):  # of a refill whose members were all named again
            carry_out(self.workshop)
        self.learned |= self.attempt
        self.meanwhile = []
        with suppress(ConflictError):  # records of a member are to be forgotten
            assert recompute(self.workshop.services, "model").is_equal

    def active(self):
        stated = head_of(self.workshop).members
        return {place for place, each in enumerate(stated) if "out_since" not in each}

    def left(self):
        """Return the records that each member should have learned from, counted from the ledger."""
        membership, covered = self.workshop.membership(), head_of(self.workshop).covers_epoch
        left = {member: set() for member in range(MEMBERS)}
        with self.workshop.transaction() as session:
            for row in session.scalars(select(RecordRow)):
                gone = row.forgotten_epoch is not None and row.forgotten_epoch <= covered
                if membership.includes(row) and not gone and not membership.is_held_out(row):
                    left[membership.member_of(row)].add(row.seq)
        return left


@pytest.mark.parametrize("forget", ["retrain", "leave_out"])
@pytest.mark.parametrize("seed", range(3))
def test_members_have_learned_from_what_is_left_and_nothing_else(
    services, monkeypatch, seed, forget
):
    story = Story(services, monkeypatch, seed, forget)
    steps = [story.forget, story.cancel, story.work, story.work, story.fail, story.retrain]
    steps += [story.push_again, story.replace, story.refill]
    story.work()
    for step in story.random.choices([*steps, story.push], k=STEPS):
        step()
    while story.workshop.active_run() is not None or _waits(story):
        story.work()
    active = story.active()
    assert len(active) == MEMBERS or forget == "leave_out"
    learned, left = story.learned, story.left()
    assert {each: learned[each] for each in active} == {each: left[each] for each in active}
    assert recompute(story.workshop.services, "model").is_equal
    owed = [each for request in story.requests for each in story.workshop.obligations(request)]
    assert {each.state for each in owed} <= {ObligationState.CERTIFIED, ObligationState.CANCELLED}


def _waits(story):
    story.workshop.dispatch()
    return story.workshop.active_run() is not None
