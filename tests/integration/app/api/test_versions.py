"""Versions: what is listed, what may be downloaded, and how."""

import base64
import hashlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.api.protocol.conditions import _Streamed
from app.cli.application import create_app
from app.services import Services
from tests.support.patience import PATIENCE_S
from tests.support.serving import Unreliable, serve
from tests.support.workshop import Workshop

CONTENT = os.urandom(5 * 1024 * 1024 + 3)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ETAG = f'"{SHA256}"'
WEIGHTS = "/v1/models/model/versions/1/weights"


@pytest.fixture
def published(workshop: Workshop) -> str:
    """A model whose first version is CONTENT; the id of its blob."""
    workshop.define()
    held = workshop.begun()
    return workshop.publish(held, workshop.result(held, CONTENT)).blob_id


@pytest.fixture
def caller(services: Services, admin_key: str, published: str) -> Iterator[httpx.Client]:
    """A client of the API over a socket."""
    headers = {"Authorization": f"Bearer {admin_key}"}
    with (
        serve(create_app(services)) as url,
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as client,
    ):
        yield client


def test_the_whole_comes_with_all_that_a_cache_and_a_resumer_need(caller: httpx.Client) -> None:
    redirect = caller.get("/v1/models/model/certified/weights")
    assert (redirect.status_code, redirect.headers["location"]) == (307, WEIGHTS)
    assert redirect.headers["cache-control"] == "no-store"

    answer = caller.get(WEIGHTS)

    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["etag"] == ETAG
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="model-v1.safetensors"'
    digest = base64.b64encode(hashlib.sha256(CONTENT).digest()).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"
    # A copy that is used without asking would outlive the version's retirement.
    assert answer.headers["cache-control"] == "private, no-cache"


def test_head_tells_the_same_and_sends_nothing(caller: httpx.Client) -> None:
    for headers in ({}, {"Range": "bytes=5-9"}, {"If-None-Match": ETAG}):
        get, head = (caller.request(method, WEIGHTS, headers=headers) for method in ("GET", "HEAD"))
        assert head.status_code == get.status_code
        assert head.content == b""
        own = {"date": "", "x-request-id": ""}
        assert {**head.headers, **own} == {**get.headers, **own}
    assert caller.head("/v1/models/model/certified/weights").headers["location"] == WEIGHTS
    assert caller.head(WEIGHTS, headers={"Authorization": "Bearer x"}).status_code == 401


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=1000000-3000000", 1_000_000, 3_000_001),
        ("bytes=5000000-", 5_000_000, len(CONTENT)),
        ("bytes=-7", len(CONTENT) - 7, len(CONTENT)),
    ],
)
def test_a_range_is_just_that_part(caller: httpx.Client, asked: str, start: int, stop: int) -> None:
    answer = caller.get(WEIGHTS, headers={"Range": asked, "If-Range": ETAG})

    assert (answer.status_code, answer.content) == (206, CONTENT[start:stop])
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(CONTENT)}"
    assert answer.headers["content-length"] == str(stop - start)
    assert answer.headers["etag"] == ETAG
    whole = base64.b64encode(hashlib.sha256(CONTENT).digest()).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{whole}:"


def test_conditions_are_answered_as_the_standard_says(caller: httpx.Client) -> None:
    def get(**headers: str) -> httpx.Response:
        return caller.get(WEIGHTS, headers={k.replace("_", "-"): v for k, v in headers.items()})

    assert get(Range="bytes=0-4", If_Range='"other"').status_code == 200
    assert get(Range="bytes=0-4,9-12").content == CONTENT
    not_modified = get(If_None_Match=ETAG)
    assert (not_modified.status_code, not_modified.content) == (304, b"")
    assert not_modified.headers["etag"] == ETAG
    assert get(If_None_Match=ETAG, Range="bytes=0-4").status_code == 304
    assert get(If_Match=ETAG, Range="bytes=0-4").content == CONTENT[:5]

    changed = get(If_Match='"other"')
    assert (changed.status_code, changed.json()["type"]) == (
        412,
        "urn:expunge:problem:precondition-failed",
    )
    behind = get(Range=f"bytes={len(CONTENT)}-")
    assert (behind.status_code, behind.json()["type"]) == (
        416,
        "urn:expunge:problem:range-not-satisfiable",
    )
    assert behind.headers["content-range"] == f"bytes */{len(CONTENT)}"
    assert behind.headers["content-type"] == "application/problem+json"


