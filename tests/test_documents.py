"""The tutorial and the how-to guides: every command of theirs, in order, from the text itself."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import DOCS, ROOT, Reader, blocks, reader

TOOLS = ("bash", "curl", "jq", "openssl")


@pytest.fixture(scope="module")
def someone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody who has followed the tutorial."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    with reader(tmp_path_factory.mktemp("reader") / "work") as someone:
        someone.printed = someone.follow("tutorial.md")
        yield someone


@pytest.mark.slow  # it starts the service and trains; test_verifying follows a page in seconds
def test_the_tutorial_leads_to_a_verified_download(someone: Reader) -> None:
    assert someone.printed.count("the certificate holds") == 1
    assert "FAIL" in someone.printed
    assert "no fault" in someone.printed
    assert "urn:expunge:problem:unknown-records" in someone.printed
    names = {path.name for path in (someone.directory / "release").iterdir()}
    assert {"digits-mlp-v2.safetensors", "digits-mlp-v3.safetensors"} <= names
    assert not list(Path(someone.directory / "release").glob("*.part"))


@pytest.mark.guides  # each starts the service, some of them twice
@pytest.mark.parametrize(
    ("guide", "printed"),
    [
        ("deploy", "s3_secret_key"),
        ("data-subjects", "the certificate holds"),
        ("keys", "no fault"),
        ("frozen-backbone", "backbone."),
        ("many-workers", "true"),
        ("own-model", "digits-uploaded-v"),
    ],
)
def test_a_guide_does_what_it_says(someone: Reader, guide: str, printed: str) -> None:
    assert printed in someone.follow(f"how-to/{guide}.md")


def test_every_guide_is_run_or_says_that_it_is_not() -> None:
    for path in (DOCS / "how-to").glob("*.md"):
        if not blocks(f"how-to/{path.name}"):
            assert "not run by our tests" in path.read_text(), path.name


def test_links_between_documents_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
