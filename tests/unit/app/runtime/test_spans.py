"""Where spans are, and what they may say."""

import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import pytest

from app.domain.ids import new_id
from app.domain.states import Phase
from app.runtime import spans
from app.runtime.spans import Facts, Span, Step, Work, place_of_request, span_of_request
from tests.support.collector import assert_connected, handed_over

PAGE = (Path(__file__).parents[4] / "docs" / "how-to" / "traces.md").read_text()


SPAN = span_of_request("fr_1", begun_ns=1, state="accepted")


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


def test_the_page_lists_all_that_spans_say() -> None:
    listed = set(re.findall(r"^\* `expunge\.(\w+)`", PAGE, re.M))
    assert listed == {each.name for each in fields(Facts)}
    names = set(re.findall(r"^\* `([a-z_ ]+)`[ :]", PAGE, re.M))
    assert names == {str(step) for step in Step} | {str(phase) for phase in Phase}


def _fail() -> NoReturn:
    raise RuntimeError("record-17")


def test_without_a_sender_nothing_is_made() -> None:
    assert not spans.is_on()
    spans.hand_over(_fail)
    spans.at_commit(None, _fail)  # type: ignore[arg-type] - it is not looked at


def test_what_fails_while_spans_are_made_or_sent_is_logged_without_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with handed_over() as kept:
        spans.hand_over(_fail)
        spans.at_commit(None, _fail)  # type: ignore[arg-type] - nothing is left to hand over
        spans.hand_over(lambda: [SPAN])
        assert [each.name for each in kept] == ["forget request"]
        spans.send_by(_fail)
        spans.hand_over(lambda: [SPAN])
    assert len(caplog.messages) == 3
    assert all("RuntimeError" in each and "record-17" not in each for each in caplog.messages)


def test_a_span_ends_when_it_is_handed_over_unless_it_has_ended() -> None:
    ended = Span(name="a", place=SPAN.place, parent=None, begun_ns=1, ended_ns=2)
    with handed_over() as kept:
        spans.hand_over(lambda: [SPAN, ended])
    assert kept[0].ended_ns is not None
    assert kept[0].ended_ns > 10**18
    assert kept[1] == ended
