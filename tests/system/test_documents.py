"""The quick start and the how-to guides: every command of theirs, in order, from the text."""

import re
from collections.abc import Iterator

import pytest

from tests.support.documents import DOCS, ROOT, Reader, blocks, reader
from tests.unit.docs.test_navigation import WRITTEN

QUICK_START = "quick-start.md"


@pytest.fixture(scope="module")
def someone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody who has followed the quick start."""
    with reader(tmp_path_factory.mktemp("reader") / "work") as someone:
        someone.printed = someone.follow(QUICK_START)
        yield someone


def test_the_quick_start_leads_to_a_verified_download(someone: Reader) -> None:
    assert "the certificate holds" in someone.printed
    assert "24000 predictions" in someone.printed
    for kind in ("safetensors", "certificate.json"):  # version 1, if the person was held out
        assert len(list((someone.directory / "release").glob(f"digits-mlp-v[12].{kind}"))) == 1


@pytest.mark.nightly  # each starts the service, some of them twice
@pytest.mark.parametrize(
    ("guide", "printed"),
    [
        ("deploy", "s3_secret_key"),
        ("data-subjects", "the certificate holds"),
        ("keys", "no fault"),
        ("frozen-backbone", "the weights of the backbone white"),
        ("many-workers", "true"),
        ("several-devices", "true"),
        ("own-model", "digits-uploaded-v"),
        ("tables", '"changed": 1,'),
        ("own-task", "all 1,000 rows of visits.parquet can be encoded"),
        ("import", "row 17, column 'age': text that is not int32 without loss"),
        ("publish", "the certificate holds"),
        ("traces", "training"),
        ("use-a-model", "digits.onnx"),
        ("audit", "Verdict on digits-mlp"),
        ("recompute", '"equal": true'),
    ],
)
def test_a_guide_does_what_it_says(someone: Reader, guide: str, printed: str) -> None:
    assert printed in someone.follow(f"how-to/{guide}.md")


@pytest.mark.nightly
def test_the_page_of_tasks_trains_forgets_and_predicts_each(someone: Reader) -> None:
    printed = someone.follow("tasks.md")
    assert printed.count("5 predictions") == 3
    for metric in ("mae", "f1", "perplexity"):
        assert f'"{metric}"' in printed
    for column in ("progression", "hypertensive", "next_text"):
        assert column in printed.split("5 predictions", 1)[1]


def test_every_guide_is_run_or_says_that_it_is_not() -> None:
    for path in (DOCS / "how-to").glob("*.md"):
        text = path.read_text()
        if "```" in text and not blocks(f"how-to/{path.name}"):
            assert "not run by our tests" in text, path.name


def test_links_between_documents_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", path.read_text()):
            is_written = path.parent.joinpath(target).name in WRITTEN  # with the site
            assert is_written or (path.parent / target).exists(), f"{path.name}: {target}"
