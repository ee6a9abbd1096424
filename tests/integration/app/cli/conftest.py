"""Commands that reach the API without a network."""

from collections.abc import Iterator

import httpx
import pytest
from fastapi.testclient import TestClient

from app.client import ExpungeClient
from app.client import configured as clients


@pytest.fixture
def served(api: TestClient, admin_key: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let commands reach the API without a network."""
    monkeypatch.setenv("EXPUNGE_API_KEY", admin_key)

    def client(url: str, key: str) -> ExpungeClient:
        return ExpungeClient(url, key, transport=_Bridge(api))

    monkeypatch.setattr(clients, "ExpungeClient", client)
    return iter(())


class _Bridge(httpx.BaseTransport):
    def __init__(self, api: TestClient) -> None:
        self._api = api

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._api.request(
            request.method,
            request.url.raw_path.decode(),
            content=request.read(),
            headers=dict(request.headers),
            follow_redirects=False,
        )
        headers = {k: v for k, v in answer.headers.items() if k != "content-encoding"}
        stream = httpx.ByteStream(answer.content)
        return httpx.Response(answer.status_code, headers=headers, stream=stream)
