"""``expunge.load`` of hostile files: an error of ours, before much memory is taken."""

import json
import random
import resource
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch

import expunge
from app.client.published import head_outputs, read_published
from app.domain.errors import ExpungeError
from tests.support import hostile
from tests.support.described import DESCRIPTIONS, FACTORIES, IMAGES, raw_features, written
from tests.support.specs import classification

SEEDS = (
    "mlp",
    "cnn",
    "ensemble",
    "logistic_on_backbone",
    "linear_head",
    "trees_of_a_table",
    "ridge_head",
    "texts",
)
MUTATIONS = 500


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    content = written(DESCRIPTIONS["mlp"], tmp_path / "seed").read_bytes()
    for name, hostile_content in hostile.by_hand(content):
        (tmp_path / "m.safetensors").write_bytes(hostile_content)
        with pytest.raises(ExpungeError):
            pytest.fail(f"{name}: {expunge.load(tmp_path / 'm.safetensors', check=False)}")


SMALLER = {
    "schema__shape": [4, 4],
    "task__inputs": classification(5, replace(IMAGES, shape=(4, 4))).to_json()["inputs"],
}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("linear_head", SMALLER),
        ("linear_head", {"architecture__options": {"bias": 0}}),
        ("ridge_head", SMALLER),
    ],
)
def test_a_head_whose_tensors_are_of_another_size_is_refused_without_pytorch(
    name: str, change: dict, tmp_path: Path
) -> None:
    path = written(DESCRIPTIONS[name], tmp_path / "m.safetensors")
    path.write_bytes(hostile.described(path.read_bytes(), **change))
    published = read_published(path, check=False)
    with pytest.raises(ExpungeError, match="not those of its head"):
        head_outputs(published, raw_features(published.description))


@pytest.mark.parametrize(("tensor", "number"), [("left", 99), ("column", -1), ("column", 64)])
@pytest.mark.parametrize("name", ["trees", "trees_of_a_table", "trees_on_backbone"])
def test_trees_whose_nodes_lead_nowhere_are_refused(
    name: str, tensor: str, number: float, tmp_path: Path
) -> None:
    path = written(DESCRIPTIONS[name], tmp_path / "m.safetensors")
    tensors = safetensors.torch.load_file(path)
    tensors[tensor].view(-1)[1] = number
    safetensors.torch.save_file(tensors, path, metadata=DESCRIPTIONS[name].to_metadata())
    published = read_published(path, check=False)
    with pytest.raises(ExpungeError, match="no node below it"):
        expunge.load(path, check=False)
    if published.is_plain_head:
        with pytest.raises(ExpungeError, match="not those of its head"):
            head_outputs(published, raw_features(published.description))


@pytest.mark.slow
def test_mutated_files_take_little_memory(tmp_path: Path) -> None:
    """In a process of its own, whose largest size is that of these files alone."""
    seeds = [written(DESCRIPTIONS[name], tmp_path / name).read_bytes() for name in SEEDS]
    source = random.Random(34)
    files = [content for _, content in hostile.by_hand(seeds[0])]
    files += [hostile.mutated(source.choice(seeds), source) for _ in range(MUTATIONS)]
    for number, content in enumerate(files):
        (tmp_path / f"{number}.safetensors").write_bytes(content)
    command = [sys.executable, "-m", __spec__.name, str(tmp_path)]
    grown, outcomes = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    assert 0 <= grown < 4 * max(map(len, files))
    assert outcomes.keys() <= {"loaded", "VerificationError", "InvalidInputError", "RunFailedError"}


def _load_all(folder: Path) -> tuple[int, Counter[str]]:
    """Load files; return by how many bytes the process has grown, and what came of them."""
    for name in SEEDS:
        expunge.load(folder / name, check=False, factories=FACTORIES)
    before, outcomes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, Counter[str]()
    for path in folder.glob("*.safetensors"):
        try:
            expunge.load(path, check=False, factories=FACTORIES)
            outcomes["loaded"] += 1
        except ExpungeError as error:
            outcomes[type(error).__name__] += 1
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, outcomes


if __name__ == "__main__":
    print(json.dumps(_load_all(Path(sys.argv[1]))))
