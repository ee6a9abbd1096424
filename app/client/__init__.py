"""The Python client: calls over HTTP, retried where that is safe.

Every POST and PUT carries an ``Idempotency-Key``, so that sending it again cannot do it twice.
Problems are raised as ``ApiError``, a service that cannot be reached as ``httpx.TransportError``.
Answers are JSON objects, as the OpenAPI document describes them.
"""

from app.client.answers import ApiError
from app.client.client import ExpungeClient

__all__ = ["ApiError", "ExpungeClient"]
