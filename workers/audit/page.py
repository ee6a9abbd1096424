"""A report as one page of HTML without scripts, with its picture as SVG."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from workers.audit.report import Report, fewest_contradicting
from workers.audit.statistics import right_guesses

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 460, 220, 20, 190, 24
_BINS: Final = 24
_KEPT_SHARE: Final = 0.98
_STYLE: Final = """
:root { color-scheme: light dark; --wrong: #b3541e; --right: #1f6f8b; --line: #85898d; }
@media (prefers-color-scheme: dark) { :root { --wrong: #e0894f; --right: #5fb3cf; } }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
svg { max-width: 100%; height: auto; font-size: 12px; fill: currentColor; }
.right { fill: var(--right); } .wrong { fill: var(--wrong); } .bar { fill: var(--line); }
.axis { stroke: var(--line); } .mark { stroke: var(--right); stroke-width: 2; }
.limit { stroke: var(--wrong); stroke-width: 2; stroke-dasharray: 5 4; }
.contradicted { color: var(--wrong); } table { border-collapse: collapse; }
th, td { text-align: left; padding: .2rem 1rem .2rem 0; } code { overflow-wrap: anywhere; }
"""


def page(report: Report) -> str:
    """Return the page."""
    predicate = report.predicate
    verdict, audited = predicate["result"]["verdict"], predicate["audited"]
    title = f"Audit of {audited['model']}: {verdict}"
    facts = {
        "certificate (SHA-256)": predicate["claim"]["certificate_sha256"],
        "release (SHA-256)": report.statement["subject"][0]["digest"]["sha256"],
        "rows": predicate["method"]["rows"],
        "score": predicate["method"]["score"],
        "from": predicate["started_at"],
        "to": predicate["ended_at"],
        "software": predicate["software"],
    }
    lines = [
        "<!doctype html>",
        f'<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{_STYLE}</style>",
        f'<h1>Audit of {escape(audited["model"])}: <span class="{verdict}">{verdict}</span></h1>',
        *(f"<p>{escape(line)}</p>" for line in report.in_words()),
        f"<figure>{_picture(predicate)}</figure>",
        "<h2>What an audit cannot show</h2>",
        "<ul>",
        *(f"<li>{escape(line)}</li>" for line in predicate["cannot_show"]),
        "</ul>",
        "<h2>What it is about</h2>",
        "<table>",
        *(
            f"<tr><th>{escape(name)}</th><td><code>{escape(str(value))}</code></td></tr>"
            for name, value in facts.items()
        ),
        "</table></html>",
    ]
    return "\n".join(lines) + "\n"


def _picture(predicate: Mapping[str, Any]) -> str:
    """Return two panels: the scores' differences, and the right guesses against chance."""
    result, method = predicate["result"], predicate["method"]
    label = (
        "Left: how much more each pushed content scores than the other one, by the best of three "
        "attacks. Right: "
        f"{result['right']} right of {method['guesses']} guesses, and how likely each number is "
        "by chance."
    )
    return (
        f'<svg viewBox="0 0 {2 * _WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"<g>{_scores(predicate)}</g>"
        f'<g transform="translate({_WIDTH} 0)">{_chances(predicate)}</g></svg>'
    )


def _scores(predicate: Mapping[str, Any]) -> str:
    """Return a histogram of the pushed content's score less the other's; the tails are cut.

    It is of the attack that was right more often.
    """
    coins, guesses = [int(each) for each in predicate["coins"]], predicate["method"]["guesses"]
    scores = max(predicate["scores"], key=lambda each: right_guesses([each], coins, guesses))
    pushed = [
        (second - first) * (1 if coin else -1)
        for (first, second), coin in zip(scores, coins, strict=True)
    ]
    sizes = sorted(map(abs, pushed))
    reach = sizes[math.ceil(_KEPT_SHARE * len(sizes)) - 1] or 1.0
    counts = [0] * _BINS
    for each in pushed:
        place = (max(-reach, min(reach, each)) + reach) / (2 * reach)
        counts[min(_BINS - 1, int(place * _BINS))] += 1
    kinds = ["wrong"] * (_BINS // 2) + ["right"] * (_BINS // 2)
    names = [(0.0, f"{-reach:.3g}"), (0.5, "0"), (1.0, f"{reach:.3g}")]
    return _bars(
        counts,
        kinds,
        "canaries by what the pushed content scores above the other: blue is right",
        names,
    )


def _chances(predicate: Mapping[str, Any]) -> str:
    """Return the binomial distribution of right guesses, what was found, and what contradicts."""
    guesses, right = predicate["method"]["guesses"], predicate["result"]["right"]
    spread = 5 * math.sqrt(guesses) / 2
    needed = fewest_contradicting(predicate)
    limits = [] if needed is None else [needed]
    shown = [guesses / 2 - spread, guesses / 2 + spread, right, *limits]
    low, high = max(0, math.floor(min(shown))), min(guesses, math.ceil(max(shown)))
    chances = [
        math.exp(
            math.lgamma(guesses + 1)
            - math.lgamma(each + 1)
            - math.lgamma(guesses - each + 1)
            - guesses * math.log(2)
        )
        for each in range(low, high + 1)
    ]
    names = [(0.0, str(low)), (1.0, str(high))]
    drawn = [
        _bars(chances, ["bar"] * len(chances), "right guesses, and their chance", names),
        _line("mark", _across((right - low + 0.5) / len(chances)), f"{right} right", 0),
    ]
    for each in limits:
        across = _across((each - low + 0.5) / len(chances))
        drawn.append(_line("limit", across, f"{each} contradict", 16))
    return "".join(drawn)


def _bars(
    heights: Sequence[float],
    kinds: Sequence[str],
    title: str,
    names: Sequence[tuple[float, str]],
) -> str:
    width, most = (_WIDTH - 2 * _LEFT) / len(heights), max(heights)
    drawn = [
        _text(_LEFT, 14, title, "start"),
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>',
    ]
    for place, (height, kind) in enumerate(zip(heights, kinds, strict=True)):
        tall = (_BOTTOM - _TOP - 34) * height / most
        drawn.append(
            f'<rect class="{kind}" x="{_LEFT + place * width:.1f}" y="{_BOTTOM - tall:.1f}" '
            f'width="{max(0.5, width - 1):.1f}" height="{tall:.1f}"/>'
        )
    for share, name in names:
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        drawn.append(_text(_across(share), _BOTTOM + 16, name, anchor))
    return "".join(drawn)


def _line(kind: str, across: float, name: str, lower: int) -> str:
    anchor = "end" if across > _WIDTH / 2 else "start"
    aside = -4 if anchor == "end" else 4
    return (
        f'<line class="{kind}" x1="{across:.1f}" x2="{across:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>'
        + _text(across + aside, _TOP + 10 + lower, name, anchor)
    )


def _text(across: float, down: float, text: str, anchor: str) -> str:
    return f'<text x="{across:.1f}" y="{down:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _across(share: float) -> float:
    return _LEFT + (_WIDTH - 2 * _LEFT) * share