def test_a_download_whose_object_is_shredded_is_cut_off(
    services: Services, admin_key: str, published: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The object's bytes are overwritten with zeros; not one of them may be sent."""
    server = Unreliable(create_app(services))
    server.on_body = lambda: services.blobs._objects.delete(published)
    headers = {"Authorization": f"Bearer {admin_key}"}
    received = bytearray()

    with (
        serve(server) as url,
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as caller,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            _receive(caller, received)
        gone = caller.get(WEIGHTS)

    assert 0 < len(received) < len(CONTENT)
    assert received == CONTENT[: len(received)]
    assert (gone.status_code, gone.json()["type"]) == (410, "urn:expunge:problem:gone")
    assert "its object was shredded meanwhile" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def _receive(caller: httpx.Client, received: bytearray) -> None:
    with caller.stream("GET", WEIGHTS) as answer:
        assert answer.status_code == 200
        for chunk in answer.iter_raw():
            received.extend(chunk)


class _Endless:
    """Content without an end, as an object's range."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def __iter__(self) -> "_Endless":
        return self

    def __next__(self) -> bytes:
        return bytes(1024 * 1024)

    def close(self) -> None:
        self.closed.set()


def test_a_receiver_who_leaves_ends_the_reading() -> None:
    content = _Endless()

    async def app(scope, receive, send) -> None:
        assert scope["type"] == "http"
        await _Streamed(content, 200, {"Content-Length": str(10**15)})(scope, receive, send)

    with serve(app) as url:
        with httpx.stream("GET", url, timeout=PATIENCE_S) as answer:
            chunks = answer.iter_raw()  # kept: its end would close the connection
            next(chunks)
            assert not content.closed.is_set()
        assert content.closed.wait(PATIENCE_S)


def test_versions_are_listed_with_their_states_reasons_and_links(
    api: TestClient, workshop: Workshop, published: str
) -> None:
    workshop.forget(workshop.split()[0][0])
    workshop.unlearn()

    newest, oldest = api.get("/v1/models/model/versions").json()["items"]

    assert (newest["number"], newest["state"], newest["reason"]) == (2, "certified", None)
    assert (oldest["number"], oldest["state"]) == (1, "retired")
    assert oldest["reason"] == "replaced by version 2, to meet forget requests"
    assert oldest["retired_at"] is not None
    assert set(newest["links"]) == {"weights", "certificate", "card", "model.sig"}
    assert set(oldest["links"]) == {"certificate", "card"}
    for version in (newest, oldest):
        assert {api.get(link).status_code for link in version["links"].values()} == {200}
    for part in ("weights", "model.sig"):
        gone = api.get(f"/v1/models/model/versions/1/{part}")
        assert (gone.status_code, gone.json()["type"]) == (410, "urn:expunge:problem:gone")
        assert "to meet forget requests" in gone.json()["detail"]


def test_a_withdrawn_model_offers_no_weights(
    api: TestClient, workshop: Workshop, published: str
) -> None:
    policy = {"serving": "withdraw_on_request"}
    assert api.patch("/v1/models/model", json={"policy": policy}).is_success
    assert set(_only_version(api)["links"]) == {"weights", "certificate", "card", "model.sig"}

    workshop.forget(workshop.split()[0][0])

    links = _only_version(api)["links"]
    assert set(links) == {"certificate", "card"}
    card = api.get(links["card"]).text
    assert "**This version is withdrawn** until open forget requests are met." in card
    assert "expunge download" not in card
    assert api.get(WEIGHTS).status_code == 410


def _only_version(api: TestClient) -> dict[str, Any]:
    (version,) = api.get("/v1/models/model/versions").json()["items"]
    return dict(version)
