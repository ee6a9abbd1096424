"""Downloads over a socket from a service that breaks, changes and lies."""

import fcntl
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, text, update

from app.cli.application import create_app
from app.client import ApiError, ExpungeClient, download
from app.domain.errors import DownloadError, VerificationError
from app.evidence.certificates.note import size_of
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.verification import VerifiedStep
from app.registry.tables import VersionRow
from app.services import Services
from tests.support.logbook import altered, bodies, forging, rewrite, write
from tests.support.serving import Unreliable, serve
from tests.support.trust import trust, trust_in
from tests.support.weights import network_weights
from tests.support.workshop import Workshop

CONTENT = network_weights(padding=3 * 1024 * 1024 + 3)
SECOND = network_weights(value=0.25)
NAME = "model-v1.safetensors"


@dataclass
class Scene:
    """A published version, a server that may misbehave, and a directory to download to."""

    server: Unreliable
    client: ExpungeClient
    workshop: Workshop
    directory: Path

    @property
    def part(self) -> Path:
        return self.directory / f"{NAME}.part"

    def download(self, keys: bytes | None = None) -> download.Downloaded:
        own = trust_in(self.workshop.services)
        return self.client.download("model", self.directory, trusted=keys or own)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


@pytest.fixture
def scene(
    services: Services,
    admin_key: str,
    workshop: Workshop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    monkeypatch.setattr(download.fetch, "__kwdefaults__", {"wait_s": 0.0})
    workshop.define()
    _publish(workshop, CONTENT)
    server = Unreliable(create_app(services))
    (tmp_path / "out").mkdir()
    with serve(server) as url, ExpungeClient(url, admin_key) as client:
        yield Scene(server, client, workshop, tmp_path / "out")


def _publish(workshop: Workshop, content: bytes) -> VersionRow:
    held = workshop.begun()
    return workshop.publish(held, workshop.result(held, content))


def _replace(scene: Scene) -> None:
    """Publish version 2, and shred version 1."""
    scene.workshop.forget(scene.workshop.split()[0][0])
    scene.workshop.dispatch()
    _publish(scene.workshop, SECOND)
    scene.workshop.services.clean_up()


def test_a_verified_version_gets_its_name_and_nothing_else_is_left(scene: Scene) -> None:
    files = scene.download()

    assert files.weights.read_bytes() == CONTENT
    assert json.loads(files.certificate.read_bytes()) == scene.client.version_bundle("model", 1)
    assert scene.files() == ["log.checkpoint", "model-v1.certificate.json", NAME]


def test_a_connection_that_breaks_is_continued_where_it_broke(scene: Scene) -> None:
    scene.server.cuts = [1_000_000, 500_000, 1]

    assert scene.download().weights.read_bytes() == CONTENT

    starts = [None, "bytes=1000000-", "bytes=1500000-", "bytes=1500001-"]
    assert scene.server.ranges == starts


def test_what_arrived_is_kept_and_continued_by_the_next_call(scene: Scene) -> None:
    scene.server.cuts = [2_000_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError, match=f"2000000 of {len(CONTENT)} bytes; they are kept"):
        scene.download()
    assert scene.files() == [f"{NAME}.part"]
    assert scene.part.read_bytes() == CONTENT[:2_000_000]
    scene.server.cuts = []
    scene.server.ranges.clear()

    assert scene.download().weights.read_bytes() == CONTENT

    assert scene.server.ranges == ["bytes=2000000-"]


def test_a_proxy_that_is_out_of_breath_is_asked_again(scene: Scene) -> None:
    scene.server.refusals = [502, 503, 429]
    assert scene.download().weights.read_bytes() == CONTENT

    scene.server.refusals = [504] * 4
    scene.part.touch()
    (scene.directory / NAME).unlink()
    with pytest.raises(DownloadError, match=r"504.*they are kept"):
        scene.download()
    assert scene.files() == ["log.checkpoint", "model-v1.certificate.json", f"{NAME}.part"]


def test_a_service_that_cannot_send_ranges_is_asked_for_the_whole(scene: Scene) -> None:
    scene.part.write_bytes(CONTENT[:1_000_000])
    scene.server.drop = {b"range"}

    assert scene.download().weights.read_bytes() == CONTENT


def test_a_complete_partial_file_is_not_fetched_again(scene: Scene) -> None:
    scene.part.write_bytes(CONTENT)

    assert scene.download().weights.read_bytes() == CONTENT

    assert scene.server.ranges == []


@pytest.mark.parametrize("left", [b"junk", CONTENT[:-1] + b"?", b"?" * len(CONTENT)])
def test_foreign_bytes_in_a_partial_file_are_found_and_removed(scene: Scene, left: bytes) -> None:
    scene.part.write_bytes(left)

    with pytest.raises(DownloadError, match="does not have the announced digest"):
        scene.download()

    assert scene.files() == []
    assert scene.download().weights.read_bytes() == CONTENT


def test_a_partial_file_that_is_too_long_is_begun_anew(scene: Scene) -> None:
    scene.part.write_bytes(CONTENT + b"more")

    assert scene.download().weights.read_bytes() == CONTENT

    assert scene.server.ranges == [None]


def test_content_that_was_changed_on_the_way_gets_no_name(scene: Scene) -> None:
    scene.server.change = lambda chunk: bytes([chunk[0] ^ 1]) + chunk[1:]

    with pytest.raises(DownloadError, match="announced digest"):
        scene.download()

    assert scene.files() == []


def test_a_version_that_is_retired_meanwhile_leaves_nothing_behind(scene: Scene) -> None:
    scene.server.cuts = [1_000_000]
    scene.server.on_body = lambda: _replace(scene)

    with pytest.raises(ApiError, match="replaced by version 2") as refused:
        scene.download()

    assert refused.value.status == 410
    assert scene.files() == []
    assert scene.download().weights.read_bytes() == SECOND


def test_partial_files_of_older_versions_are_removed_and_others_kept(scene: Scene) -> None:
    kept = ["model-v1.txt.part", "model-vx.safetensors.part", "other-v1.safetensors.part"]
    for name in (*kept, f"{NAME}.part"):
        (scene.directory / name).write_bytes(b"left")
    _replace(scene)

    scene.download()

    assert scene.files() == sorted(
        [*kept, "log.checkpoint", "model-v2.certificate.json", "model-v2.safetensors"]
    )


def test_content_that_changed_after_the_announcement_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a careless or dishonest service does: other bytes under the number it announced."""
    announced = scene.client.certified("model") | {"sha256": hashlib.sha256(b"x").hexdigest()}
    monkeypatch.setattr(scene.client, "certified", lambda _: announced)
    scene.part.write_bytes(CONTENT[:100])

    for dropped in (set(), {b"if-match"}):
        scene.server.drop = dropped
        with pytest.raises(DownloadError, match="other content than it announced"):
            scene.download()
        assert scene.files() == []


def test_another_operators_key_is_refused_and_the_bytes_are_kept(
    scene: Scene, tmp_path: Path
) -> None:
    stranger = StatementSigner.from_file(tmp_path / "stranger.pem", create=True)

    with pytest.raises(VerificationError, match="signature"):
        scene.download(trust(stranger))

    assert scene.files() == [f"{NAME}.part"]
    assert scene.download().weights.read_bytes() == CONTENT


def test_a_certificate_of_another_model_is_refused(scene: Scene, app_database: Engine) -> None:
    """The same bytes under another name are not what was certified under this one."""
    scene.workshop.define("other")
    held = scene.workshop.lease("other")
    scene.workshop.begin(held)
    other = scene.workshop.publish(held, scene.workshop.result(held, CONTENT))
    _certify_with(app_database, scene.workshop, other.certificate_id)

    with pytest.raises(VerificationError, match="subject"):
        scene.download()

    assert scene.files() == [f"{NAME}.part"]


def test_a_certificate_of_other_weights_is_refused(scene: Scene, app_database: Engine) -> None:
    scene.workshop.define("other")
    other = scene.workshop.work("other")
    _certify_with(app_database, scene.workshop, other.certificate_id)

    with pytest.raises(VerificationError, match="digest"):
        scene.download()

    assert scene.files() == [f"{NAME}.part"]


def _certify_with(owner: Engine, workshop: Workshop, certificate_id: str) -> None:
    """Let version 1 of the model show another certificate, as a forger of the database would."""
    workshop.forged = True
    head = VersionRow.id == workshop.model().head_version_id
    with forging(owner) as connection:
        connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        connection.execute(update(VersionRow).where(head).values(certificate_id=certificate_id))


@pytest.mark.parametrize("as_given", [Path, str])
def test_a_folder_that_is_missing_is_made(scene: Scene, tmp_path: Path, as_given: type) -> None:
    folder = tmp_path / "new" / "release"
    key = trust_in(scene.workshop.services)
    with pytest.raises(DownloadError, match="no version 9"):
        scene.client.download("model", as_given(folder), trusted=key, number=9)
    assert not folder.exists()
    files = scene.client.download("model", as_given(folder), trusted=key)
    assert files.weights == folder / NAME
    assert files.certificate.parent == folder


def test_two_downloads_of_one_file_do_not_mix(scene: Scene) -> None:
    with scene.part.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another download"):
            scene.download()


def test_a_number_can_be_asked_for(scene: Scene, tmp_path: Path) -> None:
    key = trust_in(scene.workshop.services)
    files = scene.client.download("model", tmp_path, trusted=key, number=1)
    assert files.weights.read_bytes() == CONTENT
    with pytest.raises(DownloadError, match="no version 7"):
        scene.client.download("model", tmp_path, trusted=key, number=7)


def test_a_retired_number_is_gone_and_leaves_nothing(scene: Scene) -> None:
    key = trust_in(scene.workshop.services)
    _replace(scene)

    with pytest.raises(ApiError, match="replaced by version 2") as refused:
        scene.client.download("model", scene.directory, trusted=key, number=1)

    assert refused.value.status == 410
    assert scene.files() == []


class TestKeptCheckpoint:
    """What a client has seen of a log must be the beginning of what it sees later."""

    @pytest.fixture(autouse=True)
    def _first_seen(self, scene: Scene) -> None:
        scene.download()

    def _kept(self, scene: Scene) -> bytes:
        return (scene.directory / "log.checkpoint").read_bytes()

    def test_it_moves_with_the_log(self, scene: Scene) -> None:
        before = self._kept(scene)
        _replace(scene)
        steps: list[VerifiedStep] = []

        trusted = trust_in(scene.workshop.services)
        scene.client.download("model", scene.directory, trusted=trusted, report=steps.append)

        assert "history" in [step.name for step in steps]
        assert size_of(self._kept(scene)) > size_of(before)
        assert scene.download().weights.read_bytes() == SECOND

    def test_a_rewritten_log_is_refused_without_being_asked_for(
        self, scene: Scene, app_database: Engine
    ) -> None:
        """By the operator, or by whoever has the database and the key in use."""
        before = self._kept(scene)
        _replace(scene)
        services = scene.workshop.services
        first, second, *others = bodies(services)
        rewrite(app_database, services, [first, altered(second), *others])

        with pytest.raises(VerificationError, match="history"):
            scene.download()

        assert self._kept(scene) == before
        assert "model-v2.safetensors" not in scene.files()
        elsewhere = scene.directory / "elsewhere"
        elsewhere.mkdir()
        scene.client.download("model", elsewhere, trusted=trust_in(services))  # nothing was known

    def test_a_log_that_lost_its_end_is_refused(self, scene: Scene, app_database: Engine) -> None:
        services = scene.workshop.services
        entries = bodies(services)
        write(services, 5, sign=True)
        scene.download()
        rewrite(app_database, services, entries)

        with pytest.raises(VerificationError, match="the log is shorter than the one known from"):
            scene.download()

    def test_a_file_of_ones_own_choice_serves_several_directories(
        self, scene: Scene, app_database: Engine, tmp_path: Path
    ) -> None:
        services = scene.workshop.services
        kept, other = tmp_path / "kept", tmp_path / "other"
        other.mkdir()
        trusted = trust_in(services)
        scene.client.download("model", scene.directory, trusted=trusted, kept=kept)
        first, second, *others = bodies(services)
        rewrite(app_database, services, [first, altered(second), *others])

        with pytest.raises(VerificationError, match="history"):
            scene.client.download("model", other, trusted=trusted, kept=kept)

    def test_a_file_that_holds_something_else_is_not_overwritten(self, scene: Scene) -> None:
        (scene.directory / "log.checkpoint").write_text("notes")
        with pytest.raises(DownloadError, match="holds no checkpoint"):
            scene.download()
        assert self._kept(scene) == b"notes"
