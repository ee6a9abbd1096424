"""A network with its flat parameters: the object of training, unlearning and fine-tuning.

It is not protected: ``workers.seal.sealed.Sealed`` wraps weights that have not met a target. It is
used directly where there is nothing to protect: retraining, and a first release ``as_trained``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from app.domain.architectures import BaseDigest
from app.domain.errors import RunFailedError
from workers.training import loop
from workers.training.evaluate import Evaluation, evaluate
from workers.training.examples import Records
from workers.training.networks.base import digest_of, digests_of, require_same
from workers.training.networks.buffers import require_supported_buffers, statistics_of
from workers.training.seed import Seed
from workers.training.tasks.built_in import CLASSIFICATION
from workers.training.tasks.task import Task
from workers.training.team import ALONE, Team

Tensors = Mapping[str, NDArray[Any] | torch.Tensor]


class Network:
    """A freshly initialised network on its device.

    Args:
        factory: builds the module from torch's global generator, which draws from the seed during
            the call.
        device: where everything is computed.
        task: what it learns.
        dtype: float32 or float64, of all parameters and buffers; None leaves them as built. A hook
            converts inputs to it.
        team: the processes that divide it. Each has a network of its own, with some rows of every
            trained tensor; all begin with the leading one's.
        seed: of its one training, which is to be computed again; else all draw from fresh ones.

    Attributes:
        task: what it learns.
        seed: as given.
        team: the processes that divide it.
        module: the network; its parameters are those of ``flat``.
        flat: its trainable parameters and their gradients, or what this process holds of them.
        base: the digest of its public tensors, which nothing here changes; None without any.

    Raises:
        PlanError: the architecture holds state that no mechanism covers.
    """

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        *,
        device: torch.device,
        task: Task = CLASSIFICATION,
        dtype: torch.dtype | None = None,
        team: Team = ALONE,
        seed: Seed | None = None,
    ) -> None:
        self.task = task
        self.seed = seed
        self.team = team
        self._factory, self._dtype = factory, dtype
        with torch.random.fork_rng(devices=[]):
            (seed or Seed()).start()
            self.module = factory().to(device=device, dtype=dtype)
        if dtype is not None:
            self.module.register_forward_pre_hook(
                lambda _, inputs: tuple(
                    each.to(dtype) if torch.is_tensor(each) and each.is_floating_point() else each
                    for each in inputs
                )
            )
        require_supported_buffers(self.module)
        self._digests = digests_of(self.module)
        self.flat = team.flat_of(self.module)
        self.base = BaseDigest.of(self._digests)

    def __repr__(self) -> str:
        return f"<Network: {self.flat.size} parameters on {self.flat.device}>"

    def load(self, tensors: Tensors | None) -> None:
        """Replace all parameters and buffers but the base's.

        Args:
            tensors: parameters and buffers by their ``state_dict`` names, which may share a prefix;
                of any floating-point precision. With or without the base, which must be this very
                one: another may have been trained. None in a process that does not lead.

        Raises:
            RunFailedError: a tensor is missing, unknown, of another shape or kind, or not finite,
                or not that of the base, or differs from one that it is tied to.
        """
        if tensors is None:
            self.flat.spread(None)
            return
        whole, statistics = self.module.state_dict(), statistics_of(self.module)
        own = self._own()
        tensors = renamed(tensors, whole if len(tensors) > len(own) else own)
        for name in tensors.keys() - own.keys():
            if digest_of(torch.as_tensor(tensors[name]).to(whole[name])) != self._digests[name]:
                raise RunFailedError(
                    f"the weights' tensor {name!r} is not the factory's own, which is frozen: it "
                    "may have learned from records, and no run would unlearn it"
                )
        with torch.no_grad():
            for name, target in own.items():
                tensor = torch.as_tensor(tensors[name])
                _require_fitting(name, tensor, target)
                if name in statistics:
                    target.copy_(tensor)
            require_tied_alike(self.module, tensors)
            self.flat.spread({name: torch.as_tensor(tensors[name]) for name in self.flat.shapes})

    train = loop.train

    def evaluate(self, examples: Records, fewer: Sequence[int] = ()) -> Evaluation:
        """Return the task's metrics and mean loss; of an ensemble also with ``fewer`` members.

        Raises:
            RunFailedError: there are no examples.
        """
        return evaluate(self.module, self.task, examples, fewer)

    def evaluate_noisier(self, examples: Records, noise_std: float) -> Evaluation:
        """Return the same with noise added to each parameter, which is taken away again.

        The noise protects nothing: it is of an ordinary generator.

        Raises:
            RunFailedError: there are no examples.
        """
        values = self.flat.values
        kept = values.clone()
        try:
            values.add_(torch.randn_like(values), alpha=noise_std)
            return self.evaluate(examples)
        finally:
            values.copy_(kept)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return copies of all parameters and buffers but the base's, on the CPU.

        They have their ``state_dict`` names.

        Raises:
            PlanError: the network changed its base.
        """
        return {name: np.array(each, copy=True, order="C") for name, each in self.views().items()}

    def views(self) -> dict[str, NDArray[Any]]:
        """Return the same without copying what is in the CPU's memory already.

        Raises:
            PlanError: the network changed its base.
        """
        self.require_base()
        return {name: tensor.detach().cpu().numpy() for name, tensor in self._own().items()}

    def gathered(self) -> "Network":
        """Return the whole network, in the leading process; overwrite what each held of it.

        The others return theirs, which is of no use any more.
        """
        if self.team.devices == 1:
            return self
        whole: Network | None = None
        if self.team.leads:
            device = self.flat.device
            whole = Network(self._factory, device=device, task=self.task, dtype=self._dtype)
            kept = statistics_of(whole.module)
            for name, statistic in statistics_of(self.module).items():
                kept[name].copy_(statistic)
        self.flat.collect(None if whole is None else whole.flat)
        self.destroy()
        return whole or self

    def require_base(self) -> None:
        """Check that the public tensors are those that the network was built with.

        Raises:
            PlanError: one of them changed, came or went; the message names it.
        """
        require_same(
            digests_of(self.module),
            self._digests,
            "changed: that could carry forgotten records past the noise",
        )

    def destroy(self) -> None:
        """Overwrite parameters, gradients and buffers with zeros, but not the base's.

        A factory may share its base among networks.
        """
        self.flat.destroy()
        with torch.no_grad():
            for tensor in statistics_of(self.module).values():
                tensor.zero_()

    def _own(self) -> dict[str, torch.Tensor]:
        """Return all parameters and buffers but the base's, by their ``state_dict`` names."""
        state: dict[str, torch.Tensor] = self.module.state_dict()
        return {name: tensor for name, tensor in state.items() if name not in self._digests}


