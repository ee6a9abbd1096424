"""Size is a cost: what may not grow. Who adds takes away, or raises a number here and says why."""

import ast
import functools
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from app.runtime.settings import Settings

ROOT = Path(__file__).parents[2]
SOURCE = ("app", "workers", "expunge", "migrations")
MOST = {
    "lines of source": 82_938,
    "source files": 533,
    "lines of tests": 92_339,
    "lines of benchmarks": 5_997,
    "words of docs": 54_988,
    "functions": 4_729,
    "classes": 834,
    "settings": 56,
    "routes": 129,
}
SLACK = 0.02
"""How far below its number a measure may lie before the number must follow."""
MOST_LINES_OF_A_FILE = 600
MOST_FILES_OF_A_FOLDER = 26
LEAST_MEDIAN_OF_FUNCTIONS = 7


def files(*folders: str, suffix: str = "") -> Iterator[Path]:
    for folder in folders:
        for path in (ROOT / folder).rglob(f"*{suffix}"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines())


@functools.cache
def nodes() -> list[ast.AST]:
    trees = (ast.parse(path.read_bytes()) for path in files("app", "workers", suffix=".py"))
    return [node for tree in trees for node in ast.walk(tree)]


def measured() -> dict[str, int]:
    kinds = Counter(map(type, nodes()))
    routes = [
        decorator
        for node in nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr in {"get", "post", "put", "patch", "delete", "head"}
    ]
    return {
        "lines of source": sum(map(lines, files(*SOURCE))),
        "source files": sum(1 for _ in files(*SOURCE)),
        "lines of tests": sum(map(lines, files("tests", suffix=".py"))),
        "lines of benchmarks": sum(map(lines, files("benchmarks", suffix=".py"))),
        "words of docs": sum(len(p.read_text().split()) for p in files("docs", suffix=".md")),
        "functions": kinds[ast.FunctionDef] + kinds[ast.AsyncFunctionDef],
        "classes": kinds[ast.ClassDef],
        "settings": len(Settings.model_fields),
        "routes": len(routes),
    }


def test_nothing_grows_and_the_numbers_follow_what_shrinks() -> None:
    for what, found in measured().items():
        assert found <= MOST[what], f"{what}: {found} instead of {MOST[what]}"
        assert found >= MOST[what] * (1 - SLACK), f"{what}: lower the number to {found}"


def test_files_and_folders_are_seen_at_a_glance() -> None:
    sources = list(files("app", "workers"))
    assert [path for path in sources if lines(path) > MOST_LINES_OF_A_FILE] == []
    sizes = Counter(path.parent for path in sources)
    assert [folder for folder, count in sizes.items() if count > MOST_FILES_OF_A_FOLDER] == []


def test_functions_say_more_than_their_names() -> None:
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert statistics.median(lengths) >= LEAST_MEDIAN_OF_FUNCTIONS
