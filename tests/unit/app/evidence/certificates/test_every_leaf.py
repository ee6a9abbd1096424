"""Whatever a certificate says is checked, or listed as trusted: every leaf, changed to anything.

Each statement is changed in one place, signed with the test's key and put into the test's log, so
that nothing but what it says can be wrong with it. Verification must fail, unless all that was
changed is on the short list of what a verifier trusts. Samples of the changes are tried, with one
of every leaf at least, once for all statements of a kind: ``make test-nightly`` tries more than
``make test``, ``FUZZ_FACTOR=10`` all.
"""

import fnmatch
import json
import math
import os
import pickle
import zlib
from collections.abc import Iterator
from copy import copy
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.accounting.terms import Direction, Neighbours, Support
from app.domain.errors import VerificationError
from app.domain.states import Basis
from app.evidence.certificates import verification
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.statement import claims_of
from app.evidence.certificates.verification import RELATIVE, check_statement, verify
from app.planning.mechanisms import catalogue
from app.planning.mechanisms.mechanism import Mechanism
from tests.support.bundles import signed_payload
from tests.support.statements import cases
from tests.support.trust import trust
from tests.support.trusted import TRUSTED, is_trusted

SIGNER = StatementSigner(Ed25519PrivateKey.from_private_bytes(b"k" * 32))
KEYS = trust(SIGNER)
FEWEST_VARIANTS = 100_000
# One change of so many is tried.
SAMPLED = 200
SAMPLED_NIGHTLY = max(1, 10 // int(os.environ.get("FUZZ_FACTOR", "1")))
MECHANISMS = 15
NAMES = sorted(cases())

Path = tuple[str | int, ...]
WORDS = (
    *catalogue.MECHANISMS,
    *(name.value for words in (Neighbours, Support, Direction, Basis) for name in words),
    *("gaussian", "renyi", "point", "profile", "exact", "none"),
    *("initialisation_mean", "public_weights"),
)
NUMBERS = (0, 1, -1, 2, 0.5, 1e-300, 1e9, 10**400, math.nan, math.inf, -math.inf)
FOREIGN = (None, True, False, "", "x", "1", "true", "5a" * 32, [], {}, [0], {"x": 0})


@pytest.fixture(scope="module", autouse=True)
def _claims_once() -> Iterator[None]:
    """Compute the claims for each set of parameters once: most changes leave them alone."""
    computed = cache(lambda arguments: claims_of(**pickle.loads(arguments)))

    def once(mechanism: Mechanism, **others: Any) -> dict[str, Any]:
        return computed(pickle.dumps({"mechanism": mechanism, **others}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "claims_of", once)
        yield


@cache
def passing(name: str, *, every: int) -> tuple[int, tuple[frozenset[str], ...]]:
    """Return how many variants a statement has, and which changes of leaves were accepted.

    One variant of ``every`` is tried, the first ones of each node, if no statement before says the
    same, and slowly all of what is trusted.
    """
    case, count, accepted = cases()[name], 0, []
    for path, changed, is_first in variants(name):
        count += 1
        sampled = zlib.crc32(f"{name} {count}".encode()) % every == 0
        wanted = sampled or (every == SAMPLED_NIGHTLY and _is_part_of_what_is_trusted(path))
        is_new = every == SAMPLED_NIGHTLY or _said_first_by()[_said(name, path)] == name
        if not (wanted or (is_first and is_new)):
            continue
        if _holds(changed, case.weights):
            accepted.append(frozenset(_changes(case.statement, changed)))
    return count, tuple(accepted)


@cache
def _said_first_by() -> dict[tuple[str, Path], str]:
    """Return the first statement that says something; of each mechanism, what it says of itself."""
    found: dict[tuple[str, Path], str] = {}
    for name in NAMES:
        for path, _ in _nodes(cases()[name].statement):
            found.setdefault(_said(name, path), name)
    return found


def _said(name: str, path: Path) -> tuple[str, Path]:
    predicate = cases()[name].statement["predicate"]
    of_itself = path[:2] in (("predicate", "mechanism"), ("predicate", "guarantee"))
    named = predicate["mechanism"]["name"] if of_itself and "mechanism" in predicate else ""
    return f"{predicate.get('basis')} {named}", path


def _is_part_of_what_is_trusted(path: Path) -> bool:
    words = ".".join(map(str, path))
    return is_trusted(words) or any(each.startswith(f"{words}.") for each in TRUSTED)


def not_trusted(name: str, *, every: int) -> set[str]:
    """Return the leaves that were changed and accepted without being on the list."""
    _, accepted = passing(name, every=every)
    return {path for paths in accepted for path in paths if not is_trusted(path)}


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_statement_is_refused_or_changed_in_what_is_trusted(name: str) -> None:
    """What passes with a change that is not trusted is printed, path by path."""
    assert _holds(cases()[name].statement, cases()[name].weights)
    assert not_trusted(name, every=SAMPLED) == set()


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_every_changed_statement_is_refused_or_changed_in_what_is_trusted(name: str) -> None:
    assert _holds(cases()[name].statement, cases()[name].weights)
    assert not_trusted(name, every=SAMPLED_NIGHTLY) == set()


def test_every_mechanism_has_statements() -> None:
    predicates = [case.statement["predicate"] for case in cases().values()]
    found = {each["mechanism"]["name"] for each in predicates if "mechanism" in each}
    assert found == set(catalogue.MECHANISMS)
    assert len(found) == MECHANISMS


@pytest.mark.nightly
def test_there_are_many_variants(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {name: passing(name, every=SAMPLED_NIGHTLY)[0] for name in NAMES}
    with capsys.disabled():
        print(f"\n{sum(counts.values())} variants of {len(counts)} statements")
    assert sum(counts.values()) > FEWEST_VARIANTS


@pytest.mark.nightly
def test_the_list_of_what_is_trusted_holds_nothing_that_is_checked() -> None:
    """Each path of it stands for some change that passes."""
    passed = [passing(name, every=SAMPLED_NIGHTLY)[1] for name in NAMES]
    accepted = {path for changes in passed for paths in changes for path in paths}
    assert [each for each in TRUSTED if not fnmatch.filter(accepted, each)] == []


def variants(name: str) -> Iterator[tuple[Path, dict[str, Any], bool]]:
    """Yield where the statement was changed, the result, and if it is a node's first change.

    Each change once; of what has parts the first two: one part more, and nothing at all.
    """
    original = cases()[name].statement
    for path, value in _nodes(original):
        seen = {_spelt(value)}
        firsts = 3 if isinstance(value, dict | list) else 2
        fitting = WORDS if isinstance(value, str) else NUMBERS
        for other in (*_near(value), *FOREIGN, *fitting, *_elsewhere(name, path)):
            if _spelt(other) not in seen and not _equal(other, value):
                seen.add(_spelt(other))
                yield path, _with(original, path, other), len(seen) <= firsts
        if path and isinstance(path[-1], str):
            yield path, _with(original, path, None, remove=True), False


def _nodes(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if path:
        yield path, node
    inner = dict(enumerate(node)) if isinstance(node, list) else node
    for key, child in inner.items() if isinstance(inner, dict) else ():
        yield from _nodes(child, (*path, key))


def _near(value: Any) -> Iterator[Any]:
    """Yield what one might write in place of a value."""
    if isinstance(value, bool):
        yield from (not value, int(value))
    elif isinstance(value, int | float):
        yield from (value + 1 if isinstance(value, int) else value * 1.001, value / 2, value * 2)
        yield from (-value, value + 1, value - 1, str(value), value * 1.001, value * 0.999, [value])
        yield from (value // 2, float(value)) if isinstance(value, int) else (math.floor(value),)
    elif isinstance(value, str):
        yield from (value[:-1], value + "x", value.upper(), value[::-1], [value], f"{value}\n")
        yield from _other_moments(value)
    elif isinstance(value, list):
        yield from (value[:-1], None, value[1:], value + value[-1:], value[::-1])
        yield dict.fromkeys("ab")
    elif isinstance(value, dict):
        yield from (value | {"extra": 1}, None, list(value), dict(list(value.items())[:-1]))


def _other_moments(text: str) -> Iterator[str]:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return
    for days in (-1, 1, 400 * 365):
        yield (moment + timedelta(days=days)).isoformat()
    yield (moment + timedelta(seconds=1)).isoformat()
    yield moment.replace(tzinfo=None).isoformat()


def _elsewhere(name: str, path: Path) -> Iterator[Any]:
    """Yield what the other statements have in the same place; a whole one would be no lie."""
    if path == ("predicate",):
        return
    for other in NAMES:
        node: Any = cases()[other].statement
        try:
            for key in path:
                node = node[key]
        except (KeyError, IndexError, TypeError):
            continue
        if other != name:
            yield node


def _with(original: Any, path: Path, value: Any, *, remove: bool = False) -> dict[str, Any]:
    """Return the statement with a change; what is beside the path is shared with the original."""
    changed = node = copy(original)
    for key in path[:-1]:
        node[key] = copy(node[key])
        node = node[key]
    node[path[-1]] = value
    if remove:
        del node[path[-1]]
    return dict(changed)


def _holds(statement: dict[str, Any], weights: bytes) -> bool:
    payload = json.dumps(statement).encode()
    try:
        check_statement(payload, weights=weights)  # what these steps refuse needs no signature
        bundle = signed_payload(payload, SIGNER, others=0)
        verify(bundle=json.dumps(bundle).encode(), weights=weights, trusted=KEYS)
    except VerificationError:
        return False
    return True


def _changes(original: Any, changed: Any, path: str = "") -> set[str]:
    """Return the paths of all leaves in which two documents differ."""
    if isinstance(original, dict) and isinstance(changed, dict):
        pairs = {key: (original.get(key), changed.get(key)) for key in original | changed}
    elif isinstance(original, list) and isinstance(changed, list):
        length = max(len(original), len(changed))
        pairs = {at: (_at(original, at), _at(changed, at)) for at in range(length)}
    elif isinstance(changed, list) and len(changed) == 1:  # a schedule of one step
        return _changes(original, changed[0], path)
    else:
        return set() if _equal(original, changed) else {path}
    inner = (_changes(*both, f"{path}.{key}".lstrip(".")) for key, both in pairs.items())
    return set().union(*inner)


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


def _equal(one: Any, other: Any) -> bool:
    """Compare as a verifier does: a number is no boolean, 1 is 1.0, and floats are rounded."""
    numbers = (int, float)
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    if type(one) is float and isinstance(other, numbers) and abs(other) < 1e300:
        return math.isclose(one, other, rel_tol=RELATIVE)
    return bool(one == other)


def _spelt(value: Any) -> str:
    return f"{type(value).__name__} {json.dumps(value, sort_keys=True)}"
