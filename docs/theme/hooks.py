"""What the site has beside docs/, and what becomes of links that lead out of it.

Pages that the code describes come from ``build/pages``, where docs/pages.py writes them. Links out
of docs/, which work in the repository, become text: the site names no host, so it cannot know where
the repository lies. ``[data](../examples/data.py)`` is shown as "data (``examples/data.py`` in the
repository)". Pictures from there come along.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)$)", re.M | re.S)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")
_PAGES = "build/pages"
_PICTURES = "benchmarks/results"


def on_files(files: Any, *, config: Any, **_: Any) -> Any:  # noqa: ANN401 - mkdocs' own
    """Add the pages that the code describes, and the pictures of benchmarks."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - not where our tests run

    root = Path(config.docs_dir).parent
    added = {page.name: page for page in (root / _PAGES).iterdir()}
    added |= {f"{_PICTURES}/{each.name}": each for each in (root / _PICTURES).glob("*.png")}
    for path, source in sorted(added.items()):
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def on_post_build(*, config: Any, **_: Any) -> None:  # noqa: ANN401 - mkdocs' own
    """Give the frame that shows the API the policy that theme/main.html gives all pages."""
    policy = re.findall(r"<meta .*>", (Path(config.docs_dir) / "theme/main.html").read_text())[0]
    for frame in Path(config.site_dir).glob("swagger-*.html"):
        frame.write_text(frame.read_text().replace("<head>", f"<head>\n  {policy}", 1))
    for unused in Path(config.site_dir).glob("assets/swagger-ui/*"):  # for signing in
        unused.unlink()


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:  # noqa: ANN401 - mkdocs' own
    """Return a page in which no link leads out of the documentation."""
    return within(markdown, page.file.src_uri)


def within(markdown: str, source: str) -> str:
    """Return a page's text without links that lead out.

    Args:
        markdown: the text.
        source: the page's path in docs/.
    """
    folder = posixpath.dirname(source)

    def replaced(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        if ":" in target or target.startswith("#"):
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", folder, target.partition("#")[0]))
        if path.startswith("docs/"):
            return match[0]
        if image:
            return f"![{text}]({posixpath.relpath(path, folder or '.')})"
        if text.strip("`") == path:
            return f"`{path}`"
        return f"{text} (`{path}` in the repository)"

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)
