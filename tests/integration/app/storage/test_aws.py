"""Objects in S3: a real server, over sockets."""

import base64
import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import boto3
import pytest
from moto.server import ThreadedMotoServer

from app.domain.errors import (
    CorruptObjectError,
    GoneError,
    KeyServiceError,
    KeyStoreError,
    ObjectStoreError,
)
from app.runtime.settings import Settings
from app.services import Services
from app.storage.aws import KmsKey, S3ObjectStore
from app.storage.blobs import Blobs, doom
from app.storage.stores import key_store, object_store
from tests.support.cutting import cutting_proxy
from tests.support.s3 import environment_of
from tests.support.stored import live

MIB = 1024 * 1024
ACCESS = {"access_key": "access", "secret_key": "secret", "region": "eu-central-1"}


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server of its own."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint: str) -> str:
    """An empty bucket."""
    name = f"bucket-{uuid4().hex}"
    _client(s3_endpoint).create_bucket(
        Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
    )
    return name


@pytest.fixture
def store(s3_endpoint: str, bucket: str) -> S3ObjectStore:
    return S3ObjectStore(bucket, endpoint=s3_endpoint, prefix="blobs/", **ACCESS)


def _client(endpoint: str):
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="eu-central-1",
        aws_access_key_id="access",
        aws_secret_access_key="secret",
    )


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_a_missing_bucket_is_created_once(s3_endpoint: str, region: str) -> None:
    name = f"bucket-{uuid4().hex}"
    store = S3ObjectStore(name, endpoint=s3_endpoint, **ACCESS | {"region": region})

    assert store.create_bucket()
    assert not store.create_bucket()
    store.write("one", [b"content"])
    assert list(store.names()) == ["one"]


