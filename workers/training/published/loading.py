"""Loads published models: their certificates are checked, their networks built, and filled."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import nn

from app.client.published import PublishedFile, read_published
from app.domain.architectures import ArchitectureSpec, BaseDigest
from app.domain.description import ModelDescription
from app.domain.errors import ExpungeError, InvalidInputError
from app.evidence.certificates.weights_file import BACKBONE
from workers.training.networks.architectures import build, build_features, zeros
from workers.training.networks.base import digests_of, public_tensors
from workers.training.networks.ensemble import Ensemble
from workers.training.published.model import PublishedModel, require_named


def load(
    weights: str | Path,
    *,
    certificate: str | Path | None = None,
    trusted: str | Path | bytes | None = None,
    check: bool = True,
    factories: Sequence[str] = (),
    base: str | Path | None = None,
) -> PublishedModel:
    """Return a published model, in evaluation mode, after its certificate was checked.

    Args:
        weights: the safetensors file.
        certificate: its bundle; by default the one beside it, as ``expunge download`` names it.
        trusted: the operator's ``trusted-keys.json``, or its content; by default the one of
            ``expunge init`` here.
        check: whether to check the certificate. Without, nothing says whose weights these are.
        factories: import paths that a file may name as its network's factory or its task, such as
            ``package.module:factory``: loading the file calls the one, predicting the other.
        base: a safetensors file with frozen parameters that the factory does not bring itself, such
            as those of an uploaded backbone. Whatever brings them, their digest must be the one
            that the file and its certificate name.

    Raises:
        VerificationError: the certificate does not hold.
        ConfigurationError: the certificate or a trusted key is missing.
        InvalidInputError: the file does not say how it is used, its weights do not fit, or its
            factory is not among ``factories``, or the base is another.
        RunFailedError: the factory fails.
    """
    published = read_published(weights, certificate=certificate, trusted=trusted, check=check)
    return assembled(published, factories=factories, base=base)


def assembled(
    published: PublishedFile,
    *,
    factories: Sequence[str] = (),
    base: str | Path | None = None,
) -> PublishedModel:
    """Build the networks of a file and give them its weights; see ``load``."""
    description = published.description
    try:
        own: Mapping[str, torch.Tensor] = safetensors.torch.load(published.content)
    except safetensors.SafetensorError as error:
        raise InvalidInputError("the file is not safetensors") from error
    public = {name: tensor for name, tensor in own.items() if name.startswith(BACKBONE)}
    own = {name: tensor for name, tensor in own.items() if name not in public}
    networks = [description.architecture.member]
    networks += [] if description.backbone is None else [description.backbone.architecture]
    for path in (each.factory for each in networks if each.factory is not None):
        require_named(path, factories, "build this network the function")
    features, shape, schema = None, description.schema.shape, description.schema
    with torch.random.fork_rng(devices=[]):
        if description.architecture.on_features:
            features, shape = _backbone(description, public, factories)
        with _sized_by_its_file(description.architecture.member):
            network = build(
                description.architecture,
                input_shape=shape,
                classes=schema.classes,
                allowed_factories=factories,
                tokens=schema.tokens and features is None,
                task=description.task,
                out=description.out,
            )
    member = network.first if isinstance(network, Ensemble) else network
    if base is not None:
        held = public_tensors(member)
        with torch.no_grad():
            for name, tensor in safetensors.torch.load_file(base).items():
                if name in held and held[name].shape == tensor.shape:
                    held[name].copy_(tensor)
    if BaseDigest.of(digests_of(member)) != description.base:
        raise InvalidInputError(
            "the network's frozen parameters and buffers are not the base that the file names: "
            "they come from the factory's own files, or from the file that you name with --base, "
            "or base=… in Python"
        )
    _fill(network, own, base=public_tensors(network).keys())
    return PublishedModel(description, network, features, factories=factories).eval()


def _backbone(
    description: ModelDescription,
    tensors: Mapping[str, torch.Tensor],
    factories: Sequence[str],
) -> tuple[nn.Module, tuple[int, ...]]:
    """Return what computes a frozen backbone's features, and their shape."""
    backbone, schema = description.backbone, description.schema
    if backbone is None:
        raise InvalidInputError("the file does not describe the backbone that it names")
    with torch.no_grad(), _sized_by_its_file(backbone.architecture):
        whole, features = build_features(
            backbone.architecture,
            input_shape=schema.shape,
            classes=backbone.classes,
            allowed_factories=factories,
            layers=backbone.layers,
        )
        # Lazy layers get their shapes.
        size = features.eval()(zeros(schema.shape, tokens=schema.tokens)).shape[1]
    _fill(whole, {name.removeprefix(BACKBONE): tensor for name, tensor in tensors.items()})
    return features, (size,)


@contextmanager
def _sized_by_its_file(architecture: ArchitectureSpec) -> Iterator[None]:
    """Let a network of ours have no numbers until it gets the file's, whatever size that claims."""
    try:
        with nullcontext() if architecture.name == "custom" else torch.device("meta"):
            yield
    except ExpungeError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError("the file describes a network that cannot be built") from error


def _fill(
    module: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    *,
    base: Collection[str] = (),
) -> None:
    """Give a module its tensors but the base's, in the types that they have in the file."""
    if set(tensors) != set(module.state_dict()) - set(base):
        raise InvalidInputError("the file's tensors are not those of the network that it describes")
    try:
        module.load_state_dict(tensors, assign=True, strict=False)
    except RuntimeError as error:
        raise InvalidInputError("the file's tensors have other shapes than its network") from error
    module.requires_grad_(requires_grad=False)
