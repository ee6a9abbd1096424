"""Every page of the documentation can be found: in the site's navigation, and in docs/README.md."""

import importlib.util
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
WRITTEN = ["api.md", "definitions.md", "problems.md", "settings.md"]
"""What docs/pages.py writes."""
KINDS = ["Tutorials", "How to", "Reference", "Explanation"]
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def _navigation() -> str:
    return (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hook", DOCS / "theme" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_has_one_line_in_the_navigation() -> None:
    listed = re.findall(r"^ *- [^\n]*: (\S+\.md)$", _navigation(), re.M)
    assert sorted(listed) == sorted(PAGES + WRITTEN), "add or remove a line in nav of mkdocs.yml"


def test_every_page_is_listed_in_the_readme_of_docs() -> None:
    linked = set(_LINK.findall((DOCS / "README.md").read_text()))
    assert {*PAGES, *WRITTEN} - linked - {"README.md"} == set(), "add a line to docs/README.md"


def _outside() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for target in _LINK.findall((DOCS / page).read_text()):
            path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
            if not path.startswith("docs/"):
                yield page, path


def test_links_that_lead_out_of_docs_become_text(hook: ModuleType) -> None:
    outside = list(_outside())
    assert len(outside) > 8
    for page, path in outside:
        assert (ROOT / path).exists(), (page, path)
        shown = hook.within((DOCS / page).read_text(), page)
        assert path in shown, (page, path)
        assert f"]({'../' * (page.count('/') + 1)}{path}" not in shown, (page, path)


def test_what_becomes_of_each_link(hook: ModuleType) -> None:
    for text, shown in {
        "[a](../../examples/a.py)": "a (`examples/a.py` in the repository)",
        "[`examples/a`](../../examples/a)": "`examples/a`",
        "[a](../tasks.md#inputs)": "[a](../tasks.md#inputs)",
        "[a](#here) [b](https://b.example)": "[a](#here) [b](https://b.example)",
        "![a](../../benchmarks/results/a.png)": "![a](../benchmarks/results/a.png)",
        "![a](../images/a.png)": "![a](../images/a.png)",
        "```\n[a](../../examples/a.py)\n```": "```\n[a](../../examples/a.py)\n```",
    }.items():
        assert hook.within(text, "how-to/page.md") == shown
