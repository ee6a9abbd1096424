"""Imports of files of this machine: one file, folders, patterns; and what may not be reached."""

import os

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy.exc import OperationalError

from app.registry.datasets import repository
from app.registry.datasets.service import Records
from app.registry.datasets.shards import unpack
from app.registry.datasets.tables import ShardRow
from tests.integration.workers.data.imports.conftest import counts, members, url_of, write
from tests.support import layouts
from tests.support.representatives import mostly_nightly

pytestmark = pytest.mark.usefixtures("dataset")


def stored(services):
    """Return all rows that the dataset holds, in order."""
    with services.database.transaction() as session:
        dataset = repository.dataset_named(session, "members")
        shards = repository.shards(session, dataset.id)
    tables = [unpack(services.blobs.read(shard.blob_id))[1] for shard in shards]
    return pa.concat_tables(tables).sort_by("score")


def test_a_file_is_read_whole_and_kept_as_a_push_keeps_it(api, services, ended, folder):
    write(folder / "a.parquet", members(0, 1000), row_group_size=64)
    found = ended(url_of(folder / "a.parquet"))
    assert (found["state"], found["failure_reason"]) == ("completed", None)
    assert counts(found) == (1000, 0, 0)
    assert (found["rows"], found["total_rows"]) == (1000, 1000)
    assert (found["files"], found["files_done"]) == (1, 1)
    expected = members(0, 1000).select(["age", "name", "score", "tags"])
    assert stored(services).to_pydict() == expected.to_pydict()
    assert api.get("/v1/datasets/members").json()["records"] == 1000
    # As a push sees it: every record is there, with its person.
    sink = pa.BufferOutputStream()
    pq.write_table(members(0, 1000), sink)
    pushed = api.put("/v1/datasets/members/records", content=sink.getvalue().to_pybytes()).json()
    assert (pushed["added"], pushed["already_present"], pushed["changed"]) == (0, 1000, 0)


@pytest.mark.parametrize("layout", mostly_nightly(layouts.IN_PARQUET, "view"))
def test_another_layout_of_the_same_rows_changes_nothing(ended, folder, layout):
    rows = members(0, 20)
    assert counts(ended(url_of(_written(folder / "a.parquet", rows)))) == (20, 0, 0)
    columns = {each: rows[each].to_pylist() for each in rows.column_names}
    other = {each: layouts.TEXTS[layout](columns[each]) for each in ("member", "person", "name")}
    other["age"] = layouts.decimals(columns["age"], pa.decimal256(50, 2))
    other["tags"] = pa.array(columns["tags"], pa.large_list_view(pa.int64()))
    found = ended(url_of(_written(folder / "b.parquet", members(0, 20, **other))))
    assert (found["failure_reason"], counts(found)) == (None, (0, 20, 0))


@pytest.mark.parametrize(
    ("columns", "footer"),
    [
        ("member", True),
        pytest.param("age", False, marks=pytest.mark.nightly),
        pytest.param("name", False, marks=pytest.mark.nightly),
    ],
)
def test_an_encrypted_file_is_refused_as_such(ended, folder, columns, footer):
    content = layouts.encrypted(members(0, 5), [columns], footer=footer)
    (folder / "a.parquet").write_bytes(content)
    found = ended(url_of(folder / "a.parquet"))
    assert found["state"] == "failed"
    assert "this Parquet file is encrypted" in found["problems"][0]["reason"]


def test_a_target_that_is_no_class_of_a_model_is_refused_where_it_is(api, ended, folder):
    target = {"column": "name", "classes": [f"Zoë {i}" for i in range(6)]}
    assert (
        ended(url_of(_written(folder / "first.parquet", members(0, 1))))["failure_reason"] is None
    )
    inputs = [{"name": "score", "kind": "number"}]
    task = {"name": "classification", "inputs": inputs, "target": target}
    learns = {"task": task, "architecture": {"name": "boosted_trees"}}
    made = api.post("/v1/models", json={"name": "named", "dataset": "members", **learns})
    assert made.status_code == 201, made.text
    found = ended(url_of(_written(folder / "a.parquet", members(0, 8))))
    assert found["state"] == "failed"
    reason = "text that is not the name of a class"
    problem = {"file": "a.parquet from row 0 on", "column": "name", "reason": reason}
    assert found["problems"] == [problem | {"row": 6, "rows": 2}]


def _written(path, table):
    write(path, table)
    return path


