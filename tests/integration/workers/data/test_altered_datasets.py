"""Shards from before and after an alteration are read together, and forgotten from alike."""

import threading

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from app.domain.errors import ConflictError
from app.evidence.certificates.weights_file import tensors_sha256
from app.registry.datasets import repository
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.imports import service as importing
from app.registry.datasets.service import alter_dataset
from app.services import Services
from tests.support.exact_heads import carry_out, define_backbone, head_of, released
from tests.support.logbook import faults
from tests.support.workshop import Workshop
from workers.recompute import recompute

FIRST = {"age": "int16", "share": "float32", "plan": "string?", "left": "string"}
CHANGES = {"age": "int32?", "share": "float64", "tenure": "int8?"}
AGE = {"name": "age", "kind": "number", "knots": [20, 40, 60, 80], "missing": 40}
SHARE = {"name": "share", "kind": "number"}
PLAN = {"name": "plan", "kind": "category", "values": ["free", "pro"], "other": True}
TENURE = {"name": "tenure", "kind": "number", "scale": 0.1, "missing": 0, "flag_missing": True}
OPTIONS_OF: dict[str, dict[str, object]] = {
    "ridge_head": {"target_range": 50},
    "boosted_trees": {"trees": 5},
}
OLD, NEW = [AGE, SHARE, PLAN], [AGE, SHARE, PLAN, TENURE]


def on_public(inputs: list[dict[str, object]]) -> dict[str, object]:
    """Return a head on the frozen backbone that reads what these inputs make of a record."""
    return {"name": "linear_head", "backbone": {"name": f"public-{len(inputs)}"}}


def rows(numbers: range | list[int], *, later: bool) -> bytes:
    """Return an export of one of the two months; an even person has left."""
    columns: dict[str, object] = {
        "id": [f"r{i}" for i in numbers],
        "age": [None if later and i % 9 == 0 else 20 + i for i in numbers],
        "share": pa.array([i / 7 for i in numbers], pa.float32()),
        "plan": [("free", "pro")[i % 2] if i < 50 else "team" for i in numbers],
        "left": [("no", "yes")[i * i % 3] for i in numbers],
    }
    if later:
        columns["tenure"] = [i % 100 if i % 5 else None for i in numbers]
    return to_parquet(pa.table(columns))


def define(
    api: TestClient,
    name: str,
    dataset: str,
    inputs: list[dict[str, object]],
    *,
    public: bool = False,
) -> None:
    body = {
        "name": name,
        "dataset": dataset,
        "task": {
            "name": "classification",
            "inputs": inputs,
            "target": {"column": "left", "classes": ["no", "yes"]},
        },
        "architecture": on_public(inputs) if public else {"name": "ridge_head"},
        "recipe": {"held_out_fraction": 0.0},
    }
    answer = api.post("/v1/models", json=body)
    assert answer.status_code == 201, answer.text


def dataset_of(api: TestClient, name: str, columns: dict[str, str]) -> str:
    body = {"name": name, "columns": columns, "record_id": "id"}
    assert api.post("/v1/datasets", json=body).status_code == 201
    return f"/v1/datasets/{name}"


@pytest.fixture
def public(request: pytest.FixtureRequest, workshop: Workshop) -> bool:
    """Whether models are heads on frozen backbones, which are there then."""
    given = getattr(request, "param", False)
    for inputs, width in ((OLD, 10), (NEW, 12)) if given else ():
        define_backbone(workshop, f"public-{len(inputs)}", shape=(width,), hidden=(9, 6))
    return given


@pytest.fixture
def altered(api: TestClient, workshop: Workshop, *, public: bool) -> str:
    """A dataset with a model of its first month, that was altered before its second."""
    path = dataset_of(api, "panel", FIRST)
    api.put(f"{path}/records", content=rows(range(40), later=False))
    define(api, "old", "panel", OLD, public=public)
    carry_out(workshop, "old")
    answer = api.patch(path, json={"columns": CHANGES})
    assert answer.status_code == 200, answer.text
    assert answer.json()["columns"] == FIRST | CHANGES
    second = api.put(f"{path}/records", content=rows(range(30, 80), later=True)).json()
    assert (second["added"], second["changed"]) == (40, 8)  # those have a tenure now
    return path


