"""What ensembles are measured on: pictures, a table, texts; from scratch and on public weights.

Every case has people, whose records enter one member alone, and what a ridge head would see.
"""

import json
import os
import random
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import batch_norm

from app.domain.architectures import ArchitectureSpec
from app.domain.recipes import ParameterGroup, TrainingRecipe
from app.domain.tasks import catalogue
from app.domain.tasks.built_in import ClassificationSpec, classification
from benchmarks import harness
from benchmarks.convex import shuffled
from benchmarks.data import CLASSES, Pictures, load, network_of, outputs_of
from benchmarks.public_features import LAST_LAYER, default_cache, efficientnet, enlarged
from workers.training.examples import Examples, classified
from workers.training.networks.network import Network
from workers.training.tasks.catalogue import encoder_of, form_of, task_of

EXAMPLES: Final = Path(__file__).parents[1] / "examples"
_CPU: Final = torch.device("cpu")
_HIDDEN: Final = 128
_PICTURES: Final = TrainingRecipe(learning_rate=0.05, momentum=0.9, batch_size=64, epochs=10)
_CONTRACTS_EACH: Final = 2
_SENTENCES_EACH: Final = 3
_TESTED: Final = 5  # every fifth author is for testing
_RECORDS: Final = 3000
_PICTURES_TESTED: Final = 1000
_PIXELS: Final = 96
_LAST: Final = "_fc"
_FINE_TUNED: Final = TrainingRecipe(
    learning_rate=0.01,
    groups=(ParameterGroup(f"{_LAST}.*", learning_rate=0.1),),
    momentum=0.9,
    batch_size=16,
    epochs=4,
    clip_norm=2.0,
)

OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "--case": {"action": "append", "help": "this one alone"},
    "--cache": {"type": Path, "default": default_cache(), "help": "of public weights"},
    "--quick": {"action": "store_true", "help": "small data"},
}
TITLES: Final = {
    "churn": "customers",
    "scratch": "MNIST, from scratch",
    "public": "MNIST, public weights",
    "head": "CIFAR-10, head on public weights",
    "texts": "texts, LoRA",
    "pictures": "CIFAR-10, EfficientNet-Lite0 whole",
}

Weights = Mapping[str, torch.Tensor]
Features = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """Records of people, a network and a recipe.

    Attributes:
        note: what a reader of the figures must know.
        person: int64 [n], whose each record to train on is.
        random: builds the network as its architecture initialises it.
        public: weights that every training starts from, by name; those that are missing are drawn.
        features: what a ridge head sees of a batch's inputs, within ``feature_range``.
        sizes: numbers of members that are measured, in this order.
    """

    note: str
    train: Examples = field(repr=False)
    test: Examples = field(repr=False)
    person: NDArray[np.int64] = field(repr=False)
    task: ClassificationSpec
    random: Callable[[], nn.Module] = field(repr=False)
    recipe: TrainingRecipe
    public: Weights = field(default_factory=dict, repr=False)
    features: Features = torch.Tensor.float
    feature_range: float = 1.0
    sizes: tuple[int, ...] = (1, 4, 8, 16, 32)

    def start(self) -> nn.Module:
        """Return the network as each training begins with it."""
        module = self.random()
        module.load_state_dict(dict(self.public), strict=False)
        return module

    def trained(self, chosen: NDArray[np.int64] | None = None) -> Network:
        """Return a network that learned from the chosen records by the recipe; None: from all."""
        network = Network(self.start, device=_CPU)
        records = self.train if chosen is None else self.train.select(chosen)
        if len(records):
            network.train(records, self.recipe, epochs=self.recipe.epochs)
        return network

    def features_of(self, examples: Examples) -> NDArray[np.float32]:
        """Return what a ridge head sees, [n, size]."""
        seen = outputs_of(lambda inputs: self.features(inputs).flatten(1), examples)
        return seen.numpy()


def measured(
    given: Namespace,
    names: Mapping[str, str],
    measure: Callable[[Case, harness.Document], Iterator[harness.Document]],
) -> Iterator[harness.Document]:
    """Yield what was measured of all cases that are named, again with each figure.

    ``names`` are the cases by the name that the results have; ``measure`` gets what is known.
    """
    torch.set_num_threads(1)
    pictures = digits if given.quick else mnist
    makers: dict[str, Callable[[], Case]] = {
        "churn": partial(churn, customers=600 if given.quick else 10_000),
        "scratch": partial(pictures, public=False),
        "public": partial(pictures, public=True),
    }
    if not given.quick:
        makers |= {"texts": partial(texts, cache=given.cache), "pictures": cifar10}
        makers["head"] = partial(head, cache=given.cache)
    document = harness.earlier(given)
    for name in given.case or names:
        if names[name] in makers:
            for found in measure(makers[names[name]](), document.get(name, {})):
                document[name] = found
                print(name, len(found["rows"]), "rows", flush=True)
                yield document


