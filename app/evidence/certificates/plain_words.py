"""A certificate's guarantee in plain words.

Every word comes from fields that a verifier recomputes; no field that is only ``trusted`` is
described as guaranteed. Numbers have four digits, rounded up in decimal from the number in the
statement.
"""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, Final, NamedTuple

from app.accounting.terms import Direction, Neighbours, Support
from app.domain.states import Basis
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.mechanisms.mechanism import Deterministic

_NEIGHBOURS = {
    Neighbours.ANY_START: (
        "starts the unlearning run from any other weights whatever; nothing is assumed about how "
        "they were trained"
    ),
    Neighbours.ZERO_OUT: (
        "ran the same training with the gradients of the forgotten records set to zero"
    ),
    Neighbours.REPLACEMENT: (
        "ran the same training with each forgotten record replaced by an arbitrary one"
    ),
    Neighbours.ADD_REMOVE: "ran the same training without the forgotten records",
}

_NOT_ADAPTIVE: Final = (
    "It holds if the requests were not chosen by looking at earlier releases of this model (the "
    "guarantee is not adaptive)."
)
_TELLING_EPSILON: Final = 20.0
_DIGITS: Final = 4
# Digits for e^epsilon before it is rounded up.
_EXACT: Final = Context(prec=50, rounding=ROUND_CEILING)


def guarantee_in_words(predicate: Mapping[str, Any]) -> list[str]:
    """Return the guarantee as paragraphs."""
    if predicate["basis"] == Basis.RELEASED_AS_TRAINED:
        return [
            "**None.** No record is protected by this version: it was published as it was trained, "
            "and nothing was unlearned yet."
        ]
    if predicate["basis"] == Basis.EXCLUDED_FROM_TRAINING:
        return [
            "**Exact: ε = 0, δ = 0.** No gradient behind these weights read the records of this "
            "request: the weights were made without them.",
            *([_NOT_ADAPTIVE] if "trained_anew" in predicate else []),
        ]
    guarantee = predicate["guarantee"]
    if guarantee["kind"] == "exact":
        first = (
            "**Exact: ε = 0, δ = 0.** The weights were made without the forgotten records: this "
            "release and the reference are distributed alike."
        )
    else:
        first = _comparison(guarantee)
    return [
        first,
        f"The reference is: {guarantee['reference']}. "
        f"Neighbouring relation `{guarantee['neighbouring_relation']}`: the reference world "
        f"{_NEIGHBOURS[Neighbours(guarantee['neighbouring_relation'])]}.",
        _advantage(guarantee),
        _adaptivity(guarantee),
    ]


class Promise(NamedTuple):
    """A guarantee as the person is told of it who asked to be forgotten.

    Attributes:
        right: of 100 guesses, at even chances, whether the person's records were ever in the model:
            how many are right at most; None where it was made without them.
        adaptive: whether it holds although requests may depend on earlier releases.
    """

    right: int | None
    adaptive: bool


def promise(predicate: Mapping[str, Any]) -> Promise:
    """Return what a request's certificate promises the person."""
    if predicate["basis"] == Basis.EXCLUDED_FROM_TRAINING:
        return Promise(None, "trained_anew" not in predicate)
    guarantee = predicate["guarantee"]
    if guarantee["kind"] == "exact":
        return Promise(None, guarantee["adaptive"])
    return Promise(math.ceil(50 * (1 + guarantee["attacker_advantage"])), guarantee["adaptive"])


def recomputable_in_words(predicate: Mapping[str, Any]) -> list[str]:
    """Say who can compute the weights again, and with what; nothing if nobody can."""
    if "recomputable" not in predicate:
        return []
    head = issubclass(mechanism_named(predicate["mechanism"]["name"]), Deterministic)
    seed = "" if head else " and the seed, which the operator keeps with the weights,"
    return [
        "Whether the run was as stated can be checked: the operator states that anyone who holds "
        f"the remaining records{seed} can compute this model again, bit for bit, with: "
        f"{predicate['software']['arithmetic']}."
    ]


