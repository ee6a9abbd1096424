"""Imports from an https server: ranges, no redirects, its own certificate alone."""

import io
import os
import signal
import ssl
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from tests.integration.workers.data.imports.conftest import counts, members
from tests.support.authority import Authority
from tests.support.patience import until
from tests.support.workshop import Workshop
from workers import jobs

pytestmark = pytest.mark.usefixtures("dataset")


def parquet(table, **options):
    content = io.BytesIO()
    pq.write_table(table, content, **options)
    return content.getvalue()


class Handler(BaseHTTPRequestHandler):
    """Serves ranges of what ``server.files`` has, in the way that ``server.how`` says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, dict(self.headers)))
        content = server.files.get(self.path)
        if content is None:
            return self.answer(404, b"")
        if server.how == "redirect":
            return self.answer(302, b"", Location="/exports/elsewhere.parquet")
        if server.how == "whole":
            return self.answer(200, content)
        if server.how == "encoded":
            return self.answer(206, b"x", **{"Content-Encoding": "gzip", "Content-Range": "x"})
        tag = f'"{hash(content)}"'
        if self.headers.get("If-Match", tag) != tag:
            return self.answer(412, b"")
        start, _, end = self.headers["Range"].removeprefix("bytes=").partition("-")
        start, end = int(start), min(int(end), len(content) - 1)
        part = content[start : end + 1]
        if server.how == "trickling":
            self.wfile.write(b"HTTP/1.1 206 Partial Content\r\nTrickling: ")
            with suppress(OSError):
                while True:
                    self.wfile.write(b"x")
                    time.sleep(0.05)
        if server.how == "endless":
            part += bytes(10_000_000)
        server.served += len(part)
        headers = {"Content-Range": f"bytes {start}-{end}/{len(content)}"}
        if server.how != "unnamed":
            headers["ETag"] = tag
        return self.answer(206, part, **headers)

    def answer(self, status, content, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content)
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key, certificate = authority.issue("localhost")
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.files, server.how, server.asked, server.served = {}, "ranges", [], 0
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def base(server):
    return f"https://localhost:{server.server_port}/exports"


@pytest.fixture
def prefixes(base, authority, monkeypatch):
    monkeypatch.setenv("EXPUNGE_CA_FILE", str(authority.file))
    return [base]


def test_a_file_is_read_in_ranges(server, ended, base):
    content = parquet(members(0, 20_000), row_group_size=1000)
    server.files["/exports/a%20b.parquet"] = content
    found = ended(f"{base}/a%20b.parquet")
    assert (found["state"], counts(found)) == ("completed", (20_000, 0, 0))
    assert server.served < 3 * len(content)
    assert all("Authorization" not in headers for _, headers in server.asked)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("redirect", "redirects"),
        ("whole", "does not serve ranges"),
        ("encoded", "answered 206"),
        ("unnamed", "neither an ETag"),
    ],
)
def test_a_server_that_does_otherwise_is_refused(server, ended, base, how, reason):
    server.files["/exports/a.parquet"] = parquet(members(0, 10))
    server.files["/exports/elsewhere.parquet"] = parquet(members(0, 10))
    server.how = how
    found = ended(f"{base}/a.parquet")
    assert (found["state"], found["added"]) == ("failed", 0)
    assert reason in found["failure_reason"]
    assert {path for path, _ in server.asked} == {"/exports/a.parquet"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "state"),
    [("a run waits", "queued"), ("the import is cancelled", "cancelled"), ("a stop", "queued")],
)
def test_an_answer_that_never_ends_holds_no_worker(
    server, ask, base, api, services, monkeypatch, ending, state
):
    monkeypatch.setenv("EXPUNGE_LEASE_S", "1")
    monkeypatch.setattr("workers.leases.holding.GRACE_S", 0.5)
    server.files["/exports/a.parquet"] = parquet(members(0, 10))
    server.how = "trickling"
    asked = ask(f"{base}/a.parquet")
    if (worker := os.fork()) == 0:
        signal.signal(signal.SIGTERM, jobs.stop.set)
        jobs.carry_out_import(asked["id"])
        os._exit(0)
    path = f"/v1/datasets/members/imports/{asked['id']}"
    until(lambda: server.asked)
    if ending == "a run waits":
        Workshop(services).define()
        with services.database.transaction() as session:
            session.execute(text("UPDATE runs SET enqueued_at = now() - interval '1 minute'"))
    elif ending == "a stop":
        os.kill(worker, signal.SIGTERM)
    else:
        assert api.post(f"{path}/cancel").status_code == 200
    _, status = os.waitpid(worker, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with services.database.transaction() as session:
        attempt = session.scalar(text("SELECT attempt FROM imports"))
    assert (api.get(path).json()["state"], attempt) == (state, int(state == "cancelled"))


def test_more_than_was_asked_for_is_not_read(server, ended, base, monkeypatch, api, ask):
    monkeypatch.setattr("workers.data.imports.sources._ATTEMPTS", 1)
    server.files["/exports/a.parquet"] = parquet(members(0, 10))
    server.how = "endless"
    asked = ask(f"{base}/a.parquet")
    jobs.carry_out_import(asked["id"])
    found = api.get(f"/v1/datasets/members/imports/{asked['id']}").json()
    assert (found["state"], found["added"]) == ("queued", 0)


def test_a_certificate_of_nobody_known_is_refused(server, ask, api, base, monkeypatch):
    server.files["/exports/a.parquet"] = parquet(members(0, 10))
    monkeypatch.delenv("EXPUNGE_CA_FILE")
    asked = ask(f"{base}/a.parquet")
    jobs.carry_out_import(asked["id"])
    assert server.asked == []
    assert api.get(f"/v1/datasets/members/imports/{asked['id']}").json()["added"] == 0


def test_a_file_that_changes_while_it_is_read_is_read_again(
    server, api, ask, work, base, monkeypatch
):
    monkeypatch.setattr("app.registry.datasets.imports.service.RETRY_DELAY_S", 0.0)
    server.files["/exports/a.parquet"] = parquet(members(0, 10))
    changes = iter([parquet(members(0, 20))])

    def change(point):
        if point == "import_listed":
            for content in changes:
                server.files["/exports/a.parquet"] = content

    monkeypatch.setattr("workers.data.imports.importing.reach", change)
    asked = ask(f"{base}/a.parquet")
    work()
    found = api.get(f"/v1/datasets/members/imports/{asked['id']}").json()
    assert (found["state"], found["added"], found["total_rows"]) == ("completed", 20, 20)


@pytest.mark.parametrize(
    "path",
    [
        "/exports/../secret.parquet",
        "/exports/%2e%2e/secret.parquet",
        "/exports/%252e%252e/secret.parquet",
        "/exports/..%2fsecret.parquet",
        "/exports/a.parquet?token=hush",
        "/exports/a.parquet#part",
        "/exports/*.parquet",
        "/exports/",
        "/exports-secret/a.parquet",
        "//exports/a.parquet",
    ],
)
def test_urls_that_lead_elsewhere_are_refused(server, api, path):
    for host in (f"localhost:{server.server_port}",):
        url = f"https://{host}{path}"
        answer = api.post("/v1/datasets/members/imports", json={"url": url})
        assert answer.status_code == 422, url
        assert "hush" not in answer.text


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost", "localhost.:{port}", "localhost:{port}@evil.org"]
)
def test_other_hosts_are_refused(server, api, host):
    url = f"https://{host.format(port=server.server_port)}/exports/a.parquet"
    answer = api.post("/v1/datasets/members/imports", json={"url": url})
    assert answer.status_code == 422
