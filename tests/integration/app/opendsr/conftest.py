"""Callers, as in the tests of the API."""

from tests.integration.app.api.conftest import caller_of

__all__ = ["caller_of"]