@pytest.mark.parametrize("public", [False, True], indirect=True)
def test_models_learn_from_both_and_forget_as_if_never_given(
    altered: str, api: TestClient, workshop: Workshop, services: Services, *, public: bool
) -> None:
    define(api, "new", "panel", NEW, public=public)
    carry_out(workshop, "new")
    certificate = api.get("/v1/models/old/certified").json()["sha256"]

    gone = {"dataset": "panel", "record_ids": ["r3", "r60"]}
    assert api.post("/v1/forget-requests", json=gone).status_code < 300
    workshop.dispatch()
    for name in ("old", "new"):
        while workshop.active_run(name) is not None:
            carry_out(workshop, name)
    services.clean_up()

    assert api.get(altered).json()["erased"] == 2
    assert api.get("/v1/models/old/certified").json()["sha256"] != certificate
    kept = {"old": [range(40)], "new": [range(40), range(40, 80)]}
    for name, parts in kept.items():
        # A dataset that was as wide from the beginning.
        path = dataset_of(api, f"wide-{name}", FIRST | CHANGES)
        for numbers, later in zip(parts, (False, True), strict=False):
            left = [i for i in numbers if i not in (3, 60)]
            wide = rows(left, later=later)
            if not later:  # the first month's export has no column for it
                wide = _with_empty_column(wide)
            assert api.put(f"{path}/records", content=wide).json()["added"] == len(left)
        inputs = OLD if name == "old" else NEW
        define(api, f"afresh-{name}", f"wide-{name}", inputs, public=public)
        carry_out(workshop, f"afresh-{name}")
        assert tensors_sha256(released(workshop, name)) == tensors_sha256(
            released(workshop, f"afresh-{name}")
        )
        assert recompute(services, name).is_equal
        assert head_of(workshop, name).number == 2
    assert faults(services) == []


def _with_empty_column(parquet: bytes) -> bytes:
    table = pa.parquet.read_table(pa.BufferReader(parquet))
    return to_parquet(table.append_column("tenure", pa.nulls(len(table), pa.int8())))


def test_repeating_an_alteration_changes_nothing_and_pushes_still_compare(
    altered: str, api: TestClient
) -> None:
    before = api.get("/v1/log/entries").text.count("dataset.altered")
    assert api.patch(altered, json={"columns": CHANGES}).status_code == 200
    assert api.get("/v1/log/entries").text.count("dataset.altered") == before == 1
    month = rows(range(30, 80), later=True)
    again = api.put(f"{altered}/records", content=month).json()
    assert (again["added"], again["already_present"], again["changed"]) == (0, 42, 8)
    first = _with_empty_column(rows(range(40), later=False))
    again = api.put(f"{altered}/records", content=first).json()
    assert (again["added"], again["already_present"], again["changed"]) == (0, 40, 0)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"age": "int16?"}, "'age' is int32?, and cannot become int16?, but int64?, float64?"),
        ({"share": "string"}, "'share' is float64, and cannot become string, but float64?"),
        ({"height": "float64"}, "'height' is new"),
        ({"id": "string?"}, "'id' holds ids"),
    ],
)
def test_what_is_refused_is_named(
    altered: str, api: TestClient, columns: dict[str, str], words: str
) -> None:
    before = api.get(altered).json()
    answer = api.patch(altered, json={"columns": columns | {"fine": "int8?"}})
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert api.get(altered).json() == before


def test_an_import_that_goes_on_is_waited_for(altered: str, services: Services) -> None:
    with services.database.transaction() as session:
        importing.request(
            session, dataset="panel", url="file:///data/a.parquet", prefixes=["file:///data/"]
        )
    with (
        pytest.raises(ConflictError, match="wait for its end"),
        services.database.transaction() as session,
    ):
        alter_dataset(session, "panel", {"more": "int8?"})


