"""What a verifier cannot check; docs/verifying.md says why. All else in a certificate is checked.

Paths are those of the statement's leaves; ``*`` matches any part. The form, the range and relations
of a listed field may still be checked.
"""

from fnmatch import fnmatchcase
from typing import Final

TRUSTED: Final = (
    "predicate.model.name",
    "predicate.model.version",
    "predicate.target.epsilon",
    "predicate.forgotten.requests",
    "predicate.forgotten.records",
    "predicate.forgotten.before_training",
    "predicate.forgotten.excluded_records",
    "predicate.forgotten.covered.size",
    "predicate.forgotten.covered.root",
    "predicate.forgotten.excluded.size",
    "predicate.forgotten.excluded.root",
    "predicate.forgotten.since_version",
    "predicate.forgotten.first",
    "predicate.forgotten.leaves",
    "predicate.previous_certificate",
    "predicate.times.started_at",
    "predicate.times.certified_at",
    "predicate.evaluation.*",
    "predicate.software.*",
    "predicate.recomputable",
    "predicate.mechanism.tensors.*",
    "predicate.mechanism.frame.scale.*",
    "predicate.mechanism.frame.public_tensors*",
    "predicate.mechanism.parameters.records",
    "predicate.mechanism.parameters.initial_clip",
    "predicate.mechanism.parameters.history.recipe.radius",
    "predicate.mechanism.parameters.regularisation",
    "predicate.mechanism.parameters.tolerance",
    "predicate.mechanism.parameters.feature_range",
    "predicate.mechanism.parameters.target_range",
    "predicate.mechanism.parameters.depth",
    "predicate.mechanism.parameters.smallest_leaf",
    "predicate.mechanism.parameters.shrinkage",
    "predicate.members.*.trained_in",
    "predicate.members.*.out_since",
    "predicate.backbone",
    "predicate.backbone.*",
)


def is_trusted(path: str) -> bool:
    """Return whether a leaf, by its path such as ``predicate.model.name``, is taken on trust."""
    return any(fnmatchcase(path, pattern) for pattern in TRUSTED)
