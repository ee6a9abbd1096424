"""Write sentences of installed packages in a table, and a small transformer's public weights.

    python examples/texts/data.py sentences.parquet public.safetensors

The sentences are the first ones of docstrings; the task is to tell which package one is from. The
transformer reads bytes. It has learned to guess missing bytes of the standard library's docstrings,
which are not in the table.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import scipy
import sklearn
import sqlalchemy
import torch
from text_network import LENGTH, PADDING, VOCABULARY, bert
from torch import nn

PACKAGES = {"scipy": scipy, "sklearn": sklearn, "sqlalchemy": sqlalchemy}
MOST = 700
MASK, SHARE, STEPS = 1, 0.15, 300


def sentences(folder: Path) -> Iterator[str]:
    """Yield the first line of each docstring below a folder, once."""
    seen = set()
    for path in sorted(folder.rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                first = (ast.get_docstring(node) or "").strip().partition("\n")[0]
                if 30 <= len(first) <= 200 and first not in seen:
                    seen.add(first)
                    yield first


def tokens(texts: list[str]) -> torch.Tensor:
    """Return texts as Expunge encodes a column of texts: 1 + each byte, then 0."""
    found = np.zeros((len(texts), LENGTH), dtype=np.int64)
    for row, text in enumerate(texts):
        taken = np.frombuffer(text.encode()[:LENGTH], dtype=np.uint8)
        found[row, : len(taken)] = taken.astype(np.int64) + 1
    return torch.from_numpy(found)


def public_weights(texts: list[str]) -> dict[str, torch.Tensor]:
    """Train the transformer to guess masked bytes; return its weights without the guesser."""
    torch.manual_seed(0)
    network = bert()
    guess = nn.Linear(network.config.hidden_size, VOCABULARY)
    optimizer = torch.optim.AdamW([*network.parameters(), *guess.parameters()], lr=2e-3)
    known = tokens(texts)
    for step in range(STEPS):
        batch = known[torch.randint(len(known), (64,))]
        hidden = (torch.rand(batch.shape) < SHARE) & (batch != PADDING)
        states = network(batch.masked_fill(hidden, MASK), attention_mask=(batch != PADDING).long())
        loss = nn.functional.cross_entropy(guess(states.last_hidden_state)[hidden], batch[hidden])
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - step / STEPS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.state_dict()


if __name__ == "__main__":
    rows = [
        {"sentence": f"{name}-{place}", "author": f"{name} {place // 3}", "text": text, "of": name}
        for name, package in PACKAGES.items()
        for place, text in zip(range(MOST), sentences(Path(package.__file__).parent), strict=False)
    ]
    pq.write_table(pa.Table.from_pylist(rows), sys.argv[1])
    library = list(sentences(Path(ast.__file__).parent / "asyncio"))
    library += list(sentences(Path(ast.__file__).parent / "email"))
    safetensors.torch.save_file(public_weights(library), sys.argv[2])
