"""Stores callback addresses with a request, and an event with every change of its state.

An event is a row that commits together with the change it reports. The code that creates events
holds a lock on the changed row, so events have the order of the changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.delivery.callbacks.addresses import check_urls
from app.delivery.callbacks.keys import CallbackKeys
from app.delivery.callbacks.tables import CallbackEndpointRow, CallbackEventRow
from app.domain.ids import new_id


@dataclass(frozen=True)
class Callbacks:
    """Stores the addresses that callers give."""

    keys: CallbackKeys
    allow_private: bool = False

    def check(self, urls: Sequence[str]) -> list[str]:
        """Return the distinct URLs; ``InvalidInputError`` if one is not allowed."""
        return check_urls(urls, allow_private=self.allow_private)

    def register(
        self,
        session: Session,
        urls: Sequence[str],
        *,
        api_key_id: str,
        **owner: str,
    ) -> None:
        """Store the addresses of an ``owner``, by its column, encrypted.

        ``InvalidInputError`` if one is not allowed.
        """
        for url in self.check(urls):
            endpoint_id = new_id("cbe")
            session.add(
                CallbackEndpointRow(
                    id=endpoint_id,
                    api_key_id=api_key_id,
                    **owner,
                    url=self.keys.encrypt(url, endpoint_id=endpoint_id),
                    url_digest=self.keys.digest(url, api_key_id=api_key_id),
                )
            )
        session.flush()


def emit(
    session: Session,
    event_type: str,
    facts: Mapping[str, Any],
    *,
    final: bool = False,
    **owner: str,
) -> None:
    """Send an event to the addresses of an ``owner``, by its column, after the commit.

    ``facts`` are the service's own ids, and states, as JSON; never an owner's id. After the
    ``final`` event the addresses can be removed.
    """
    query = select(CallbackEndpointRow).filter_by(state="active", **owner)
    for endpoint in session.scalars(query.order_by(CallbackEndpointRow.id).with_for_update()):
        endpoint.emitted += 1
        if final:
            endpoint.ended_at = func.clock_timestamp()
        session.add(
            CallbackEventRow(
                id=new_id("evt"),
                endpoint_id=endpoint.id,
                sequence=endpoint.emitted,
                type=event_type,
                facts=dict(facts),
            )
        )
