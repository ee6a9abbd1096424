"""Imports of records that can be recognised, killed and failed, then a search of every store."""

import pyarrow.parquet as pq
from pyarrow import BufferReader

from tests.support.digits import DATASET
from tests.support.patience import PATIENCE_S
from tests.support.people import People
from tests.support.service import running
from tests.support.traces import Traces


def test_an_imports_records_are_in_encrypted_objects_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported")
    people = People.invent(200)
    table = pq.read_table(BufferReader(people.parquet()))
    pq.write_table(table, folder / "a.parquet")
    labels = table["label"].to_pylist()
    labels[150] = None
    spoilt = table.set_column(table.schema.get_field_index("label"), "label", [labels])
    pq.write_table(spoilt, folder / "spoilt.parquet", row_group_size=50)
    data_dir = tmp_path_factory.mktemp("leaks") / "data"
    with running(data_dir, EXPUNGE_IMPORT_PREFIXES=folder.as_uri()) as service:
        traces = Traces(service, people)
        with service.client() as client:
            client.define_dataset(**DATASET)
            for point in ("import_listed", "before_records_commit"):
                service.points.arm(point, "SIGKILL")
            failed = _ended(client, f"{folder.as_uri()}/spoilt.parquet")
            assert (failed["state"], failed["added"]) == ("failed", 150)
            assert failed["problems"][0]["row"] == 150
            done = _ended(client, f"{folder.as_uri()}/a.parquet")
            assert (done["state"], done["added"], done["already_present"]) == ("completed", 50, 150)
            outside = client.http.post(
                "/v1/datasets/digits/imports", json={"url": f"s3://bucket/{people.token}?k=hush"}
            )
            assert outside.status_code == 422
        traces.places.dump()
        opened = traces.opened()
        assert service.stop() == 0
        assert traces.places.search([*traces.gone, *traces.kept()]) == []
        traces.assert_nothing_in_objects(opened)
        log = service.log.read_text()
        assert "spoilt.parquet" not in log
        assert "hush" not in log
        assert "Traceback" not in log


def _ended(client, url):
    asked = client.import_records("digits", url)
    return client.wait_for_import("digits", asked["id"], timeout_s=PATIENCE_S)