def _require_fitting(name: str, tensor: torch.Tensor, target: torch.Tensor) -> None:
    """Raise ``RunFailedError`` unless a tensor may be copied to the network's."""
    if tensor.shape != target.shape:
        raise RunFailedError(
            f"the weights' tensor {name!r} has shape {list(tensor.shape)}, "
            f"the network's {list(target.shape)}"
        )
    if tensor.is_floating_point() != target.is_floating_point():
        raise RunFailedError(
            f"the weights' tensor {name!r} is {tensor.dtype}, the network's "
            f"{target.dtype}: save it unquantised"
        )
    if not bool(torch.isfinite(tensor.to(target.dtype)).all()):
        raise RunFailedError(f"the weights' tensor {name!r} is not finite")


Tensor = TypeVar("Tensor")

_COMPILED: Final = "_orig_mod."
_SHOWN: Final = 3


def renamed(tensors: Mapping[str, Tensor], own: Collection[str]) -> Mapping[str, Tensor]:
    """Return tensors from elsewhere under the network's names.

    Training tools put a prefix before every name: ``model.`` by Lightning, ``module.`` by
    DataParallel, ``_orig_mod.`` by ``torch.compile``. A prefix is left out only if what remains are
    exactly the network's names, so no tensor is dropped or guessed.

    Args:
        tensors: by the names in a file.
        own: the network's names.

    Raises:
        RunFailedError: they are not the network's, with or without a prefix; it names them.
    """
    names = set(own)
    if tensors.keys() == names:
        return tensors
    plain = {name.replace(_COMPILED, ""): tensor for name, tensor in tensors.items()}
    prefix = _prefix(plain, names)
    if len(plain) == len(tensors) and plain.keys() == {prefix + name for name in names}:
        return {name.removeprefix(prefix): tensor for name, tensor in plain.items()}
    missing = sorted(names - {name.removeprefix(prefix) for name in plain})
    unknown = sorted(plain.keys() - {prefix + name for name in names})
    faults = [f"they lack {_listed(missing)}"] if missing else []
    faults += [f"they hold {_listed(unknown)}, which the network has not"] if unknown else []
    raise RunFailedError(
        f"the weights' tensors are not the network's: {'; '.join(faults)}. Save the state_dict of "
        "a network that this factory builds"
    )


def require_tied_alike(module: nn.Module, tensors: Mapping[str, Any]) -> None:
    """Raise ``RunFailedError`` where weights differ under two names of a network's one tensor."""
    first = dict[int, str]()
    for name, own in module.state_dict(keep_vars=True).items():
        kept = first.setdefault(id(own), name)
        if kept == name or not {kept, name} <= tensors.keys():
            continue
        one, other = (torch.as_tensor(tensors[each]).to(own) for each in (kept, name))
        if not torch.equal(one, other):
            raise RunFailedError(
                f"the weights differ in {kept!r} and {name!r}, which are one tensor of the network"
            )


def _prefix(given: Collection[str], own: Collection[str]) -> str:
    """Return the prefix under which most of the network's names are given; the shortest."""
    ends = {
        name.removesuffix(wanted)
        for wanted in sorted(own, key=len)[-1:]
        for name in given
        if name == wanted or name.endswith(f".{wanted}")
    }
    return max(
        sorted({"", *ends}, key=len),
        key=lambda prefix: sum(prefix + name in given for name in own),
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
