"""Callbacks to receivers on this machine, which have neither TLS nor a public address."""

from collections.abc import Callable

import pytest
from sqlalchemy import select, text

from app.delivery.callbacks.deliverer import Deliverer, Terms
from app.delivery.callbacks.posting import Poster
from app.delivery.callbacks.tables import CallbackEndpointRow, CallbackEventRow
from app.runtime.settings import Settings
from app.services import Services
from tests.support.patience import until
from tests.support.workshop import Workshop


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow_private": True})


@pytest.fixture
def make_deliverer(services: Services) -> Callable[..., Deliverer]:
    def make(
        *, claim_s: float = 60.0, delivered_retention_s: float = 30 * 86400.0, **poster: object
    ) -> Deliverer:
        return Deliverer(
            services.database,
            services.callbacks.keys,
            Poster(**{"timeout_s": 30.0, "allow_private": True, **poster}),  # type: ignore[arg-type]
            lambda: services.processor_signer,
            Terms(
                base_url="https://expunge.example",
                claim_s=claim_s,
                delivered_retention_s=delivered_retention_s,
            ),
        )

    return make


@pytest.fixture
def deliverer(make_deliverer: Callable[..., Deliverer]) -> Deliverer:
    return make_deliverer()


def settle(deliverer: Deliverer) -> None:
    """Deliver until nothing is due."""
    while deliverer.tick():
        until(lambda: not deliverer._going)


def events(workshop: Workshop) -> list[CallbackEventRow]:
    with workshop.transaction() as session:
        order = (CallbackEventRow.created_at, CallbackEventRow.sequence)
        return list(session.scalars(select(CallbackEventRow).order_by(*order)))


def endpoints(workshop: Workshop) -> list[CallbackEndpointRow]:
    with workshop.transaction() as session:
        return list(session.scalars(select(CallbackEndpointRow)))


def make_due(workshop: Workshop) -> None:
    """Let the time come for every event that waits."""
    with workshop.transaction() as session:
        session.execute(
            text(
                "UPDATE callback_events SET next_attempt_at = clock_timestamp()"
                " WHERE state = 'pending'"
            )
        )
