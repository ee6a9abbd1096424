"""What keeps the source pleasant to read: small files, and folders that are seen at a glance."""

from collections import Counter
from pathlib import Path

MOST_LINES = 600
MOST_FILES = 25
ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("app", "workers")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
]


def test_files_are_small() -> None:
    long = [path for path in FILES if len(path.read_bytes().splitlines()) > MOST_LINES]
    assert long == []


def test_folders_are_small() -> None:
    sizes = Counter(path.parent for path in FILES)
    assert [folder for folder, files in sizes.items() if files > MOST_FILES] == []
