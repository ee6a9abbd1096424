"""Columns of texts, as tokens: the bytes of their UTF-8."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.domain.columns import TextColumn


def tokens_of(column: pa.Array, rule: TextColumn) -> npt.NDArray[np.int32]:
    """Return the tokens of texts without nulls, int32 [n, rule.length]."""
    texts = column.cast(pa.large_binary())
    ends = np.frombuffer(texts.buffers()[1], dtype=np.int64)[texts.offset :][: len(texts) + 1]
    content = texts.buffers()[2]
    read = np.frombuffer(b"" if content is None else content, dtype=np.uint8)
    starts = ends[:-1]
    lengths = np.minimum(np.diff(ends), rule.length)
    places = np.arange(rule.length)
    within = places < lengths[:, None]
    found = np.full((len(texts), rule.length), rule.padding, dtype=np.int32)
    found[within] = read[(starts[:, None] + places)[within]].astype(np.int32) + 1
    return found
