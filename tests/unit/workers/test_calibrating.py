"""What ``expunge start`` times: all rows, or as many as one training may read."""

import numpy as np
import pyarrow as pa
import pytest

from app.domain.architectures import ArchitectureSpec
from app.domain.tasks import catalogue
from app.domain.tasks.spec import BuiltInSpec
from workers import calibrating

TASK = {
    "name": "classification",
    "inputs": [{"name": "x", "kind": "number", "knots": [-2, 0, 2]}],
    "target": {"column": "y", "classes": [0, 1]},
}


@pytest.mark.parametrize(("work", "rows"), [(2e8, 1600), (1600 * 10 * 5 / 4, 400)])
def test_of_a_large_table_so_many_rows_are_learned_as_one_training_may_read(
    work: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrating, "_MOST_WORK", work)
    task = catalogue.from_json(TASK)
    assert isinstance(task, BuiltInSpec)
    x = np.random.default_rng(0).normal(size=2000)

    found = calibrating.calibrated(
        task,
        pa.table({"x": x, "y": (np.abs(x) < 1).astype(int)}),
        "boosting",
        ArchitectureSpec("boosted_trees", {"trees": 10}),
        measured=[(1600, 2000)],
        retained=1800,
    )

    assert [gradients for gradients, _ in found["timed"]] == [rows // 4 * 10, rows * 10]
    assert found["gradients"] == 18_000
    assert found["score"] > 0.9
