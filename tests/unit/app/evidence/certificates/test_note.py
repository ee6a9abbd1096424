"""Signed notes: a published example, and everything that is no note."""

import base64

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import NoteError
from app.domain.merkle import EMPTY_ROOT
from app.evidence.certificates.note import (
    MAX_EXTENSIONS,
    MAX_NOTE_BYTES,
    MAX_SIGNATURES,
    MAX_SIZE,
    Checkpoint,
    NoteKey,
    WitnessKey,
    cosigned,
    open_checkpoint,
    open_note,
    origin_of,
    sign_note,
)
from app.evidence.certificates.signing import StatementSigner

# The example of the format's first implementation, golang.org/x/mod/sumdb/note.
PUBLISHED_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PUBLISHED_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZ"
    "b6KE6RyyBwJnAM=\n"
)
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEY = NoteKey("example.org/log", PRIVATE.public_key())
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
TEXT = "example.org/log\nsomething\n"
NOTE = sign_note(TEXT, key=KEY, sign=PRIVATE.sign)


def test_a_published_note_opens() -> None:
    name, _, encoded = PUBLISHED_KEY.split("+", 2)
    raw = base64.b64decode(encoded)[1:]
    key = NoteKey(name, Ed25519PublicKey.from_public_bytes(raw))
    assert str(key) == PUBLISHED_KEY
    assert open_note(PUBLISHED_NOTE.encode(), [key]) == PUBLISHED_NOTE.rpartition("\n\n")[0] + "\n"


def test_what_was_signed_opens() -> None:
    assert NOTE.startswith(TEXT + "\n— example.org/log ")
    assert open_note(NOTE.encode(), [KEY]) == TEXT
    paragraphs = "one\n\ntwo\n\n\nthree\n"
    assert (
        open_note(sign_note(paragraphs, key=KEY, sign=PRIVATE.sign).encode(), [KEY]) == paragraphs
    )


def test_signatures_by_unknown_keys_do_not_count() -> None:
    cosigner = NoteKey("witness", OTHER.public_key())
    cosigned = NOTE + sign_note(TEXT, key=cosigner, sign=OTHER.sign).rpartition("\n\n")[2]
    assert open_note(cosigned.encode(), [KEY]) == TEXT
    assert open_note(cosigned.encode(), [cosigner]) == TEXT
    with pytest.raises(NoteError, match="not signed by a trusted key"):
        open_note(NOTE.encode(), [cosigner])
    with pytest.raises(NoteError, match="not signed by a trusted key"):
        open_note(NOTE.encode(), [NoteKey("another.name", KEY.public_key)])


def test_a_wrong_signature_in_a_known_name_spoils_the_note() -> None:
    forged = sign_note(TEXT, key=KEY, sign=OTHER.sign)
    with pytest.raises(NoteError, match="signature is wrong"):
        open_note(forged.encode(), [KEY])
    with pytest.raises(NoteError, match="signature is wrong"):
        open_note((NOTE + forged.rpartition("\n\n")[2]).encode(), [KEY])


@given(st.integers(0, len(NOTE.encode()) - 1), st.integers(1, 255))
def test_no_byte_of_a_note_can_be_changed(place: int, flipped: int) -> None:
    content = bytearray(NOTE.encode())
    content[place] ^= flipped
    with pytest.raises(NoteError):
        open_note(bytes(content), [KEY])


@given(st.integers(0, len(NOTE.encode()) - 1))
def test_no_note_can_be_cut_short(length: int) -> None:
    with pytest.raises(NoteError):
        open_note(NOTE.encode()[:length], [KEY])


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda t: (t + "\n\n— a b\n").encode()))
def test_what_is_no_note_is_refused(content: bytes) -> None:
    with pytest.raises(NoteError):
        open_note(content, [KEY])


def test_sizes_are_limited() -> None:
    line = NOTE.rpartition("\n\n")[2]
    assert open_note((NOTE + line * (MAX_SIGNATURES - 1)).encode(), [KEY]) == TEXT
    with pytest.raises(NoteError, match="more than"):
        open_note((NOTE + line * MAX_SIGNATURES).encode(), [KEY])
    large = sign_note("x" * MAX_NOTE_BYTES + "\n", key=KEY, sign=PRIVATE.sign)
    with pytest.raises(NoteError, match="larger"):
        open_note(large.encode(), [KEY])


def test_a_key_has_one_spelling() -> None:
    text = str(KEY)
    assert NoteKey.from_text(f" {text}\n") == KEY
    name, key_id, encoded = text.split("+", 2)
    raw = base64.b64decode(encoded)
    of_witness = base64.b64encode(b"\x04" + raw[1:]).decode()
    for other in (f"{name}+00000000+{encoded}", f"{name}+{key_id}+{of_witness}"):
        with pytest.raises(NoteError, match="not a verifier key of this kind"):
            NoteKey.from_text(other)


def test_a_cosignature_is_of_a_time_that_can_be() -> None:
    key = WitnessKey("witness", PRIVATE.public_key())

    def signed(time_s: int) -> bytes:
        return time_s.to_bytes(8) + PRIVATE.sign(cosigned(TEXT, time_s))

    key.verify(signed(2**63 - 1), TEXT)
    for wrong in (signed(2**63), signed(7)[:8], signed(7)[:5], b"", signed(7)[:-1]):
        with pytest.raises(InvalidSignature):
            key.verify(wrong, TEXT)
    with pytest.raises(InvalidSignature):
        key.verify((8).to_bytes(8) + signed(7)[8:], TEXT)


def test_base64_has_one_spelling() -> None:
    spare = NOTE[:-2].rstrip("=")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".index(spare[-1])
    twin = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[last ^ 1]
    other = NOTE.replace(spare, spare[:-1] + twin)
    assert other != NOTE
    with pytest.raises(NoteError):
        open_note(other.encode(), [KEY])


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\u2003b", "a\nb", "\u00a0"])
def test_names_that_would_not_survive_are_refused(name: str) -> None:
    with pytest.raises(NoteError):
        NoteKey(name, KEY.public_key)


@pytest.mark.parametrize("text", ["", "no newline", "tab\there\n", "\r\n"])
def test_texts_that_would_not_survive_are_refused(text: str) -> None:
    with pytest.raises(NoteError):
        sign_note(text, key=KEY, sign=PRIVATE.sign)


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
