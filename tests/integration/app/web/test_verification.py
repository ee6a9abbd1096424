"""Certificates checked by the browser: what holds, and what must not.

That the golden ones hold is fast enough for every run; the others, one page each, are slow.
"""

import base64
import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from playwright.sync_api import Browser, Page

from app.cli.application import create_app
from app.domain.errors import VerificationError
from app.evidence.certificates.bundle import bundle_json
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.trusted_keys import TrustedKey, TrustedKeys
from app.evidence.certificates.verification import verify
from app.services import Services
from tests.support import browser as browsers
from tests.support import trees
from tests.support.bundles import ORIGIN, SmallLog, signed_payload
from tests.support.statements import synthetic
from tests.support.trust import trust
from tests.support.weights import WEIGHTS
from tests.support.workshop import Workshop

pytestmark = [
    pytest.mark.slow,  # they start a browser
    pytest.mark.skipif(browsers.CHROMIUM is None, reason=browsers.MISSING),
]

GOLDEN = Path(__file__).parents[3] / "golden" / "v1"
CASES = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.certificate.json"))
KEYS = (GOLDEN / "trusted-keys.json").read_bytes()
Document = dict[str, Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, services: Services, admin_key: str) -> Iterator[Page]:
    with browsers.served(create_app(services)) as address:
        page = browser.new_page(base_url=address)
        browsers.log_in(page, address, admin_key)
        page.goto("/verify")
        yield page
        page.close()


def _golden(case: str) -> tuple[bytes, bytes]:
    return (
        (GOLDEN / f"{case}.certificate.json").read_bytes(),
        (GOLDEN / f"{case}.safetensors").read_bytes(),
    )


def _file(content: bytes) -> dict[str, Any]:
    return {"name": "file", "mimeType": "application/octet-stream", "buffer": content}


def _check(page: Page, *, weights: bytes, bundle: bytes | None = None, keys: bytes | None = None):
    """Fill in the form and verify; return {step: state} and the verdict."""
    for name, content in (("bundle", bundle), ("weights", weights), ("keys", keys)):
        if content is not None:
            page.set_input_files(f"#{name}", _file(content))
    page.get_by_role("button", name="Verify").click()
    page.wait_for_selector(".verdict")
    rows = page.locator("#verification li").all()
    steps = {row.get_attribute("data-step"): row.get_attribute("data-state") for row in rows}
    return steps, page.locator("#verification").inner_text()


def test_golden_certificates_hold(page: Page) -> None:
    assert CASES
    for case in CASES:
        bundle, weights = _golden(case)

        steps, verdict = _check(page, bundle=bundle, weights=weights, keys=KEYS)

        assert (case, steps) == (
            case,
            {
                "keys": "ok",
                "bundle": "ok",
                "signature": "ok",
                "statement": "ok",
                "digest": "ok",
                "guarantee": "not checked",
                "log": "ok",
            },
        )
        assert "Signature, weights and place in the log hold." in verdict
        assert "Not checked: that the guarantee follows" in verdict
        assert "The keys were yours." in verdict


def _resigned(document: Document, change: Callable[[Document], None]) -> None:
    """Change the statement without the key that signed it."""
    statement = json.loads(base64.b64decode(document["envelope"]["payload"]))
    change(statement)
    payload = base64.b64encode(json.dumps(statement).encode()).decode()
    document["envelope"]["payload"] = payload


def _flip(text: str) -> str:
    raw = bytearray(base64.b64decode(text))
    raw[-1] ^= 1
    return base64.b64encode(raw).decode()