def test_small_files_are_joined_and_large_ones_divided(api, services, ended, folder, monkeypatch):
    monkeypatch.setattr("workers.data.imports.importing.Batches", _batches_of(100))
    for number in range(5):
        write(folder / f"part-{number}.parquet", members(number * 50, 50), row_group_size=7)
    write(folder / "part-5.parquet", members(250, 350), row_group_size=90)
    write(folder / "first" / "part.parquet", members(900, 1))
    assert ended(url_of(folder / "first") + "/")["without_target"] == {}
    (folder / "first" / "part.parquet").unlink()
    for name, target in {"old": "age", "scored": "score"}.items():
        inputs = [{"name": "name", "kind": "category", "values": ["a", "b"], "other": True}]
        task = {"name": "regression", "inputs": inputs, "target": {"columns": [target]}}
        learns = {"task": task | {"loss": "squared"}, "architecture": {"name": "boosted_trees"}}
        made = api.post("/v1/models", json={"name": name, "dataset": "members", **learns})
        assert made.status_code == 201, made.text
    found = ended(url_of(folder) + "/")
    assert counts(found) == (600, 0, 0)
    assert found["without_target"] == {"old": 60}  # of all batches
    assert len(stored(services)) == 601
    with services.database.transaction() as session:
        rows = [shard.rows for shard in session.query(ShardRow).order_by(ShardRow.created_at)]
    assert min(rows[1:-1]) >= 100
    assert len(rows) <= 7


def _batches_of(rows):
    from workers.data.imports.importing import Batches

    return lambda *args: Batches(*args, batch_rows=rows)


def test_a_folder_is_its_parquet_files_below_what_is_not_hidden(ended, folder):
    write(folder / "y=1" / "a.parquet", members(0, 10))
    write(folder / "y=2" / "deep" / "b.PARQUET", members(10, 10))
    write(folder / "_old" / "c.parquet", members(20, 10))
    write(folder / ".d.parquet", members(30, 10))
    (folder / "notes.txt").write_text("not Parquet")
    found = ended(url_of(folder))
    assert (counts(found), found["files"]) == ((20, 0, 0), 2)


LONG = "part-00000-aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa-c000.snappy.parquet"


@pytest.mark.parametrize(
    "pattern",
    mostly_nightly(["*?*?*?*?z.parquet", "*a*a*a*a*a*a*a*az", "[a-z]*a*-*?"], "*a*a*a*a*a*a*a*az"),
)
def test_a_pattern_that_fits_nothing_ends_at_once(api, ended, folder, pattern):
    write(folder / LONG, members(0, 10))
    found = ended(f"{url_of(folder)}/{pattern}")
    assert found["failure_reason"] == "there are no Parquet files at this place"
    url = f"{url_of(folder)}/{'*?' * 12}z.parquet"
    answer = api.post("/v1/datasets/members/imports", json={"url": url})
    assert (answer.status_code, "at most 8 wildcards" in answer.text) == (422, True)


def test_a_pattern_fits_names_and_no_separator(ended, folder):
    for name in ("m-1.parquet", "m-2.parquet", "m-10.parquet", "other.parquet", "m-1/x.parquet"):
        write(folder / f"{name}", members(len(str(name)) * 100, 10))
    found = ended(url_of(folder) + "/m-?.parquet")
    assert (found["files"], found["state"]) == (2, "completed")
    found = ended(url_of(folder) + "/*/x.parquet")
    assert (found["files"], found["state"]) == (1, "completed")


def test_importing_again_doubles_nothing(api, ended, folder):
    write(folder / "a.parquet", members(0, 300))
    assert counts(ended(url_of(folder))) == (300, 0, 0)
    assert counts(ended(url_of(folder))) == (0, 300, 0)
    changed = members(200, 200, score=[-1.0] * 200)
    write(folder / "b.parquet", changed)
    found = ended(url_of(folder))
    assert counts(found) == (100, 300, 100)
    assert found["rows"] == 500
    assert api.get("/v1/datasets/members").json()["records"] == 400


def test_repeated_rows_count_as_pushed_one_after_the_other(api, ended, folder):
    once = members(0, 10)
    other = members(0, 5, score=[9.0] * 5)
    write(folder / "a.parquet", pa.concat_tables([once, once.slice(0, 3), other]))
    assert counts(ended(url_of(folder))) == (10, 3, 5)
    assert api.get("/v1/datasets/members").json()["records"] == 10


