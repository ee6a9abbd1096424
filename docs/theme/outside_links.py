"""Links that lead out of docs/, which work in the repository, become text in the site.

The site names no host, so it cannot know where the repository lies. ``[data](../examples/data.py)``
is shown as "data (``examples/data.py`` in the repository)". Pictures from there come along.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)$)", re.M | re.S)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")
_PICTURES = "benchmarks/results"


def on_files(files: Any, *, config: Any, **_: Any) -> Any:  # noqa: ANN401 - mkdocs' own
    """Add the pictures of benchmarks."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - not where our tests run

    for picture in sorted((Path(config.docs_dir).parent / _PICTURES).glob("*.png")):
        path = f"{_PICTURES}/{picture.name}"
        files.append(File.generated(config, path, abs_src_path=str(picture)))
    return files


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
