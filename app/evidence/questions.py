"""The questions of regulators, read from the page that answers them in general.

Every item of a list is a question and its answer; a comment at its end, such as ``<!--dates-->``,
names the fact about one case that answers it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Final

NOT_ANSWERED: Final = "not answered by this product"
_ITEM = re.compile(r"\* \*\*(?P<asked>.+?)\*\*:? (?P<answer>.+?)(?: <!--(?P<fact>\w+)-->)?")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border:1px solid #999;padding:.4rem;"
    "text-align:left;vertical-align:top;white-space:pre-line;width:25%}"
)


@dataclass(frozen=True)
class Question:
    """What is asked, the general answer, and the name of the fact that answers it for a case."""

    source: str
    asked: str
    answer: str
    fact: str | None


@dataclass(frozen=True)
class Answer:
    """What is so in one case, and which file and field of its dossier show it."""

    text: str
    proof: str


@cache
def questions() -> tuple[Question, ...]:
    """Return all questions, in the page's order."""
    found, source = [], ""
    page = (Path(__file__).parent / "regulators.md").read_text(encoding="utf-8")
    for line in page.splitlines():
        if line.startswith("## "):
            source = line[3:]
        elif item := _ITEM.fullmatch(line):
            asked, answer = _plain(item["asked"]), _plain(item["answer"])
            found.append(Question(source, asked, answer, item["fact"]))
    return tuple(found)


def answers_html(title: str, facts: Mapping[str, Answer], *, made: str, trust: str) -> str:
    """Return the page of answers for one case; ``trust`` says what each kind of file proves."""
    rows, source = [], None
    for number, each in enumerate(questions(), 1):
        if each.source != source:
            source = each.source
            head = "".join(
                f"<th>{name}</th>" for name in ("asked", "in general", "in this case", "shown by")
            )
            rows.append(f"</table><h2>{escape(source)}</h2><table><tr>{head}</tr>")
        own = facts.get(each.fact or "")
        if own is None:
            own = Answer(NOT_ANSWERED if NOT_ANSWERED in each.answer else "as in general", "–")
        cells = (each.asked, each.answer, own.text, own.proof)
        row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr id="q{number}">{row}</tr>')
    body = "\n".join(rows).removeprefix("</table>")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>{escape(made)}</p>"
        f"<p>{escape(trust)}</p>\n{body}</table></html>\n"
    )


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", text).replace("`", "").replace("*", "")