def test_one_alteration_waits_for_the_other(
    altered: str, services: Services, workshop: Workshop
) -> None:
    def other() -> None:
        with services.database.transaction() as session:
            alter_dataset(session, "panel", {"age": "float64?", "theirs": "string?"})

    thread = threading.Thread(target=other)
    with services.database.transaction() as session:
        alter_dataset(session, "panel", {"age": "int64?", "mine": "string?"})
        thread.start()
        workshop.wait_for_a_lock()
    thread.join()
    with services.database.transaction() as session:
        columns = repository.dataset_named(session, "panel").schema["columns"]
    assert (columns["age"], columns["mine"], columns["theirs"]) == (
        "float64?",
        "string?",
        "string?",
    )


def test_a_row_without_what_a_model_needs_is_refused_while_that_is_there(api: TestClient) -> None:
    path = dataset_of(api, "needs", {"age": "int16?", "left": "string?"})

    def pushed(name: str, age: int | None, left: str | None) -> tuple[int, str]:
        table = pa.table({"id": [name], "age": pa.array([age], pa.int16()), "left": [left]})
        answer = api.put(f"{path}/records", content=to_parquet(table))
        return answer.status_code, answer.text

    assert pushed("a", None, None)[0] == 200
    define(api, "leaving", "needs", [{"name": "age", "kind": "number"}])
    assert pushed("b", 20, None)[0] == 200
    other = pa.table({"id": ["b", "d", "e"], "age": [20, 21, 22], "left": ["no", "NA", "yes"]})
    found = api.put(f"{path}/records", content=to_parquet(other)).json()
    assert (found["added"], found["changed_rows"]) == (2, [0])
    assert found["without_target"] == {"leaving": 1}
    status, text = pushed("c", 20, "maybe")
    assert status == 422
    assert "text that is not the name of a class" in text
    status, text = pushed("c", None, "no")
    assert status == 422
    assert "age" in text
    assert api.delete("/v1/models/leaving").status_code in (200, 204)
    assert pushed("c", None, "no")[0] == 200


def test_a_row_without_a_target_is_not_learned_from_and_is_forgotten_like_others(
    api: TestClient, workshop: Workshop, services: Services
) -> None:
    def panel(name: str, numbers: list[int]) -> str:
        path = dataset_of(api, name, {"x": "float64", "wage": "float64?"})
        columns = {
            "id": [f"r{i}" for i in numbers],
            "x": [float(i * i % 17) for i in numbers],
            "wage": [None if i % 5 == 0 else float(3 * i % 23) for i in numbers],
        }
        assert api.put(f"{path}/records", content=to_parquet(pa.table(columns))).status_code == 200
        return path

    def learn(name: str, dataset: str, **recipe: float) -> None:
        task = {"inputs": [{"name": "x", "kind": "number"}], "target": {"columns": ["wage"]}}
        body = {
            "name": name,
            "dataset": dataset,
            "task": {"name": "regression", "loss": "squared", **task},
            "architecture": {
                "name": name.split("-", maxsplit=1)[0],
                "options": OPTIONS_OF[name.split("-", maxsplit=1)[0]],
            },
            "recipe": {"held_out_fraction": 0.0, **recipe},
        }
        answer = api.post("/v1/models", json=body)
        assert answer.status_code == 201, answer.text
        carry_out(workshop, name)

    panel("panel", list(range(200)))
    for name in OPTIONS_OF:
        learn(name, "panel")
    learn("ridge_head-measured", "panel", held_out_fraction=0.5)
    found = api.get("/v1/models/ridge_head-measured/certified").json()["evaluation"]
    assert 50 < found["held_out_records"] < 110  # about half of the 160 that have a wage

    gone = {"dataset": "panel", "record_ids": ["r5", "r6"]}
    request = api.post("/v1/forget-requests", json=gone).json()["id"]
    workshop.dispatch()
    for name in (*OPTIONS_OF, "ridge_head-measured"):
        while workshop.active_run(name) is not None:
            carry_out(workshop, name)
    services.clean_up()

    assert api.get(f"/v1/forget-requests/{request}").json()["state"] == "completed"
    assert api.get("/v1/datasets/panel").json()["erased"] == 2
    panel("others", [i for i in range(200) if i % 5 and i != 6])
    for name in OPTIONS_OF:
        learn(f"{name}-others", "others")
        assert tensors_sha256(released(workshop, name)) == tensors_sha256(
            released(workshop, f"{name}-others")
        )
        assert recompute(services, name).is_equal
    assert faults(services) == []
