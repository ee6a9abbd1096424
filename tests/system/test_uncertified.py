"""Weights under their target, noise and keys: known to the test alone, and searched for everywhere.

A run tells them from its own memory. It is killed, fails or goes on to its end; afterwards no store
and no file may hold anything of it, nor its log. Records may be in encrypted objects alone, and so
may an ensemble's member that one worker has trained for another one's run.
"""

import secrets
from contextlib import nullcontext

import numpy as np
import pytest
import safetensors.numpy

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import GoneError
from app.domain.states import BlobState, MemberState
from app.ledger import member_trainings
from app.ledger.tables import RunRow
from app.storage.tables import BlobRow
from tests.support.markers import Marker, marker_of_weights, search_bytes
from tests.support.opened import opened_objects
from tests.support.places import Places
from tests.support.streamed import FEATURES, RECORDS, TASK, footprint, push_wide, too_little
from tests.support.watched import told_by, watch
from tests.support.workshop import Workshop
from workers import jobs
from workers.data.memory import VARIABLE
from workers.mechanisms.ensembles import run as ensembles

pytestmark = pytest.mark.nightly

STEPS = 12
MEMBERS = 4
RECIPE = {"epochs": 2, "batch_size": 64, "held_out_fraction": 0.2}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.fixture
def places(servers, settings, temporary, tmp_path):
    return Places(
        servers,
        *(servers._home.data_dir, settings.data_dir, temporary),
        ours=tmp_path,
        database_url=settings.database_url,
    )


