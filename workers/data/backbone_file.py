"""``expunge backbone add``: prepares a public network's weights, and tries it as workers would.

Standard input is the order as JSON, a line feed, and the weights as safetensors; without weights,
those of an installed package are taken. The output is what was found as JSON, a line feed, and the
weights to upload: those that the network has, under its own names.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from app.domain.architectures import ArchitectureSpec, FeatureLayer
from app.domain.errors import ExpungeError, InvalidInputError
from app.domain.schema import InputSchema
from workers.data.backbone_rehearsal import Rehearsal
from workers.training.networks.architectures import build_features

_MOST_SHOWN = 5
# A counter that older files lack, and that no features depend on.
_OPTIONAL = "num_batches_tracked"


def prepared(order: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    """Build the network, give it the weights, and try it on random records.

    Returns:
        How many features there are of a record, names in the file that the network does not have,
        and where the weights come from, None if the caller has to say it; and the weights.

    Raises:
        RunFailedError: it fails; what its code raised is shown in full.
        InvalidInputError: the order is malformed, or there are no weights.
    """
    factory, schema = order["factory"], order["schema"]
    records = InputSchema.from_json(schema)
    whole, featuriser = build_features(
        ArchitectureSpec("custom", order["options"], factory),
        input_shape=records.shape,
        classes=records.classes,
        allowed_factories=(factory,),
        layers=FeatureLayer.all_from_json(order["layers"]),
        in_full=True,
    )
    rehearsal = Rehearsal(order["name"], whole, featuriser, records)
    source, weights = (None, _read(content)) if content else _installed(factory)
    fitting, left_out = _fitting(whole, weights)
    rehearsal.load(fitting)
    rehearsal.require_independence()
    own = {name: tensor.contiguous().clone() for name, tensor in whole.state_dict().items()}
    facts = {
        "features": rehearsal.size,
        "left_out": left_out[:_MOST_SHOWN],
        "left_out_count": len(left_out),
        "source": source,
    }
    return facts, safetensors.torch.save(own)


def _read(content: bytes) -> Mapping[str, torch.Tensor]:
    try:
        return safetensors.torch.load(content)
    except safetensors.SafetensorError as error:
        raise InvalidInputError(
            f"the weights are neither safetensors nor what torch.save writes, or damaged: {error}"
        ) from error


def _installed(factory: str) -> tuple[str, Mapping[str, torch.Tensor]]:
    from expunge.backbones import INSTALLED  # noqa: PLC0415 - most networks come with a file

    if factory not in INSTALLED:
        raise InvalidInputError(
            f"the weights of {factory} are nowhere here: name their file with --weights"
        )
    return INSTALLED[factory].source, INSTALLED[factory].read()


def _fitting(
    network: nn.Module, weights: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return what the network has, by its own names, and the names of the rest.

    In the file of a larger network, all names of this one may begin with the same words.
    """
    names = list(network.state_dict())
    needed = [name for name in names if not name.endswith(_OPTIONAL)]
    prefixes = {each.removesuffix(needed[0]) for each in weights if each.endswith(needed[0])}
    for prefix in sorted(prefixes, key=len):
        if all(prefix + name in weights for name in needed):
            break
    else:
        prefix = ""  # loading says what is missing
    fitting = {name: weights[prefix + name] for name in names if prefix + name in weights}
    return fitting, sorted(set(weights) - {prefix + name for name in fitting})


def main() -> None:
    """Carry out the order on standard input."""
    order, content = sys.stdin.buffer.read().split(b"\n", 1)
    output, sys.stdout = sys.stdout.buffer, sys.stderr  # libraries print
    try:
        found, weights = prepared(json.loads(order), content)
    except ExpungeError as error:
        found, weights = {"error": str(error)}, b""
    output.write(json.dumps(found).encode() + b"\n" + weights)
    output.flush()
