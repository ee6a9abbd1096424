"""Our text files are UTF-8 whatever the locale is: each place that opens one says so."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("app", "workers", "expunge", "demo", "migrations", "examples")


def _undecided(path: Path) -> list[str]:
    """Return where a file is opened as text in the encoding of the locale."""
    found = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
        modes += [getattr(k.value, "value", None) for k in node.keywords if k.arg == "mode"]
        modes = [m for m in modes if isinstance(m, str) and m and set(m) <= set("rwxabt+")]
        is_text = name in ("read_text", "write_text") or (
            name in ("open", "fdopen") and modes and "b" not in modes[-1]
        )
        said = {k.arg for k in node.keywords} & {"encoding"}
        if is_text and not said and not (name == "read_text" and node.args):
            found.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}")
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_file_is_opened_as_utf_8(folder: str) -> None:
    assert [each for path in (REPOSITORY / folder).rglob("*.py") for each in _undecided(path)] == []
