"""What ``expunge start`` quotes, and what came true: ``python -m benchmarks.starting``.

Of each table a fifth of the persons is put aside. The rest is started from; quoted seconds stand
beside the true ones, and the quoted score beside the one on those put aside, on which the model
that stays is compared with scikit-learn's trained on the same rows.
``--table FILE.csv:TARGET[:SUBJECT]`` names more tables than those that scikit-learn ships.
"""

import csv
import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from sklearn import datasets
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from app.runtime.processes.starting import python_command
from benchmarks import harness
from benchmarks.harness import Document

SHIPPED: Final = ("breast_cancer", "diabetes", "digits", "wine")
ASIDE: Final = 0.2
_WAYS: Final = {"boosted_trees": "boosting", "linear_head": "exact_training"}


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    harness.main(
        "starting",
        __doc__,
        run,
        options={
            "--table": {"action": "append", "default": [], "metavar": "FILE:TARGET[:SUBJECT]"}
        },
        table=shown,
        met=lambda document: bool(document["within_two"] >= 0.9 * len(document["quotes"])),
        arguments=arguments,
    )


def run(given: Namespace) -> Iterator[Document]:
    """Yield the document after each table."""
    document: Document = {"quotes": [], "scores": [], "within_two": 0}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        tables = [_shipped(name, directory) for name in SHIPPED]
        for text in given.table:
            path, target, *subject = text.split(":")
            tables.append((Path(path).resolve(), target, subject[0] if subject else None))
        try:
            for path, target, subject in tables:
                _start(document, directory, path, target, subject)
                yield document
        finally:
            _expunge(directory, "down", check=False)


def shown(document: Document) -> str:
    """Return both tables."""
    quotes = harness.table(
        "table | model | quoted s | true s | quoted score | true score",
        [[*each.values()] for each in document["quotes"]],
    )
    names = "table | metric | start | boosting | linear | mlp | one answer for all"
    scores = harness.table(names, [[*each.values()] for each in document["scores"]])
    count = f"{document['within_two']} of {len(document['quotes'])} within a factor of two"
    return f"{quotes}\n\n{count}\n\n{scores}"


def _shipped(name: str, directory: Path) -> tuple[Path, str, None]:
    """Write a table of scikit-learn's."""
    data = getattr(datasets, f"load_{name}")()
    names = [str(each).replace(" ", "_").replace("/", "_") for each in data.feature_names]
    path = directory / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "target"])
        writer.writerows([*row, y] for row, y in zip(data.data, data.target, strict=True))
    return path, "target", None


