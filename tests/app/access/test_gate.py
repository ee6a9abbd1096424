"""Who is let in, many at a time, and when nobody can be looked up."""

import asyncio
import threading

from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from app.domain.errors import InvalidCredentialsError
from app.domain.scopes import Scope
from app.ledger import api_keys
from app.main import create_app
from app.services import Services


def test_those_who_come_together_are_told_apart(services: Services) -> None:
    with services.database.transaction() as session:
        made = [api_keys.create_key(session, name="k", scopes=[Scope.ADMIN]) for _ in range(20)]
    keys = {secret: row.id for row, secret in made}
    gate = create_app(services).state.gate

    async def all_at_once(secrets: list[str]) -> list[object]:
        calls = (gate.caller_of(secret, "192.0.2.7") for secret in secrets)
        return await asyncio.gather(*calls, return_exceptions=True)

    wrong = [f"xpg_{number}" for number in range(5)]
    found = asyncio.run(all_at_once([*keys, *wrong, *keys]))

    assert [caller.key_id for caller in (*found[:20], *found[25:])] == [*keys.values()] * 2
    assert all(isinstance(error, InvalidCredentialsError) for error in found[20:25])


def test_without_a_database_nobody_waits_for_the_attempts_of_others(services: Services) -> None:
    gate = create_app(services).state.gate
    attempts, all_asked = [], threading.Event()

    def refuse(*_: object) -> None:
        attempts.append(1)
        all_asked.wait(10)
        raise OperationalError("SELECT 1", {}, Exception("nobody answers"))

    services.database.dispose()
    event.listen(services.database.engine, "do_connect", refuse)

    async def all_at_once() -> list[object]:
        calls = [
            asyncio.ensure_future(gate.caller_of(f"xpg_{number}", "192.0.2.7"))
            for number in range(20)
        ]
        while len(gate._look_ups._waiting) < len(calls) - 1:
            await asyncio.sleep(0.01)
        all_asked.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(all_at_once())

    assert all(isinstance(error, OperationalError) for error in errors)
    assert len(attempts) == 2
