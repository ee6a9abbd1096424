"""A key is looked up once a second, and never holds longer than it should."""

from collections.abc import Callable
from dataclasses import replace

from app.access import api_keys
from app.access.api_keys import Caller
from app.access.authentication import KnownCallers
from app.domain.states import Scope
from app.services import Services

ANNE = Caller("key_anne", frozenset({Scope.ADMIN}))
DIGEST = b"digest"


def _holder(lasts_s: float | None = None) -> Callable[[], Caller]:
    return lambda: replace(ANNE, lasts_s=lasts_s)


def _revoke_a_key(services: Services) -> None:
    with services.database.transaction() as session:
        row, _ = api_keys.create_key(session, name="other", scopes=[Scope.ADMIN])
        api_keys.revoke(session, row.id)


def test_whoever_was_looked_up_is_known() -> None:
    known = KnownCallers(lifetime_s=60)
    assert known.find(DIGEST) is None
    assert known.look_up(DIGEST, _holder()) == ANNE
    assert known.find(DIGEST) == ANNE
    assert known.find(b"other") is None


def test_nobody_is_known_for_longer_than_the_lifetime_or_the_key() -> None:
    for known, lasts_s in ((KnownCallers(lifetime_s=0), None), (KnownCallers(lifetime_s=60), 0.0)):
        known.look_up(DIGEST, _holder(lasts_s))
        assert known.find(DIGEST) is None


def test_credentials_that_have_ended_are_remembered_as_accepted_but_grant_nothing() -> None:
    known = KnownCallers(lifetime_s=0)
    assert DIGEST not in known
    known.look_up(DIGEST, _holder())
    assert DIGEST in known
    assert known.find(DIGEST) is None
    known.discard(DIGEST)
    known.discard(b"never")
    assert DIGEST not in known


def test_a_revocation_ends_what_was_known(services: Services) -> None:
    known = KnownCallers(lifetime_s=60)
    known.look_up(DIGEST, _holder())
    _revoke_a_key(services)
    assert known.find(DIGEST) is None


def test_a_look_up_that_a_revocation_overtakes_is_not_kept(services: Services) -> None:
    known = KnownCallers(lifetime_s=60)

    def ask() -> Caller:
        _revoke_a_key(services)
        return ANNE

    assert known.look_up(DIGEST, ask) == ANNE
    assert known.find(DIGEST) is None


def test_a_revocation_that_is_rolled_back_changes_nothing(services: Services) -> None:
    before = api_keys.revocations()
    with services.database.transaction() as session:
        row, _ = api_keys.create_key(session, name="other", scopes=[Scope.ADMIN])
        api_keys.revoke(session, row.id)
        session.rollback()
    with services.database.transaction() as session:
        api_keys.create_key(session, name="another", scopes=[Scope.ADMIN])
    assert api_keys.revocations() == before


def test_the_least_recent_gives_way() -> None:
    known = KnownCallers(lifetime_s=60, most=2)
    for digest in (b"1", b"2", b"1", b"3"):
        known.look_up(digest, _holder())
    assert [known.find(digest) is not None for digest in (b"1", b"2", b"3")] == [True, False, True]
    assert [digest in known for digest in (b"1", b"2", b"3")] == [True, False, True]
