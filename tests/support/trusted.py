"""What a verifier cannot check, and why. Everything else in a certificate is checked.

Paths are those of the statement's leaves; ``*`` matches any part. The form, the range and relations
of a listed field may still be checked.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True)
class Trusted:
    """One statement to take on trust.

    Attributes:
        paths: its fields.
        reason: why the bundle does not suffice to check it, and what would.
    """

    paths: tuple[str, ...]
    reason: str


TRUSTED: Final = (
    Trusted(
        ("predicate.model.name",),
        "A weight file does not know its model's name; `expunge download` compares it with what "
        "was asked for.",
    ),
    Trusted(
        ("predicate.model.version",),
        "A weight file does not know its number. Checked: 1 where a lineage begins, and since "
        "then as many releases as the history lists.",
    ),
    Trusted(
        ("predicate.target.epsilon",),
        "What the policy asked for. Checked: no more than that is guaranteed.",
    ),
    Trusted(
        (
            "predicate.forgotten.requests",
            "predicate.forgotten.records",
            "predicate.forgotten.before_training",
            "predicate.forgotten.excluded_records",
        ),
        "The operator's count: a record may be named twice. Checked: none exactly if its tree is "
        "empty, no more than that has commitments, and all of `records` are in the history or the"
        " group of a mechanism that depends on their number. With `--previous`: none is taken "
        "back.",
    ),
    Trusted(
        (
            "predicate.forgotten.covered.size",
            "predicate.forgotten.covered.root",
            "predicate.forgotten.excluded.size",
            "predicate.forgotten.excluded.root",
        ),
        "Commitments are salted. A receipt checks its own; with `--previous`, the trees begin "
        "with the older ones.",
    ),
    Trusted(
        (
            "predicate.forgotten.since_version",
            "predicate.forgotten.first",
            "predicate.forgotten.leaves",
        ),
        "Where the lineage began, and which commitments an exclusion is about. Checked: no later "
        "than the version; within the tree, and as many as requests and records allow; a "
        "receipt's are among them.",
    ),
    Trusted(
        ("predicate.previous_certificate",),
        "The earlier certificate is not in the bundle; it is in the log. Checked: null for a "
        "first one and for no other.",
    ),
    Trusted(
        ("predicate.times.started_at", "predicate.times.certified_at"),
        "A clock cannot be checked afterwards. Checked: begun before it was certified, certified "
        "before it was recorded in the log, recorded while the key counted.",
    ),
    Trusted(
        ("predicate.evaluation.*",),
        "The held-out records are not in the bundle, and no figure of an evaluation is guaranteed.",
    ),
    Trusted(
        ("predicate.software.*", "predicate.recomputable"),
        "Which programs ran, and whether they would make the same weights again. Where the "
        "records are, `expunge model recompute` shows it; nothing with noise is said to be "
        "recomputable.",
    ),
    Trusted(
        ("predicate.mechanism.tensors.*",),
        "That no other tensor was trained. Checked: the named ones are in the file, and as many "
        "numbers as were accounted for; of a linear head, no others.",
    ),
    Trusted(
        ("predicate.mechanism.frame.scale.*", "predicate.mechanism.frame.public_tensors*"),
        "Noise is measured in this frame, which follows from the architecture and from public "
        "weights.",
    ),
    Trusted(
        ("predicate.mechanism.parameters.records",),
        "How many records stood behind a sampling rate.",
    ),
    Trusted(
        ("predicate.mechanism.parameters.initial_clip",),
        "Model clipping without noise on its start does not depend on it. Elsewhere what follows "
        "from it is computed again.",
    ),
    Trusted(
        ("predicate.mechanism.parameters.history.recipe.radius",),
        "A radius that is larger than the weights ever were changes nothing. Checked: the weights"
        " are not outside.",
    ),
    Trusted(
        (
            "predicate.mechanism.parameters.regularisation",
            "predicate.mechanism.parameters.tolerance",
            "predicate.mechanism.parameters.feature_range",
            "predicate.mechanism.parameters.target_range",
            "predicate.mechanism.parameters.depth",
            "predicate.mechanism.parameters.smallest_leaf",
            "predicate.mechanism.parameters.shrinkage",
        ),
        "Which function of the retained records an exact head is: every one is exact. A ridge "
        "head's ranges, and how trees were grown, are compared with the file.",
    ),
    Trusted(
        ("predicate.members.*.trained_in", "predicate.members.*.out_since"),
        "Which version trained a member, or first left it out. Checked: one of its lineage, and a"
        " later one than its first for some member once records were forgotten; no tensor of a "
        "member that is out is in the file, which says the same. With `--previous`: a member has "
        "other tensors if and only if it was trained since, and is out or active for no older "
        "reason; with a receipt, each member of its records is out or was trained since that the "
        "older one does not account for, and a subject's records are all of one member.",
    ),
    Trusted(
        ("predicate.backbone", "predicate.backbone.*"),
        "Which public weights a version without guarantee started from. Elsewhere they are among "
        "the assumptions, which are compared.",
    ),
)


def is_trusted(path: str) -> bool:
    """Return whether a leaf, by its path such as ``predicate.model.name``, is taken on trust."""
    return any(fnmatchcase(path, pattern) for each in TRUSTED for pattern in each.paths)
