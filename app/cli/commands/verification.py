"""The offline check of a certificate; needs neither service nor network."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import argument, existing_file, option
from app.cli.output import checked_steps, conclude, say
from app.domain.errors import NoteError
from app.evidence.certificates import verification
from app.evidence.certificates.dossier import verify_dossier
from app.evidence.certificates.note import WitnessKey
from app.evidence.certificates.plain_words import (
    asserted_in_words,
    guarantee_in_words,
    recomputable_in_words,
)


def verify(
    bundle: Annotated[
        Path,
        argument(
            "BUNDLE", "The certificate, a JSON file, or a dossier.", exists=True, dir_okay=False
        ),
    ],
    *,
    weights: Annotated[Path | None, existing_file("The weights, of a certificate.")] = None,
    trusted: Annotated[
        Path,
        existing_file(
            "The operator's trusted-keys.json, from another channel than the certificate."
        ),
    ],
    consistent_with: Annotated[
        Path | None, existing_file("A kept checkpoint: checks that the log has only grown since.")
    ] = None,
    witness: Annotated[
        list[str] | None, option("The verifier key of a witness of the log; may be repeated.")
    ] = None,
    witnesses_required: Annotated[
        int | None, option("How many of them must have cosigned the log; by default all.", min=1)
    ] = None,
    previous: Annotated[
        Path | None,
        existing_file("An older certificate of the model: does this one take anything back?"),
    ] = None,
    receipt: Annotated[
        Path | None,
        existing_file("The receipt of a forget request: which of its records are covered?"),
    ] = None,
) -> None:
    """Check a certificate BUNDLE offline; on failure, name the failed step and exit with 1.

    Checks the signature, the weights and their digest, the place in the log, which a key in use
    must have signed, and recomputes all claims. Then prints the guarantee in words.

    Of a dossier (a zip file), checks that no file was changed, added or removed, and each proof.
    """
    content = bundle.read_bytes()
    if content.startswith(b"PK"):
        _verify_dossier(content, trusted.read_bytes())
        return
    if weights is None:
        raise typer.BadParameter("a certificate is checked with its --weights")
    try:
        witnesses = [WitnessKey.from_text(text) for text in witness or ()]
    except NoteError as error:
        raise typer.BadParameter(f"--witness: {error}") from error
    if witnesses_required is not None and witnesses_required > len(witnesses):
        raise typer.BadParameter("more witnesses are required than are given with --witness")
    with checked_steps(10) as (steps, tell):
        predicate = verification.verify(
            bundle=content,
            weights=weights,
            trusted=trusted.read_bytes(),
            consistent_with=None if consistent_with is None else consistent_with.read_bytes(),
            witnesses=witnesses,
            witnesses_required=witnesses_required,
            previous=None if previous is None else previous.read_bytes(),
            receipt=None if receipt is None else receipt.read_bytes(),
            report=lambda step: tell(step.name, step.finding),
        )
    words = [paragraph.replace("**", "") for paragraph in guarantee_in_words(predicate)]
    for paragraph in words:
        say(f"\n{paragraph}")
    for sentence in recomputable_in_words(predicate):
        say(f"\n{sentence}")
    asserted = asserted_in_words(predicate)
    if asserted:
        say("\nThe operator's word, which nothing here can check:")
        for statement in asserted:
            say(f"- {statement}")
    say("\nthe certificate holds")
    conclude({"holds": True, "steps": steps, "guarantee": words, "asserted": asserted})


def _verify_dossier(content: bytes, trusted: bytes) -> None:
    with checked_steps(10) as (steps, tell):
        facts = verify_dossier(content, trusted=trusted, report=tell)
    say(f"\n{facts['trust']}")
    for each in facts["open"]:
        say(f"- open: {each}")
    say(f"\nthe dossier of {facts['kind']} {facts['name']} holds")
    conclude({"holds": True, "steps": steps, "facts": facts})
