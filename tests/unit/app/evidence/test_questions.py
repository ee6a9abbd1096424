"""The questions of regulators come from the page, and every fact of a case has its place there."""

from app.evidence.questions import NOT_ANSWERED, Answer, answers_html, questions
from app.ledger import dossiers


def test_each_row_of_the_page_is_a_question_and_each_fact_is_asked_for() -> None:
    found = questions()
    assert len({(each.source, each.asked) for each in found}) == len(found) == 50
    assert not any("](" in each.answer or "<!--" in each.answer for each in found)
    assert {each.fact for each in found} - {None} == set(dossiers.PROOFS)


def test_what_is_said_of_a_case_cannot_be_markup() -> None:
    page = answers_html("t", {"dates": Answer("<b>", "&")}, made="", trust="")
    assert "<td>&lt;b&gt;</td><td>&amp;</td>" in page
    assert f"<td>{NOT_ANSWERED}</td>" in page
