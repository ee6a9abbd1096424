"""Checkpoints: their one spelling, and everything that is none."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import NoteError
from app.domain.merkle import EMPTY_ROOT
from app.evidence.certificates.checkpoint import (
    MAX_EXTENSIONS,
    MAX_SIZE,
    Checkpoint,
    open_checkpoint,
    origin_of,
)
from app.evidence.certificates.signing import StatementSigner

ROOT = base64.b64encode(EMPTY_ROOT).decode()
ORIGIN = "expunge/0123"


@pytest.fixture(scope="module")
def signer(tmp_path_factory) -> StatementSigner:
    return StatementSigner.from_file(tmp_path_factory.mktemp("keys") / "key.pem", create=True)


@given(
    size=st.integers(0, MAX_SIZE),
    root=st.binary(min_size=32, max_size=32),
    extensions=st.lists(st.from_regex(r"[!-~]+", fullmatch=True), max_size=MAX_EXTENSIONS),
)
def test_what_is_written_can_be_read(size, root, extensions) -> None:
    checkpoint = Checkpoint(ORIGIN, size, root, tuple(extensions))
    assert Checkpoint.from_text(checkpoint.text()) == checkpoint


def test_the_text_is_origin_size_and_root() -> None:
    assert Checkpoint(ORIGIN, 15, EMPTY_ROOT).text() == f"expunge/0123\n15\n{ROOT}\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "\n\n\n",
        f"{ORIGIN}\n15\n",
        f"{ORIGIN}\n15\n{ROOT}",
        f"\n15\n{ROOT}\n",
        f"{ORIGIN}\n015\n{ROOT}\n",
        f"{ORIGIN}\n-1\n{ROOT}\n",
        f"{ORIGIN}\n+1\n{ROOT}\n",
        f"{ORIGIN}\n 1\n{ROOT}\n",
        f"{ORIGIN}\n1_0\n{ROOT}\n",
        f"{ORIGIN}\n１５\n{ROOT}\n",
        f"{ORIGIN}\n{MAX_SIZE + 1}\n{ROOT}\n",
        f"{ORIGIN}\n{'9' * 5000}\n{ROOT}\n",
        f"{ORIGIN}\n15\n{ROOT[:-4]}\n",
        f"{ORIGIN}\n15\n{ROOT.rstrip('=')}\n",
        f"{ORIGIN}\n15\n {ROOT}\n",
        f"{ORIGIN}\n15\n\u00e4{ROOT[1:]}\n",
        f"{ORIGIN}\n15\n{ROOT}\n\n",
        f"{ORIGIN}\n15\n{ROOT}\n\nlater\n",
        f"{ORIGIN}\n15\n{ROOT}\n" + "x\n" * (MAX_EXTENSIONS + 1),
    ],
)
def test_what_is_spelt_otherwise_is_refused(text: str) -> None:
    with pytest.raises(NoteError):
        Checkpoint.from_text(text)


@given(st.text(max_size=200))
def test_random_text_is_refused(text: str) -> None:
    with pytest.raises(NoteError):
        Checkpoint.from_text(text)


def test_a_signed_checkpoint_opens_with_its_key(signer: StatementSigner) -> None:
    checkpoint = Checkpoint(ORIGIN, 7, EMPTY_ROOT)
    note = signer.sign_note(checkpoint.text(), name=ORIGIN).encode()
    assert origin_of(note) == ORIGIN
    assert open_checkpoint(note, [signer.note_key(ORIGIN)]) == checkpoint
    with pytest.raises(NoteError):
        open_checkpoint(note, [signer.note_key("expunge/other")])
    with pytest.raises(NoteError):
        open_checkpoint(note, [])


def test_a_log_does_not_sign_in_anothers_name(signer: StatementSigner) -> None:
    text = Checkpoint("expunge/other", 7, EMPTY_ROOT).text()
    with pytest.raises(NoteError):
        signer.sign_note(text, name=ORIGIN)
    with pytest.raises(NoteError):
        signer.sign_note("DSSEv1 4 text\n", name="DSSEv1 4 text")


def test_a_witness_alone_does_not_make_a_checkpoint(signer: StatementSigner, tmp_path) -> None:
    witness = StatementSigner.from_file(tmp_path / "witness.pem", create=True)
    text = Checkpoint(ORIGIN, 7, EMPTY_ROOT).text()
    note = signer.sign_note(text, name=ORIGIN)
    cosignature = witness.sign_note(text.replace(ORIGIN, "witness", 1), name="witness")
    # The witness's line covers another text, so it is wrong wherever its key is trusted.
    both = (note + cosignature.rpartition("\n\n")[2]).encode()
    assert open_checkpoint(both, [signer.note_key(ORIGIN)]).size == 7
    with pytest.raises(NoteError):
        open_checkpoint(both, [signer.note_key(ORIGIN), witness.note_key("witness")])