def _looser(text: str) -> str:
    """Spell the same content in another way: base64 has spare bits."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    body = text.rstrip("=")
    assert len(body) < len(text)
    return body[:-1] + alphabet[alphabet.index(body[-1]) ^ 1] + "=" * (len(text) - len(body))


def _set(path: str, value: object) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        *parents, name = [int(part) if part.isdigit() else part for part in path.split(".")]
        place: Any = document
        for parent in parents:
            place = place[parent]
        place[name] = value(place[name]) if callable(value) else value

    return change


def _larger(note: str) -> str:
    origin, size, rest = note.split("\n", 2)
    return f"{origin}\n{int(size) + 1}\n{rest}"


TAMPERED: dict[str, tuple[str, Callable[[Document], None]]] = {
    "a weaker model": (
        "signature",
        lambda d: _resigned(d, lambda s: s["predicate"]["guarantee"].update(epsilon=0.1)),
    ),
    "another subject": (
        "signature",
        lambda d: _resigned(d, lambda s: s["subject"][0]["digest"].update(sha256="0" * 64)),
    ),
    "a flipped signature": ("signature", _set("envelope.signatures.0.sig", _flip)),
    "another key id": ("signature", _set("envelope.signatures.0.keyid", "0" * 64)),
    "another payload type": ("signature", _set("envelope.payloadType", "text/plain")),
    "no signature": ("bundle", _set("envelope.signatures", [])),
    "two signatures": ("bundle", _set("envelope.signatures", lambda old: old * 2)),
    "another spelling": ("bundle", _set("envelope.signatures.0.sig", _looser)),
    "a foreign field": ("bundle", _set("extra", 1)),
    "another media type": ("bundle", _set("media_type", "application/json")),
    "an index as text": ("bundle", _set("log.index", str)),
    "a negative index": ("bundle", _set("log.index", -1)),
    "a short hash": ("bundle", _set("log.inclusion.0", "AAAA")),
    "an endless proof": ("bundle", _set("log.inclusion", lambda old: old * 100)),
    "another index": ("log", _set("log.index", lambda old: old ^ 1)),
    "an index outside": ("log", _set("log.index", 10**6)),
    "a flipped sibling": ("log", _set("log.inclusion.0", _flip)),
    "a proof cut short": ("log", _set("log.inclusion", lambda old: old[:-1])),
    "a proof too long": ("log", _set("log.inclusion", lambda old: [*old, old[0]])),
    "another entry": ("log", _set("log.entry", lambda old: old.replace("unlearned", "retrained"))),
    "an entry about something else": (
        "log",
        _set("log.entry", lambda old: old.replace("certificate.issued", "request.accepted")),
    ),
    "a larger log": ("log", _set("log.checkpoint", _larger)),
    "another root": (
        "log",
        _set("log.checkpoint", lambda old: old.replace(old.split("\n")[2], "A" * 43 + "=")),
    ),
    "another log's name": (
        "log",
        _set("log.checkpoint", lambda old: old.replace("expunge/", "expunge/x")),
    ),
    "a checkpoint without signature": (
        "log",
        _set("log.checkpoint", lambda old: old.partition("\n\n")[0] + "\n"),
    ),
}


def test_another_certificates_place_in_the_log_fails(page: Page) -> None:
    bundle, weights = _golden("gradient_clipping")
    other, _ = _golden("model_clipping")
    mixed = json.loads(bundle) | {"log": json.loads(other)["log"]}

    steps, verdict = _check(page, bundle=json.dumps(mixed).encode(), weights=weights, keys=KEYS)

    assert steps["digest"] == "ok"
    assert steps["log"] == "failed"
    assert "the entry is about something else" in verdict


def test_an_entry_of_another_basis_fails(page: Page) -> None:
    signer = StatementSigner(Ed25519PrivateKey.generate())
    case = synthetic()["as_trained"]
    bundle = json.dumps(signed_payload(case.payload, signer, basis="unlearned")).encode()
    keys = TrustedKeys(ORIGIN, (TrustedKey(signer.public_key),)).to_bytes()
    with pytest.raises(VerificationError, match="about something else"):
        verify(bundle=bundle, weights=case.weights, trusted=keys)

    steps, verdict = _check(page, bundle=bundle, weights=case.weights, keys=keys)

    assert (steps["digest"], steps["log"]) == ("ok", "failed")
    assert "the entry is about something else" in verdict


def test_tampered_bundles_fail_at_the_step_that_the_command_names(page: Page, tmp_path) -> None:
    bundle, weights = _golden("gradient_clipping")
    file = tmp_path / "weights"
    file.write_bytes(weights)
    for name, (step, change) in TAMPERED.items():
        document = copy.deepcopy(json.loads(bundle))
        change(document)
        assert document != json.loads(bundle), name
        tampered = json.dumps(document).encode()
        with pytest.raises(VerificationError) as refusal:
            verify(bundle=tampered, weights=file, trusted=KEYS)
        assert (name, refusal.value.step) == (name, step)

        steps, verdict = _check(page, bundle=tampered, weights=weights, keys=KEYS)

        assert (name, [s for s, state in steps.items() if state == "failed"]) == (name, [step])
        assert list(steps)[-1] == step
        assert "Do not trust this certificate" in verdict
        assert "hold." not in verdict


def test_what_is_no_bundle_fails(page: Page) -> None:
    for bundle in (b"", b"{}", b"[]", b"null", b"\xff", b'{"log":' * 5000):
        steps, _ = _check(page, bundle=bundle, weights=WEIGHTS, keys=KEYS)

        assert (bundle, steps) == (bundle, {"keys": "ok", "bundle": "failed"})


NO_KEYS = [
    b"not a key",
    b"{}",
    b'{"keys":[]}',
    json.loads(KEYS)["keys"][0]["pem"].encode(),
    # The service's other key, for weight files: ECDSA, and not for certificates.
    json.dumps(json.loads(KEYS) | {"keys": json.loads(KEYS)["keys"][1:]}).encode(),
    KEYS.replace(b'"purpose":"model signatures"', b'"purpose":"certificates"'),
    KEYS.replace(b'"origin"', b'"origin":"x","origin"'),
    KEYS.replace(b'"valid_until"', b'"valid_until":null,"valid\\u005funtil"'),
    KEYS.replace(b'"compromised_since"', b'"compromised"'),
    json.dumps(json.loads(KEYS) | {"more": 1}).encode(),
]


def test_what_is_no_key_fails(page: Page) -> None:
    bundle, weights = _golden(CASES[0])
    for keys in NO_KEYS:
        steps, _ = _check(page, bundle=bundle, weights=weights, keys=keys)

        assert (keys, steps) == (keys, {"keys": "failed"})


def test_a_checkpoint_by_a_key_that_has_ended_fails(page: Page) -> None:
    bundle, weights = _golden(CASES[0])
    for bound in ("valid_until", "compromised_since"):
        document = json.loads(KEYS)
        document["keys"][0][bound] = "2001-01-01T00:00:00+00:00"
        keys = json.dumps(document).encode()

        steps, verdict = _check(page, bundle=bundle, weights=weights, keys=keys)

        assert steps["log"] == "failed", bound
        assert "a retired key: download the bundle again" in verdict


def test_a_retired_key_counts_for_what_was_recorded_in_its_time(page: Page) -> None:
    """As the command decides, for a bundle whose checkpoint is by the key in use."""
    now = datetime.now(UTC)
    old, new = (StatementSigner(Ed25519PrivateKey.generate()) for _ in range(2))
    case = synthetic()["as_trained"]
    log = SmallLog(new)
    recorded_at = now - timedelta(days=2)
    index = log.append(case.payload, recorded_at=recorded_at.isoformat())
    bundle = json.dumps(
        bundle_json(envelope=old.sign_payload(case.payload), log=log.proof(index))
    ).encode()
    for end, compromised, holds in (
        (timedelta(days=1), None, True),
        (timedelta(days=3), None, False),
        (timedelta(days=1), timedelta(days=1.5), True),
        (timedelta(days=1), timedelta(days=2.5), False),
    ):
        retired = TrustedKey(
            old.public_key,
            valid_until=now - end,
            compromised_since=None if compromised is None else now - compromised,
        )
        keys = TrustedKeys(ORIGIN, (TrustedKey(new.public_key), retired)).to_bytes()
        if holds:
            verify(bundle=bundle, weights=case.weights, trusted=keys)
        else:
            with pytest.raises(VerificationError, match="its key was not valid"):
                verify(bundle=bundle, weights=case.weights, trusted=keys)
        steps, _ = _check(page, bundle=bundle, weights=case.weights, keys=keys)
        assert steps["log"] == ("ok" if holds else "failed")


def test_a_field_that_is_named_twice_is_refused(page: Page) -> None:
    bundle, weights = _golden(CASES[0])
    for honest, twice in (
        (b'"media_type"', b'"log": {}, "media_type"'),
        (b'"index"', b'"ind\\u0065x": 0, "index"'),
        (b'"keyid"', b'"keyid": "", "keyid"'),
    ):
        assert honest in bundle
        doubled = bundle.replace(honest, twice, 1)
        steps, _ = _check(page, bundle=doubled, weights=weights, keys=KEYS)
        assert steps == {"keys": "ok", "bundle": "failed"}


def test_other_weights_fail(page: Page) -> None:
    bundle, weights = _golden("gradient_clipping")
    for wrong in (b"", weights[:-1], weights + b"\0", bytes([weights[0] ^ 1]) + weights[1:]):
        steps, verdict = _check(page, bundle=bundle, weights=wrong, keys=KEYS)

        assert steps["digest"] == "failed"
        assert "these are not the weights that were certified" in verdict


def test_a_version_is_verified_with_the_services_own_keys(
    page: Page, workshop: Workshop, services: Services
) -> None:
    workshop.define()
    workshop.work()
    page.goto("/models/model/versions/1")

    steps, verdict = _check(page, weights=WEIGHTS)

    assert set(steps.values()) == {"ok", "not checked"}
    assert "model version 1, basis certified release" in verdict
    assert "compare them with a copy from another channel" in verdict
    assert _check(page, weights=b"others")[0]["digest"] == "failed"
    stranger = trust(StatementSigner(Ed25519PrivateKey.generate()))
    assert _check(page, weights=WEIGHTS, keys=stranger)[0]["signature"] == "failed"


def test_no_file_leaves_the_browser(page: Page) -> None:
    bundle, weights = _golden(CASES[0])
    sent: list[str] = []
    page.on("request", lambda request: sent.append(f"{request.method} {request.url}"))

    _check(page, bundle=bundle, weights=weights, keys=KEYS)

    # The page's own picture may come late.
    assert [one for one in sent if not one.endswith("/static/icon.svg")] == []


def test_the_streamed_digest_is_sha256(page: Page) -> None:
    lengths = [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 4 * 1024**2 - 1, 4 * 1024**2 + 65]
    contents = [os.urandom(length) for length in lengths]
    page.evaluate("() => { window.found = []; }")
    for content in contents:
        page.set_input_files("#weights", _file(content))
        digest = page.evaluate(
            """async () => {
                const { digestOfFile } = await import("/static/sha256.js");
                const { hex } = await import("/static/bytes.js");
                return hex(await digestOfFile(document.getElementById("weights").files[0]));
            }"""
        )
        assert digest == hashlib.sha256(content).hexdigest(), len(content)


def test_pieces_of_any_size_give_the_same_digest(page: Page) -> None:
    content = bytes(range(256)) * 2
    digests = page.evaluate(
        """async () => {
            const { Sha256 } = await import("/static/sha256.js");
            const { hex } = await import("/static/bytes.js");
            const content = Uint8Array.from({ length: 512 }, (_, index) => index % 256);
            return Array.from({ length: 130 }, (_, size) => {
                const hash = new Sha256();
                for (let at = 0; at < 512; at += size + 1) {
                    hash.update(content.subarray(at, at + size + 1));
                }
                return hex(hash.digest());
            });
        }"""
    )

    assert set(digests) == {hashlib.sha256(content).hexdigest()}


def test_inclusion_proofs_of_every_small_tree_hold_and_no_other(page: Page) -> None:
    cases = []
    for size in range(1, 18):
        leaves = [bytes([number]) for number in range(size)]
        for index in range(size):
            proof = [h.hex() for h in trees.path(index, leaves)]
            cases.append([index, size, proof, trees.root(leaves).hex()])
    page.evaluate("cases => { window.cases = cases; }", cases)
    wrong = page.evaluate(
        """async () => {
            const { checkInclusion, leafHash } = await import("/static/transparency.js");
            const octet = (pair) => parseInt(pair, 16);
            const bytes = (text) => Uint8Array.from(text.match(/../g), octet);
            const holds = (index, size, proof, root, leaf) => {
                const facts = { leaf: leafHash(String.fromCharCode(leaf)), index, size };
                try {
                    checkInclusion({ ...facts, proof: proof.map(bytes), root: bytes(root) });
                    return true;
                } catch { return false; }
            };
            const wrong = [];
            for (const [index, size, proof, root] of window.cases) {
                if (!holds(index, size, proof, root, index)) wrong.push(["refused", index, size]);
                for (let leaf = 0; leaf < size; leaf += 1) {
                    if (leaf === index) continue;
                    if (holds(index, size, proof, root, leaf)) wrong.push(["leaf", index, size]);
                    if (holds(leaf, size, proof, root, index)) wrong.push(["index", index, size]);
                }
                for (const other of [[...proof, root], proof.slice(1), proof.slice(0, -1)]) {
                    if (other.length === proof.length) continue;
                    if (holds(index, size, other, root, index)) wrong.push(["proof", index, size]);
                }
            }
            return wrong;
        }"""
    )

    assert wrong == []