@pytest.mark.parametrize("size", [1, 5 * MIB, 16 * MIB, 33 * MIB + 7])
def test_an_object_is_uploaded_in_parts_and_read_by_ranges(
    store: S3ObjectStore, s3_endpoint: str, bucket: str, size: int
) -> None:
    content = os.urandom(size)
    store.write("one", (content[at : at + 700_001] for at in range(0, size, 700_001)))

    assert _client(s3_endpoint).get_object(Bucket=bucket, Key="blobs/one")["Body"].read() == content
    for start, stop in ((0, size), (size // 2, size), (0, size // 2 + 1)):
        reader = store.open_range("one", start, stop)
        assert reader.object_size == size
        middle = (stop - start) // 3
        assert reader.read(middle) + reader.read(stop - start - middle) == content[start:stop]
        reader.close()
    assert list(store.names()) == ["one"]


def test_a_deleted_object_is_gone_and_deleting_it_again_is_no_error(store: S3ObjectStore) -> None:
    store.write("one", [b"content"])
    store.delete("one")
    store.delete("one")
    with pytest.raises(GoneError):
        store.open_range("one", 0, 1)
    assert list(store.names()) == []


def test_reading_behind_the_end_is_told(store: S3ObjectStore) -> None:
    store.write("one", [b"content"])
    reader = store.open_range("one", 2, 20)
    with pytest.raises(CorruptObjectError):
        reader.read(18)
    with pytest.raises(CorruptObjectError):
        store.open_range("one", 7, 20)


def test_a_store_that_is_not_there_is_told_without_its_secrets(s3_endpoint: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        nobody = S3ObjectStore("bucket", endpoint=endpoint, **ACCESS)
        for action in (
            lambda: nobody.write("one", [b"content"]),
            lambda: nobody.open_range("one", 0, 1),
            lambda: nobody.delete("one"),
        ):
            with pytest.raises(ObjectStoreError, match="does not answer") as failure:
                action()
            assert "secret" not in str(failure.value)
    with pytest.raises(ObjectStoreError, match="NoSuchBucket"):
        S3ObjectStore("no-such-bucket", endpoint=s3_endpoint, **ACCESS).write("one", [b"content"])


def test_a_store_that_accepts_and_never_answers_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = S3ObjectStore("bucket", endpoint=endpoint, timeouts_s=(5, 0.05), **ACCESS)
        with pytest.raises(ObjectStoreError, match="ReadTimeoutError"):
            store.delete("one")


def test_a_download_whose_connection_breaks_goes_on(
    store: S3ObjectStore, s3_endpoint: str, bucket: str
) -> None:
    content = os.urandom(8 * MIB)
    store.write("one", [content])
    with cutting_proxy(s3_endpoint, after_bytes=3 * MIB) as endpoint:
        proxied = S3ObjectStore(bucket, endpoint=endpoint, prefix="blobs/", **ACCESS)
        reader = proxied.open_range("one", 5, 8 * MIB)
        received = b"".join(reader.read(min(MIB, 8 * MIB - at)) for at in range(5, 8 * MIB, MIB))
        reader.close()
    assert received == content[5:]


def test_blobs_live_and_die_in_s3(
    services: Services, settings: Settings, s3_endpoint: str, bucket: str
) -> None:
    configured = settings.model_copy(
        update={
            "s3_bucket": f"{bucket}/a/folder",
            "s3_endpoint": s3_endpoint,
            "s3_region": "eu-central-1",
        }
    )
    secrets = Settings(s3_access_key="access", s3_secret_key="secret")
    configured = configured.model_copy(
        update={"s3_access_key": secrets.s3_access_key, "s3_secret_key": secrets.s3_secret_key}
    )
    objects = object_store(configured)
    blobs = Blobs(services.database, objects, key_store(settings))
    content = os.urandom(3 * MIB + 5)

    blob = live(blobs, "weights", content)
    assert blobs.read(blob.id) == content
    assert (
        b"".join(blobs.open_range(blob.id, MIB - 3, 2 * MIB + 3)) == content[MIB - 3 : 2 * MIB + 3]
    )
    assert list(objects.names()) == [blob.id]
    assert not (settings.data_dir / "blobs" / blob.id).exists()

    with services.database.transaction() as session:
        doom(session, blob.id)
    assert blobs.sweep() == 1
    assert list(objects.names()) == []
    with pytest.raises(GoneError):
        blobs.read(blob.id)


class Amazon:
    """Answers calls with the errors it is told to, one by one, and then with success."""

    def __init__(self) -> None:
        self.errors: list[tuple[int, str]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        amazon = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                amazon.calls.append((self.headers["X-Amz-Target"], json.loads(body)))
                status, answer = 200, {"Plaintext": base64.b64encode(b"content").decode()}
                if amazon.errors:
                    status, code = amazon.errors.pop(0)
                    answer = {"__type": code, "message": "it names a secret"}
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Amazon]:
    amazon = Amazon()
    for name, value in environment_of("kms", amazon.endpoint).items():
        monkeypatch.setenv(name, value)
    yield amazon
    amazon.close()


def test_the_key_and_the_context_are_named_when_decrypting(amazon: Amazon) -> None:
    """Else KMS would take what any key of any account has made."""
    assert KmsKey("alias/expunge").decrypt(b"wrapped", {"period": "1"}) == b"content"
    ((target, sent),) = amazon.calls
    assert target == "TrentService.Decrypt"
    assert sent == {
        "KeyId": "alias/expunge",
        "CiphertextBlob": base64.b64encode(b"wrapped").decode(),
        "EncryptionContext": {"period": "1"},
    }


def test_throttling_is_waited_out(amazon: Amazon) -> None:
    amazon.errors = [(400, "ThrottlingException"), (500, "KMSInternalException")]
    assert KmsKey("alias/expunge").decrypt(b"wrapped", {}) == b"content"
    assert len(amazon.calls) == 3


@pytest.mark.parametrize("code", ["InvalidCiphertextException", "IncorrectKeyException"])
def test_what_the_key_did_not_wrap_is_told_from_outages(amazon: Amazon, code: str) -> None:
    amazon.errors = [(400, code)]
    with pytest.raises(KeyStoreError, match=code) as refused:
        KmsKey("alias/expunge").decrypt(b"wrapped", {})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "code",
    [
        "AccessDeniedException",
        "DisabledException",
        "KMSInvalidStateException",
        "NotFoundException",
        "UnrecognizedClientException",
    ],
)
def test_a_refusal_does_not_look_like_a_lost_key(amazon: Amazon, code: str) -> None:
    """A key that waits for its deletion or is disabled can be had back."""
    amazon.errors = [(400, code)]
    with pytest.raises(KeyServiceError, match=f"refused to serve the key store: {code}"):
        KmsKey("alias/expunge").decrypt(b"wrapped", {})


def test_throttling_that_lasts_is_told(amazon: Amazon) -> None:
    amazon.errors = [(400, "ThrottlingException")] * 10
    with pytest.raises(KeyServiceError, match="ThrottlingException"):
        KmsKey("alias/expunge").decrypt(b"wrapped", {})
    assert len(amazon.calls) == 3