def _start(
    document: Document, directory: Path, path: Path, target: str, subject: str | None
) -> None:
    rows = pacsv.read_csv(path)
    if "row_id" not in rows.column_names:
        rows = rows.add_column(0, "row_id", [[f"r{place}" for place in range(len(rows))]])
    persons = rows[subject or "row_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    aside = np.random.default_rng(0).random(persons.max() + 1)[persons] < ASIDE
    aside |= rows[target].is_null().to_numpy()
    learned, tested = rows.filter(pa.array(~aside)), rows.filter(pa.array(aside))
    tested = tested.filter(tested[target].is_valid())
    name = path.stem.lower()
    for part, table in ((name, learned), ("tested", tested)):
        pacsv.write_csv(table, directory / f"{part}.csv")
    options = ["--record", "row_id", "--target", target]
    options += ["--subject", subject] if subject else []
    made = json.loads(_expunge(directory, "start", f"{name}.csv", *options, "--yes", "--json"))
    best = made["model"]
    found = [best] + [
        json.loads(_expunge(directory, "model", "show", each, "--json"))
        for each in made["archived"]
    ]
    trusted = ".expunge/keys/trusted-keys.json"
    _expunge(directory, "download", best["name"], "--out", name, "--trusted", trusted)
    (weights,) = (directory / name).glob("*.safetensors")
    _expunge(directory, "predict", weights, "--input", "tested.csv", "--out", "scores.parquet")
    predicted = pq.read_table(directory / "scores.parquet")
    regression = best["certified"]["evaluation"]["headline"] == "mae"
    truth = tested[target]
    column = target if regression else "prediction"
    own = _score(truth, predicted[column].to_pylist(), regression=regression)
    for model in found:
        quote = made["quoted"][_WAYS[model["architecture"]["name"]]]
        run = model["latest_run"]
        begun, ended = (datetime.fromisoformat(run[each]) for each in ("started_at", "finished_at"))
        seconds = (ended - begun).total_seconds()
        document["within_two"] += 0.5 <= quote["seconds"] / seconds <= 2
        document["quotes"].append(
            {
                "table": name,
                "model": model["architecture"]["name"],
                "quoted_s": round(quote["seconds"], 2),
                "true_s": round(seconds, 2),
                "quoted_score": _rounded(quote["score"]),
                "true_score": own if model is best else None,
            }
        )
    dropped = {"row_id", target, subject, *made["not_read"]}
    inputs = [each for each in rows.column_names if each not in dropped]
    outside = _outside(learned, tested, inputs, target, regression=regression)
    document["scores"].append(
        {"table": name, "metric": "mae" if regression else "accuracy", "start": own, **outside}
    )


def _rounded(score: float | None) -> float | None:
    return None if score is None else float(f"{score:.4g}")


def _score(truth: pa.ChunkedArray, found: Any, *, regression: bool) -> float | None:
    if regression:
        return _rounded(float(np.abs(truth.to_numpy() - np.asarray(found)).mean()))
    texts = [str(each) for each in truth.to_pylist()]
    return _rounded(float(np.mean([a == str(b) for a, b in zip(texts, found, strict=True)])))


def _outside(
    learned: pa.Table, tested: pa.Table, inputs: list[str], target: str, *, regression: bool
) -> dict[str, float | None]:
    """Return what scikit-learn's models score that learn from the same rows."""
    is_text = [pa.types.is_string(learned[each].type) for each in inputs]

    def columns(table: pa.Table) -> np.ndarray[Any, np.dtype[Any]]:
        kept = [table[each] for each in inputs]
        found = [
            np.array(
                pc.fill_null(each, "").to_pylist() if text else each.cast(pa.float64()), object
            )
            for each, text in zip(kept, is_text, strict=True)
        ]
        return np.stack(found, axis=1)

    texts = [place for place, each in enumerate(is_text) if each]
    numbers = [place for place, each in enumerate(is_text) if not each]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    plain = make_column_transformer((codes, texts), ("passthrough", numbers))
    dense = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), texts),
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
    )
    categories = {"categorical_features": [*range(len(texts))]}
    models = {
        "boosting": (
            plain,
            HistGradientBoostingRegressor(**categories)
            if regression
            else HistGradientBoostingClassifier(**categories),
        ),
        "linear": (dense, Ridge() if regression else LogisticRegression(max_iter=1000)),
        "mlp": (
            dense,
            MLPRegressor(
                hidden_layer_sizes=(64,), early_stopping=True, max_iter=100, random_state=0
            )
            if regression
            else MLPClassifier(
                hidden_layer_sizes=(64,), early_stopping=True, max_iter=100, random_state=0
            ),
        ),
    }
    goal = np.array(learned[target].to_pylist())
    center, scale = (goal.mean(), goal.std()) if regression else (0.0, 1.0)
    found = dict[str, float | None]()
    for name, (read, model) in models.items():
        fitted = make_pipeline(read, model).fit(
            columns(learned), (goal - center) / scale if regression else goal
        )
        answers = fitted.predict(columns(tested))
        if regression:
            answers = answers * scale + center
        found[name] = _score(tested[target], answers, regression=regression)
    usual = goal.mean() if regression else max(set(goal.tolist()), key=goal.tolist().count)
    constant = [usual] * len(tested)
    return {**found, "constant": _score(tested[target], constant, regression=regression)}


def _expunge(directory: Path, *words: object, check: bool = True) -> str:
    command = python_command("app.cli", *words)
    done = subprocess.run(command, cwd=directory, check=False, stdout=subprocess.PIPE, text=True)
    harness.require(not check or done.returncode == 0, f"expunge {words[0]} failed")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