def test_what_was_forgotten_is_new_when_it_is_imported_again(api, ended, work, folder):
    write(folder / "a.parquet", members(0, 30))
    ended(url_of(folder))
    asked = {"dataset": "members", "record_ids": ["m-4", "m-5"]}
    assert api.post("/v1/forget-requests", json=asked).status_code in (201, 202)
    work()
    assert counts(ended(url_of(folder))) == (2, 28, 0)
    assert api.get("/v1/datasets/members").json()["records"] == 30


def test_a_batch_whose_answer_was_lost_brings_nobody_back(api, ended, folder, monkeypatch):
    write(folder / "members.parquet", members(0, 10))
    store, asked = Records.store, []

    def forget_and_lose(*args, **options):
        stored = store(*args, **options)
        if not asked:
            ids = {"dataset": "members", "record_ids": ["m-1"]}
            asked.append(api.post("/v1/forget-requests", json=ids))
            raise OperationalError("COMMIT", {}, psycopg.OperationalError("connection lost"))
        return stored

    monkeypatch.setattr(Records, "store", forget_and_lose)
    found = ended(url_of(folder))

    assert [answer.status_code for answer in asked] == [201]
    assert (found["state"], counts(found)) == ("completed", (10, 0, 0))
    assert api.get("/v1/datasets/members").json()["records"] == 9


def test_a_row_that_cannot_be_read_is_named_and_what_came_before_stays(api, ended, work, folder):
    ages = [str(i) for i in range(400)]
    ages[250] = "marker-of-a-value"
    good, bad = members(0, 100), members(100, 400, age=ages)
    write(folder / "a.parquet", good.set_column(2, "age", good["age"].cast(pa.string())))
    write(folder / "b.parquet", bad, row_group_size=100)
    found = ended(url_of(folder))
    assert found["state"] == "failed"
    assert "b.parquet" in found["failure_reason"]
    (problem,) = found["problems"]
    assert (problem["file"], problem["row"], problem["column"]) == ("b.parquet", 250, "age")
    assert "marker-of-a-value" not in str(found)
    assert counts(found) == (300, 0, 0)  # the row groups before that of the fault
    assert api.get("/v1/datasets/members").json()["records"] == 300

    ages[250] = "7"
    write(folder / "b.parquet", members(100, 400, age=ages), row_group_size=100)
    path = f"/v1/datasets/members/imports/{found['id']}"
    assert api.post(f"{path}/retry").status_code == 202
    work()
    again = api.get(path).json()
    assert (again["state"], again["problems"]) == ("completed", [])
    assert counts(again) == (500, 200, 0)  # b.parquet was read from its beginning
    assert api.get("/v1/datasets/members").json()["records"] == 500


@pytest.mark.parametrize(
    "scores", mostly_nightly([[[1.0]] * 10, [True] * 10, [b"bytes"] * 10], [[1.0]] * 10)
)
def test_columns_that_do_not_fit_are_refused_before_any_row(api, ended, folder, scores):
    write(folder / "a.parquet", members(0, 100))
    write(folder / "z.parquet", members(100, 10, score=scores))
    found = ended(url_of(folder))
    assert found["state"] == "failed"
    (problem,) = found["problems"]
    assert (problem["file"], problem["row"], problem["column"]) == ("z.parquet", None, "score")
    assert api.get("/v1/datasets/members").json()["records"] == 0


def test_a_missing_column_is_refused_before_any_row(api, ended, folder):
    write(folder / "a.parquet", members(0, 100))
    write(folder / "z.parquet", members(100, 10).drop_columns(["score"]))
    found = ended(url_of(folder))
    assert found["problems"][0]["file"] == "z.parquet"
    assert found["problems"][0]["column"] == "score"
    assert api.get("/v1/datasets/members").json()["records"] == 0


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 99 + b"\xff\xff\xff\x7fPAR1"])
def test_what_is_not_parquet_or_announces_too_much_is_refused(ended, folder, content):
    (folder / "a.parquet").write_bytes(content)
    found = ended(url_of(folder))
    assert found["state"] == "failed"
    assert "a.parquet" in found["failure_reason"]


def test_a_bomb_is_refused_and_kills_nobody(ended, folder):
    large = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["x" * 1_000_000])
    table = members(0, 20_000).set_column(3, "name", large)
    write(folder / "a.parquet", table)
    assert (folder / "a.parquet").stat().st_size < 2_000_000
    found = ended(url_of(folder))
    assert found["state"] == "failed"
    assert "memory" in found["failure_reason"] or "too large" in found["failure_reason"]


