"""Where spans are, and what they may say."""

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from app.domain.ids import new_id
from app.domain.states import Phase
from app.runtime.tracing.spans import Facts, Span, Step, Work, place_of_request, span_of_request
from tests.support.collector import assert_connected

PAGE = (Path(__file__).parents[5] / "docs" / "how-to" / "traces.md").read_text()


def _run(*requests: str, key: str = "run_1") -> Work:
    return Work(("run", key, 1), requests)


def _spans(work: Work) -> list[Span]:
    return list(work.spans(Step.RUN, begun_ns=5, ended_ns=9, facts=Facts(model="m")))


def test_what_one_request_is_answered_by_is_one_trace() -> None:
    request = new_id("fr")
    root = span_of_request(request, begun_ns=1, state="accepted")
    work = _run(request)
    (span,) = _spans(work)
    parts = [work.part(Phase.LOADING, n, begun_ns=6, ended_ns=7) for n in range(2)]
    assert_connected([root, span, *parts])
    assert {each.place.trace for each in (root, span, *parts)} == {root.place.trace}
    assert (span.parent, root.parent) == (root.place.span, None)
    assert {part.parent for part in parts} == {span.place.span}
    assert span.links == ()


def test_what_several_requests_share_is_in_the_trace_of_each() -> None:
    requests = sorted(new_id("fr") for _ in range(3))
    roots = [span_of_request(each, begun_ns=1, state="accepted") for each in requests]
    spans = _spans(_run(*reversed(requests)))
    assert_connected([*roots, *spans, _run(*requests).part("loading", begun_ns=5)])
    assert [each.place.trace for each in spans] == [root.place.trace for root in roots]
    assert spans[0].links == tuple(root.place for root in roots[1:])
    assert [each.links for each in spans[1:]] == [(spans[0].place,)] * 2
    assert {each.facts.requests for each in spans} == {3}


def test_work_for_no_request_has_a_trace_of_its_own() -> None:
    work = _run()
    (span,) = _spans(work)
    assert_connected([span, work.part("loading", begun_ns=5)])
    assert span.place.trace != _spans(_run(key="run_2"))[0].place.trace


def test_attempts_and_parts_have_ids_of_their_own() -> None:
    request = new_id("fr")
    works = [Work(("run", "run_1", token), [request]) for token in (1, 2)]
    spans = [span for work in works for span in _spans(work)]
    spans += [work.part("member", n, begun_ns=1) for work in works for n in (1, 2)]
    assert_connected([span_of_request(request, begun_ns=1, state="accepted"), *spans])


def test_an_id_of_a_trace_can_be_computed_as_the_page_says() -> None:
    (command,) = re.findall(r"\$\((printf 'expunge/trace/%s'[^\n]*)\)", PAGE)
    told = subprocess.run(
        ["sh", "-c", f"REQUEST=fr_0; {command}"], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == place_of_request("fr_0").trace


def test_a_span_survives_its_way_and_nothing_else_does() -> None:
    (span,) = _spans(_run("fr_1"))
    assert Span.from_json(span.to_json()) == span
    for more in ('"record": 1', '"facts": {"subject": "x"}'):
        with pytest.raises(TypeError):
            Span.from_json(span.to_json()[:-1] + f", {more}}}")


def test_the_page_lists_all_that_spans_say() -> None:
    listed = set(re.findall(r"^\| `expunge\.(\w+)`", PAGE, re.M))
    assert listed == {each.name for each in fields(Facts)}
    names = set(re.findall(r"^\| `([a-z_ ]+)` \|", PAGE, re.M))
    assert names == {str(step) for step in Step} | {str(phase) for phase in Phase}
