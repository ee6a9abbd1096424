"""What a weight file says of itself must be what its certificate says."""

from copy import deepcopy
from dataclasses import replace

import pytest
import safetensors.numpy

from app.domain.architectures import ArchitectureSpec, FeatureLayer
from app.domain.description import METADATA_NAME, BackboneDescription, ModelDescription
from app.domain.errors import VerificationError
from app.evidence.certificates.verification import check_statement
from app.evidence.certificates.weights_file import opened, tensors_sha256
from tests.support.described import DESCRIPTIONS
from tests.support.specs import classification
from tests.support.statements import FROZEN, Case, digest_of, synthetic

PLAIN = replace(DESCRIPTIONS["mlp"], model="model", version=2)
ON_BACKBONE = replace(
    PLAIN,
    architecture=ArchitectureSpec(name="linear_head"),
    task=classification(3, PLAIN.schema),
    backbone=BackboneDescription(
        name=FROZEN.name,
        sha256=FROZEN.sha256,
        frozen=True,
        architecture=ArchitectureSpec(name="logistic"),
        classes=3,
    ),
)


def _checked(case: Case, metadata: dict[str, str]) -> str:
    """Check a statement about the same weights in a file that says more; return what is found."""
    findings: dict[str, str] = {}
    content = safetensors.numpy.save(safetensors.numpy.load(case.weights), metadata=metadata)
    statement = deepcopy(case.statement)
    statement["subject"][0]["digest"]["sha256"] = digest_of(content)
    check_statement(
        Case(statement, content).payload,
        weights=content,
        report=lambda step: findings.update({step.name: step.finding}),
    )
    return findings["weights"]


@pytest.mark.parametrize(
    ("case", "description"),
    [
        ("output_perturbation", PLAIN),
        ("retraining", PLAIN),
        ("tracked_release_frozen", ON_BACKBONE),
    ],
)
def test_a_file_may_say_what_its_certificate_says(case: str, description: ModelDescription) -> None:
    assert "NOT COMPARED" not in _checked(synthetic()[case], description.to_metadata())


@pytest.mark.parametrize("case", ["output_perturbation", "retraining", "tracked_release_frozen"])
def test_of_a_file_that_says_nothing_is_told_that_nothing_was_compared(case: str) -> None:
    assert _checked(synthetic()[case], {}).endswith(
        "; NOT COMPARED: the file does not say which model it is"
    )


@pytest.mark.parametrize(
    ("case", "description"),
    [
        ("output_perturbation", replace(PLAIN, version=1)),
        ("output_perturbation", replace(PLAIN, model="other")),
        ("output_perturbation", ON_BACKBONE),
        ("tracked_release_frozen", PLAIN),
        (
            "tracked_release_frozen",
            replace(ON_BACKBONE, backbone=replace(ON_BACKBONE.backbone, sha256="0" * 64)),
        ),
        (
            "tracked_release_frozen",
            replace(ON_BACKBONE, backbone=replace(ON_BACKBONE.backbone, frozen=False)),
        ),
        *(
            ("tracked_release_frozen", replace(ON_BACKBONE, backbone=other))
            for other in (
                replace(ON_BACKBONE.backbone, layers=(FeatureLayer("0"),)),
                replace(ON_BACKBONE.backbone, classes=4),
                replace(ON_BACKBONE.backbone, architecture=ArchitectureSpec("mlp", {"hidden": []})),
            )
        ),
    ],
)
def test_a_file_that_says_otherwise_is_refused(case: str, description: ModelDescription) -> None:
    with pytest.raises(VerificationError, match="weights: the file says"):
        _checked(synthetic()[case], description.to_metadata())


def test_a_malformed_description_is_refused() -> None:
    with pytest.raises(VerificationError, match="weights: its description is malformed"):
        _checked(synthetic()["output_perturbation"], {METADATA_NAME: "{}"})
    header = b'{"__metadata__":[],"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    with (
        opened(len(header).to_bytes(8, "little") + header) as file,
        pytest.raises(VerificationError, match="its metadata is malformed"),
    ):
        file.description()


def test_the_digest_of_the_tensors_is_that_of_their_numbers_alone() -> None:
    weights = synthetic()["output_perturbation"].weights
    tensors = safetensors.numpy.load(weights)
    said = safetensors.numpy.save(tensors, metadata=PLAIN.to_metadata())
    assert tensors_sha256(said) == tensors_sha256(weights)
    assert digest_of(said) != digest_of(weights)
    tensors["1.bias"] = tensors["1.bias"] + 1
    assert tensors_sha256(safetensors.numpy.save(tensors)) != tensors_sha256(weights)