@pytest.fixture
def records(places, services):
    """Markers of the ids of made-up records, and of the features of some."""
    token = secrets.token_hex(8)
    generator = np.random.default_rng(secrets.randbits(64))
    features = generator.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    push_wide(services, features=features, prefix=f"{token}-")
    found = [Marker("an id", token.encode())]
    for number in (0, RECORDS // 2, RECORDS - 1):
        found += marker_of_weights(f"features of record {number}", features[number])
    return found


@pytest.fixture(params=["in memory", "streamed"])
def run_id(request, records, services, monkeypatch):
    """A first training that is not yet carried out, with noisy steps after it."""
    workshop = Workshop(services)
    workshop.define(
        dataset="wide",
        task=TASK,
        architecture=ArchitectureSpec("mlp", {"hidden": [16]}),
        recipe=RECIPE,
        parameters={"steps": STEPS},
        budget_epochs=2,
    )
    if request.param == "streamed":
        monkeypatch.setenv(VARIABLE, str(too_little(footprint(services))))
    return workshop.active_run()


def before_the_target(told):
    """Return what was told before the noisy phase's last step, if it came to that."""
    steps = [number for number, (what, _) in enumerate(told) if what == "noisy phase"]
    return told[: steps[STEPS - 1]] if len(steps) >= STEPS else told


def markers(told):
    found = []
    for number, (what, content) in enumerate(before_the_target(told)):
        if what == "key":
            found.append(Marker("a key", content))
        elif what != "window":
            dtype = np.float64 if what == "noise" else np.float32
            found += marker_of_weights(f"{what}, {number}", np.frombuffer(content, dtype))
    return found


def opened_of(services):
    keys, directory = services.blobs._keys, services.settings.data_dir / "blobs"
    return opened_objects(directory, keys, services.database)


def found_in(places, services, told, records, log=b""):
    """Return where anything is that may not be there: in a place, the log, or an opened object."""
    wanted = markers(told)
    places.dump()
    opened = opened_of(services)
    known, *features = records
    assert search_bytes(opened, features)
    assert not search_bytes(opened, [known])
    found = [*places.search([*wanted, *records]), *search_bytes(opened, wanted)]
    return {f.place for f in [*found, *search_bytes({"the log": log}, [*wanted, *records])]}


def state_of(services, run_id):
    with services.database.transaction() as session:
        return session.get_one(RunRow, run_id).state


def assert_all_kinds(told, request):
    found = {what for what, _ in told}
    assert {"key", "noise", "training", "noisy phase"} <= found
    assert ("window" in found) == ("streamed" in request.node.callspec.id)


def test_nothing_is_left_of_a_run_that_was_published(
    places, services, records, run_id, monkeypatch, caplog, request
):
    told = []
    watch(lambda *one: told.append(one), patch=monkeypatch.setattr)
    with caplog.at_level("DEBUG"):
        jobs.execute_run(run_id)
    assert state_of(services, run_id) == "published"
    assert_all_kinds(told, request)
    assert found_in(places, services, told, records, caplog.text.encode()) == set()


def test_nothing_is_left_of_a_run_that_was_killed(places, services, records, run_id, request):
    """Where records are streamed, it holds a window that is used and reads the next one."""
    told, log = told_by(run_id, f"kill={STEPS // 2}")
    assert state_of(services, run_id) == "running"
    assert_all_kinds(told, request)
    assert sum(what == "noisy phase" for what, _ in told) == STEPS // 2
    assert f"run {run_id} needs".encode() in log
    assert found_in(places, services, told, records, log) == set()


@pytest.mark.parametrize("guarded", [True, False])
def test_a_cache_that_writes_weights_is_refused(
    guarded, places, services, records, run_id, temporary, request
):
    cache = temporary / "weights.cache"
    open_disk = [] if guarded else ["open"]
    told, log = told_by(run_id, f"spill={cache}", f"kill={STEPS // 2}", *open_disk)
    assert_all_kinds(told, request)
    expected = set() if guarded else {str(cache)}
    assert found_in(places, services, told, records, log) == expected
    assert state_of(services, run_id) == ("failed" if guarded else "running")


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("run_id", ["streamed"], indirect=True)
def test_a_window_that_is_written_to_a_file_is_refused(
    guarded, places, services, records, run_id, temporary
):
    cache = temporary / "window.cache"
    open_disk = [] if guarded else ["open"]
    told, log = told_by(run_id, f"spool={cache}", f"kill={STEPS // 2}", *open_disk)
    expected = set() if guarded else {str(cache)}
    assert found_in(places, services, told, records, log) == expected
    assert state_of(services, run_id) == ("failed" if guarded else "running")


def handed_over(services, run_id):
    """Return the objects that other workers have handed over for a run."""
    with services.database.transaction() as session:
        rows = member_trainings.all_of(session, run_id)
        assert sum(row.state == MemberState.DONE for row in rows) == len(rows) - 1
        return {row.blob_id for row in rows if row.blob_id is not None}


def assert_in_no_place(places, wanted, log):
    places.dump()
    found = [*places.search(wanted), *search_bytes({"the log": log}, wanted)]
    assert {each.place for each in found} == set()


@pytest.fixture
def ensemble_run(records, services):
    """A first training of an ensemble that is not yet carried out."""
    workshop = Workshop(services)
    workshop.define(
        dataset="wide",
        task=TASK,
        architecture=ArchitectureSpec(
            "ensemble", members=MEMBERS, of=ArchitectureSpec("mlp", {"hidden": [16]})
        ),
        recipe=RECIPE,
        mechanism="sharded_retraining",
    )
    return workshop.active_run()


def test_a_member_that_was_handed_over_is_in_an_encrypted_object_alone(
    places, services, records, ensemble_run, monkeypatch, caplog
):
    """Until its run is published; from then on nobody can read that object, with whatever keys."""
    handed, wanted, logs = set(), list(records), []
    train_member = ensembles.train_member

    def after_help(*arguments):
        if not handed:
            told, log = told_by(ensemble_run, "help")
            handed.update(handed_over(services, ensemble_run))
            opened = opened_of(services)
            assert search_bytes(opened, markers(told[-1:]))
            assert not search_bytes(opened, records[:1])
            wanted.extend(markers(told))
            for blob_id in handed:
                tensors = safetensors.numpy.load(opened[blob_id]).values()
                wanted.extend(marker_of_weights(blob_id, max(tensors, key=np.size)))
            logs.append(log)
            assert_in_no_place(places, wanted, log + caplog.text.encode())
        return train_member(*arguments)

    monkeypatch.setattr(ensembles, "train_member", after_help)
    monkeypatch.setattr(ensembles, "ram_only", nullcontext)  # the test itself starts a process
    with caplog.at_level("DEBUG"):
        jobs.execute_run(ensemble_run)
    services.clean_up()
    assert state_of(services, ensemble_run) == "published"
    assert len(handed) == MEMBERS - 1
    assert not handed & opened_of(services).keys()
    with services.database.transaction() as session:
        states = {session.get_one(BlobRow, blob_id).state for blob_id in handed}
    assert states == {BlobState.SHREDDED}
    for blob_id in handed:
        with pytest.raises(GoneError):
            services.blobs.read(blob_id)
    assert_in_no_place(places, wanted, logs[0] + caplog.text.encode())