def limits_in_words(predicate: Mapping[str, Any]) -> list[str]:
    """Return what the guarantee does not cover, in one or two sentences each."""
    limits = [
        f"{predicate['scope']} Nor does it reach copies of earlier versions that are already in "
        "other hands, or predictions that were made with them.",
        "It says nothing about records that were not forgotten.",
        "It says nothing about how good the model is. The evaluation below is outside the "
        "guarantee.",
        "It is the operator's signed statement. Verification shows who signed it, for which file, "
        "and that all it claims follows from what it says was done; it cannot watch the run.",
    ]
    if predicate["basis"] == Basis.RELEASED_AS_TRAINED:
        return limits[1:]
    return limits


def assumptions_in_words(predicate: Mapping[str, Any]) -> list[str]:
    """Return the theorem's assumptions, each with who is responsible for it."""
    support = {
        Support.ENFORCED: "enforced by the service's code",
        Support.ASSERTED: "the operator's word",
    }
    return [
        f"{assumption['statement']} ({support[Support(assumption['support'])]})"
        for assumption in predicate.get("assumptions", [])
    ]


def asserted_in_words(predicate: Mapping[str, Any]) -> list[str]:
    """Return the assumptions that rest on the operator's word."""
    return [
        str(assumption["statement"])
        for assumption in predicate.get("assumptions", [])
        if assumption["support"] == Support.ASSERTED
    ]


def _comparison(guarantee: Mapping[str, Any]) -> str:
    epsilon, delta = guarantee["epsilon"], guarantee["delta"]
    factor = f" ({_factor(epsilon)})" if epsilon < _TELLING_EPSILON else ""
    stated = (
        f"**(ε, δ) = ({_up(epsilon)}, {_up(delta)}).** For every set of possible releases, the "
        f"probability that this release falls into it is at most e^ε{factor} times its "
        "probability in the reference world, plus δ"
    )
    if guarantee["direction"] == Direction.BOTH:
        return f"{stated}; the same holds with the two worlds exchanged."
    return (
        f"{stated}. This holds in one direction only: the statement with the two worlds exchanged "
        "is not made."
    )


def _advantage(guarantee: Mapping[str, Any]) -> str:
    text = (
        "Whatever test is used to tell from this release which of the two worlds is real, its "
        "true-positive rate exceeds its false-positive rate by at most "
        f"{_up(guarantee['attacker_advantage'])}."
    )
    bits = guarantee.get("surviving_information_bits")
    if bits is None or guarantee["neighbouring_relation"] != Neighbours.ANY_START:
        return text
    return f"{text} The release tells at most {_up(bits)} bits about the weights it started from."


def _adaptivity(guarantee: Mapping[str, Any]) -> str:
    if guarantee["adaptive"] and guarantee["kind"] == "exact":
        return (
            "Requests may have been chosen by looking at earlier releases: for the same requests "
            "this release is that of a service which never saw the forgotten records. What the "
            "choice of requests itself gives away, by whom else it names, is not covered."
        )
    if guarantee["adaptive"]:
        return (
            "Requests may have been chosen by looking at earlier releases; "
            f"{guarantee['releases_before']} earlier releases are accounted for."
        )
    return _NOT_ADAPTIVE


def _factor(epsilon: float) -> str:
    factor = _EXACT.exp(Decimal(repr(epsilon)))  # rounded to nearest, independent of the context
    return _spelt(factor if epsilon == 0 else _EXACT.next_plus(factor))


def _up(bound: float) -> str:
    """Return the bound in at most four digits: exactly if possible, else rounded up."""
    return _spelt(Decimal(repr(bound)))


def _spelt(bound: Decimal) -> str:
    rounded = Context(prec=_DIGITS, rounding=ROUND_CEILING).plus(bound)
    return f"{float(rounded):.{_DIGITS}g}"
