"""Write invented articles, counts of words with several topics: ``… data.py FILE``."""

import sys

import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import make_multilabel_classification

ROWS, WORDS = 3000, 40
TOPICS = ("sport", "science", "money", "travel")

if __name__ == "__main__":
    counts, topics = make_multilabel_classification(
        ROWS, n_features=WORDS, n_classes=len(TOPICS), n_labels=2, length=60, random_state=3
    )
    words = pa.array(counts.astype("float32").reshape(-1))
    table = {
        "article": [f"a-{row}" for row in range(ROWS)],
        "author": [f"author {row // 6}" for row in range(ROWS)],
        "words": pa.FixedSizeListArray.from_arrays(words, WORDS),
        **{name: topics[:, place].astype(bool) for place, name in enumerate(TOPICS)},
    }
    pq.write_table(pa.table(table), sys.argv[1])