def digits(*, public: bool) -> Case:
    """Return small digits: a smoke test's data."""
    return _of_pictures(load("digits"), public=public)


def mnist(*, public: bool) -> Case:
    """Return MNIST, from scratch on all pictures or from weights of the first half's."""
    return _of_pictures(load("mnist", stand_in=False), public=public)


def churn(*, customers: int = 10_000) -> Case:
    """Return invented customers with two contracts each, and a fifth as many to test on."""
    example = _module("customers", "data")
    dice = random.Random(15)
    count = _CONTRACTS_EACH * customers
    rows = [example.contract(row, dice) for row in range(count + count // 5)]
    spec, records = _records("customers", rows)
    train, test = records.select(np.arange(count)), records.select(np.arange(count, len(rows)))
    return Case(
        note=f"{count:,} invented contracts of {customers:,} customers, a network of one hidden "
        "layer of 32",
        train=train,
        test=test,
        person=np.arange(count) // _CONTRACTS_EACH,
        task=spec,
        random=partial(network_of, ArchitectureSpec("mlp", {"hidden": [32]}), train, classes=2),
        recipe=TrainingRecipe(epochs=20, batch_size=64, learning_rate=0.05),
    )


def texts(*, cache: Path, epochs: int = 12, most: int | None = None) -> Case:
    """Return sentences of packages, and LoRA adapters on a small public transformer."""
    example, network = _module("texts", "data"), _module("texts", "text_network")
    weights = cache / "ensembles-public-text.safetensors"
    if not weights.exists():
        cache.mkdir(parents=True, exist_ok=True)
        folder = Path(os.__file__).parent
        library = [*example.sentences(folder / "asyncio"), *example.sentences(folder / "email")]
        unfinished = weights.with_suffix(".part")
        safetensors.torch.save_file(example.public_weights(library), unfinished)
        unfinished.rename(weights)
    os.environ["TEXT_WEIGHTS"] = str(weights)
    rows = list[dict[str, Any]]()
    for name, package in sorted(example.PACKAGES.items()):
        first = rows[-1]["author"] + 1 if rows else 0
        found = example.sentences(Path(package.__file__).parent)
        rows += [
            {"text": text, "of": name, "author": first + place // _SENTENCES_EACH}
            for place, text in enumerate(islice(found, most or example.MOST))
        ]
    spec, records = _records("texts", rows)
    author = np.array([row["author"] for row in rows])
    tested = author % _TESTED == 0
    frozen = network.bert()
    frozen.load_state_dict(safetensors.torch.load_file(weights))
    reads = network.Classifier(frozen.eval(), frozen.config.hidden_size, len(example.PACKAGES))
    reads.head = nn.Identity()
    return Case(
        note=f"{int((~tested).sum()):,} sentences of three Python packages, three an author, "
        "LoRA adapters of rank 8 and a head on a frozen transformer of two layers",
        train=records.select(np.flatnonzero(~tested)),
        test=records.select(np.flatnonzero(tested)),
        person=author[~tested],
        task=spec,
        random=lambda: network.adapted(classes=len(example.PACKAGES)),
        recipe=TrainingRecipe(epochs=epochs, batch_size=64, optimizer="adamw", learning_rate=0.005),
        features=reads,
        feature_range=4.0,
    )


def cifar10(*, records: int = _RECORDS, tested: int = _PICTURES_TESTED) -> Case:
    """Return the case, on so many pictures; each is a person's."""
    pictures = load("cifar10", stand_in=False)
    draws = np.random.default_rng(3)
    train, test = (  # which a network sees from -1 to 1
        classified(some.inputs, some.target, offset=127.0, scale=1 / 128)
        for part, count in ((pictures.train, records), (pictures.test, tested))
        for some in (part.select(draws.permutation(len(part))[:count]),)
    )
    public = efficientnet()
    weights = {
        name: tensor.clone()
        for name, tensor in _with_kept_norms(public).state_dict().items()
        if not name.startswith(f"{_LAST}.")
    }

    def last_layer(inputs: torch.Tensor) -> torch.Tensor:
        layer: torch.Tensor = public.extract_features(enlarged(inputs, _PIXELS))
        return layer.mean((2, 3))

    return Case(
        note=f"{records:,} pictures of CIFAR-10 at {_PIXELS} x {_PIXELS} pixels, tested on "
        f"{tested:,} others; all of EfficientNet-Lite0 is fine-tuned from its public weights. "
        f"{pictures.note}",
        train=train,
        test=test,
        person=np.arange(records),
        task=classification(CLASSES),
        random=_fresh,
        recipe=_FINE_TUNED,
        public=weights,
        features=last_layer,
        feature_range=32.0,
        sizes=(1, 8, 4, 16, 32),
    )


def head(*, cache: Path, records: int = 10_000, tested: int = 4_000) -> Case:
    """Return a network of one hidden layer on EfficientNet-Lite0's last layer."""
    seen = cifar10(records=records, tested=tested)
    path = cache / f"cifar10-last-layer-{_PIXELS}-{records}-{tested}.npz"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part.npz")
        features = {"train": seen.features_of(seen.train), "test": seen.features_of(seen.test)}
        np.savez(unfinished, **features)
        unfinished.rename(path)
    with np.load(path) as found:
        train, test = (
            classified(torch.from_numpy(found[name]), part.target)
            for name, part in (("train", seen.train), ("test", seen.test))
        )
    kept = "all of EfficientNet-Lite0 is fine-tuned from its public weights"
    own = f"a network of one hidden layer of {_HIDDEN} on the last layer of EfficientNet-Lite0"
    return replace(
        seen,
        note=seen.note.replace(kept, own),
        train=train,
        test=test,
        random=partial(network_of, ArchitectureSpec("mlp", {"hidden": [_HIDDEN]}), train),
        recipe=_PICTURES,
        public={},
        features=torch.Tensor.float,
    )


def public_half(pictures: Pictures) -> tuple[Examples, Examples]:
    """Return the training pictures in two disjoint halves, of which the first is public."""
    half = len(pictures.train) // 2
    rest = len(pictures.train) - half
    return shuffled(pictures.train, half), shuffled(pictures.train, rest, skip=half)


def _of_pictures(pictures: Pictures, *, public: bool) -> Case:
    """Return a network of one hidden layer; each picture is a person's."""
    train, weights = pictures.train, dict[str, torch.Tensor]()
    features: Features = torch.Tensor.float
    random = partial(network_of, ArchitectureSpec("mlp", {"hidden": [_HIDDEN]}), train)
    note = f"{pictures.name}, a network of one hidden layer of {_HIDDEN}"
    if public:
        others, train = public_half(pictures)
        teacher = Network(random, device=_CPU)
        teacher.train(others, _PICTURES, epochs=_PICTURES.epochs)
        weights = {name: each.clone() for name, each in teacher.module.state_dict().items()}
        features = nn.Sequential(*list(teacher.module.children())[:-1]).eval()
        note += ", fine-tuned whole from weights of the other half of the pictures"
    return Case(
        note=f"{note}. {pictures.note}".removesuffix(". "),
        train=train,
        test=pictures.test,
        person=np.arange(len(train)),
        task=classification(CLASSES),
        random=random,
        recipe=_PICTURES,
        public=weights,
        features=features,
        feature_range=32.0 if public else 4.0,
    )


def _records(folder: str, rows: list[dict[str, Any]]) -> tuple[ClassificationSpec, Examples]:
    """Return an example's task, and its records as the service encodes them."""
    model = json.loads((EXAMPLES / folder / "model.json").read_text())
    spec = catalogue.from_json(model["task"])
    assert isinstance(spec, ClassificationSpec)
    task = task_of(spec)
    encoded = encoder_of(spec, task)(pa.Table.from_pylist(rows))
    return spec, Examples.of(form_of(spec, task, spec.schema()), encoded)


def _module(folder: str, name: str) -> ModuleType:
    """Import an example's file, which may import those beside it."""
    with mock.patch.object(sys, "path", [str(EXAMPLES / folder), *sys.path]):
        return import_module(f"examples.{folder}.{name}")


class KeptNorm(nn.Module):
    """Batch normalisation by constant statistics; scale and shift are trained."""

    def __init__(self, layer: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self._eps = layer.weight, layer.bias, layer.eps
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [n, channels, height, width], normalised."""
        kept = (self.get_buffer("running_mean"), self.get_buffer("running_var"))
        return batch_norm(inputs, *kept, self.weight, self.bias, eps=self._eps)


def _fresh() -> nn.Module:
    """Return the network as its package initialises it, of ten classes; it enlarges pictures."""
    package = import_module("efficientnet_lite_pytorch").EfficientNet
    body: nn.Module = package.from_name("efficientnet-lite0")
    body.set_submodule(_LAST, nn.Linear(LAST_LAYER, CLASSES))
    body.register_forward_pre_hook(lambda _, inputs: (enlarged(inputs[0], _PIXELS),))
    return _with_kept_norms(body)


def _with_kept_norms(body: nn.Module) -> nn.Module:
    for path, layer in list(body.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            body.set_submodule(path, KeptNorm(layer))
    return body
