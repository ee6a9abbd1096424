"""Output perturbation: clip the weights and add noise once."""

from dataclasses import dataclass
from typing import ClassVar

from app.accounting import gaussian, output_perturbation
from app.accounting.guarantees import GaussianGuarantee
from app.domain.checks import require_positive
from app.domain.policy import Policy
from app.planning.mechanisms.any_start import INITIALISATION_STD, AnyStart, budget_of
from app.planning.mechanisms.mechanism import Draws, NoiseStd, Positive, dimension_of
from app.planning.policy_parameters import numbers, refuse_missed, refuse_unknown
from app.planning.quote import Quote
from app.planning.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(AnyStart):
    """See ``app.accounting.output_perturbation``."""

    name: ClassVar[str] = output_perturbation.NAME

    initial_clip: Positive
    noise_std: NoiseStd

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote no step at all."""
        budget_of(policy, shape)
        fixed = numbers(policy.parameters)
        refuse_unknown(fixed, cls)
        for name, number in fixed.items():
            require_positive(name, number)
        mu = gaussian.mu_of(**policy.target)
        initial_clip = fixed.get("initial_clip", mu * INITIALISATION_STD / 2)
        noise_std = fixed.get("noise_std") or output_perturbation.calibrate(
            **policy.target,
            initial_clip=initial_clip,
            dimension=shape.dimension,
        )
        chosen = cls(initial_clip=initial_clip, noise_std=noise_std, dimension=shape.dimension)
        guarantee = chosen.account()
        refuse_missed(guarantee, policy.epsilon, policy.delta)
        return chosen.offer(policy, shape, guarantee, steps=0, variance=noise_std**2)

    def account(self) -> GaussianGuarantee:
        """Return what one release guarantees."""
        return output_perturbation.account(**self.parameters())

    def draws(self, *, first: bool) -> list[Draws]:  # noqa: ARG002
        """Return the release's noise."""
        return [Draws(self.noise_std, dimension_of(self))]