def test_no_link_leads_out_of_the_prefix(api, ended, folder, tmp_path):
    write(tmp_path / "outside" / "secret.parquet", members(0, 10))
    (folder / "link.parquet").symlink_to(tmp_path / "outside" / "secret.parquet")
    (folder / "inside").mkdir()
    (folder / "inside" / "up").symlink_to(tmp_path / "outside")
    (folder / "round.parquet").symlink_to(folder / "round.parquet")
    for url in (
        folder / "link.parquet",
        folder / "round.parquet",
        folder,
        folder / "inside" / "up" / "secret.parquet",
        folder / "inside" / "up",
        folder / "inside",
    ):
        found = ended(url_of(url))
        assert (found["state"], found["added"]) == ("failed", 0), url
        assert "link" in found["failure_reason"]
    found = ended(url_of(folder) + "/*.parquet")
    assert (found["state"], found["added"]) == ("failed", 0)
    assert api.get("/v1/datasets/members").json()["records"] == 0


def test_a_link_within_the_prefix_is_what_it_leads_to(ended, folder):
    write(folder / "2026" / "a.parquet", members(0, 10))
    (folder / "newest.parquet").symlink_to(folder / "2026" / "a.parquet")
    (folder / "newest").symlink_to(folder / "2026")
    for place in ("newest.parquet", "newest", "newest/a.parquet"):
        found = ended(url_of(folder / place))
        assert (found["state"], found["rows"]) == ("completed", 10), place


def test_a_pipe_is_refused_without_being_opened(ended, folder):
    os.mkfifo(folder / "pipe.parquet")
    for place, said in ((folder / "pipe.parquet", "neither a file"), (folder, "not a file")):
        found = ended(url_of(place))
        assert (found["state"], said in found["failure_reason"]) == ("failed", True)


def test_a_file_that_becomes_a_link_after_it_was_listed_is_refused(
    api, ask, work, folder, tmp_path, monkeypatch
):
    write(tmp_path / "outside" / "secret.parquet", members(0, 10))
    write(folder / "a.parquet", members(50, 10))

    def exchange(point):
        if point == "import_listed":
            (folder / "a.parquet").unlink()
            (folder / "a.parquet").symlink_to(tmp_path / "outside" / "secret.parquet")

    monkeypatch.setattr("workers.data.imports.importing.reach", exchange)
    asked = ask(url_of(folder / "a.parquet"))
    work()
    found = api.get(f"/v1/datasets/members/imports/{asked['id']}").json()
    assert (found["state"], found["added"]) == ("failed", 0)


@pytest.mark.parametrize(
    "url",
    [
        "file://{folder}-secret/a.parquet",
        "file://{folder}/../outside/secret.parquet",
        "file://{folder}/%2e%2e/outside/secret.parquet",
        "file://{folder}/x%2f..%2f..%2foutside/secret.parquet",
        "file://{folder}/*/../../outside/*",
        "file:///etc/passwd",
        "file://localhost{folder}/a.parquet",
        "s3://bucket/a.parquet",
        "https://example.com/a.parquet",
        "https://somebody:hush@example.com/a.parquet",
        "{folder}/a.parquet",
        "http://example.com/a.parquet",
    ],
)
def test_what_is_outside_of_the_prefixes_is_refused_when_it_is_asked_for(api, folder, url):
    asked = {"url": url.format(folder=folder)}
    answer = api.post("/v1/datasets/members/imports", json=asked)
    assert answer.status_code == 422
    assert answer.json()["type"].rpartition(":")[2] in ("place-not-allowed", "invalid-input")
    assert "hush" not in answer.text


def test_a_worker_with_other_prefixes_reads_nothing(api, ask, work, folder, monkeypatch):
    write(folder / "a.parquet", members(0, 10))
    asked = ask(url_of(folder))
    monkeypatch.setenv("EXPUNGE_IMPORT_PREFIXES", f"file://{folder}/elsewhere")
    work()
    found = api.get(f"/v1/datasets/members/imports/{asked['id']}").json()
    assert (found["state"], found["added"]) == ("failed", 0)


def test_nothing_at_a_place_is_said(ended, folder):
    assert "no Parquet files" in ended(url_of(folder))["failure_reason"]
    found = ended(url_of(folder / "missing.parquet"))
    assert found["state"] == "failed"
    assert "No such file" in found["failure_reason"]
