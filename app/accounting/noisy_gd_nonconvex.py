"""Noisy gradient descent with deletion privacy, non-convex losses (Chourasia & Shah 2023, 5.2).

    x <- x - eta grad L_D(x) + N(0, 2 eta sigma^2 I)      full batch of ``records`` records

The loss of one record lies in [-``loss_bound``, loss_bound] and is ``smoothness``-smooth;
log B = 4 loss_bound / sigma^2; d = ``dimension``; r = ``request_size``, the most records in one
request. Training of K_A steps from N(0, sigma^2/lambda I), then K steps a request, keep every
release within e of the Gibbs distribution of the retained data at order q, where

    e >= 64 d q B (beta + lambda)^2 eta / lambda                      (discretisation)
    e >= q log(B) exp(-lambda eta K_A / (2 B))                        (training)
    e >= 2 q w (r/n) log(B) / (1 - 2 q w),  w = exp(-lambda eta K / (2 B))   (each request)

and eta <= lambda / (64 B q^2 (beta + lambda)^2). In floats, the mean of each step is off by half a
cell's diagonal, times 1 + eta (beta + lambda), and by its arithmetic; all steps that the lineage
has taken compose to sqrt(steps) times that.

Guarantee: Renyi curve, one way: real release against that Gibbs distribution. Neighbouring
relation: replacement, any number of records. Assumptions: ``TERMS``. Source: docs/guarantees.md,
section 7.
"""

import math

from app.accounting.computed_guarantee import computed
from app.accounting.guarantees import Guarantee, RenyiGuarantee
from app.accounting.precision import Residue, cell_diagonal, noise_norm, sampling_residue
from app.accounting.terms import Direction, Neighbours, Terms, asserted, enforced
from app.domain.checks import require_count, require_noise, require_positive, require_steps
from app.domain.errors import CalibrationError, ParameterError

NAME = "noisy_gd_nonconvex"
MOST_STEPS = 10**12
_CAPPING = 1.28
_ARITHMETIC = 2.0**-51  # of a position: the roundings of one step in float64

TERMS = Terms(
    neighbours=Neighbours.REPLACEMENT,
    adaptive=False,
    assumptions=(
        *asserted(
            "the loss of one record lies between minus and plus the stated bound",
            "the loss of one record is smooth with the stated constant",
        ),
        *enforced(
            "every step of the lineage used the whole data and added the stated noise",
            "training started from N(0, sigma^2 / weight_decay I)",
            "every gradient after the request came from retained records",
            "no earlier iterate of this run was released or stored",
        ),
    ),
    source="Chourasia & Shah 2023, Theorem 5.2 and G.22",
    direction=Direction.ONE_WAY,
    reference="the Gibbs distribution of the retained data",
)


def capped_smoothness(smoothness: float) -> float:
    """Return the largest curvature of bound * tanh(loss / bound): docs/guarantees.md, section 7."""
    return _CAPPING * smoothness


def account(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    loss_bound: float,
    noise_std: float,
    dimension: int,
    records: int,
    request_size: int,
    training_steps: int,
    unlearning_steps: int,
    earlier_steps: int = 0,
) -> Guarantee:
    """Return the guarantee of every release; ``earlier_steps``, of earlier requests, round, too."""
    rate = require_positive("learning_rate", learning_rate)
    decay = require_positive("weight_decay", weight_decay)
    curvature = (require_positive("smoothness", smoothness) + decay) ** 2
    variance = require_noise("noise_std", noise_std) ** 2 / (2 * rate)
    log_bound = 4 * require_positive("loss_bound", loss_bound) / variance
    share = require_steps("request_size", request_size) / require_steps("records", records)
    dimension = require_steps("dimension", dimension)
    if log_bound > 600:
        raise ParameterError("noise_std", "large enough that 4 loss_bound / sigma^2 is below 600")
    bound = math.exp(log_bound)
    highest = math.sqrt(decay / (64 * bound * rate * curvature))
    if highest <= 1:
        raise ParameterError("learning_rate", "below weight_decay / (64 B (beta + lambda)^2)")
    pace = decay * rate / (2 * bound)
    start = pace * require_steps("training_steps", training_steps)
    left = math.exp(-pace * require_steps("unlearning_steps", unlearning_steps))

    def curve(order: float) -> float:
        discretisation = 64 * dimension * order * bound * curvature * rate / decay
        training = order * log_bound * math.exp(-start)
        remaining = 1 - 2 * order * left
        if remaining <= 0:
            return math.inf
        request = 2 * order * left * share * log_bound / remaining
        return max(discretisation, training, request) * (1 + 1e-12)

    ideal = RenyiGuarantee(terms=TERMS, curve=curve, highest_order=highest)
    # The gradient's norm is at most 2 sqrt(smoothness loss_bound), so a position is a vector of
    # norm gradient / weight_decay and a Gaussian one, whose variance the steps bound.
    steps = training_steps + unlearning_steps + require_count("earlier_steps", earlier_steps)
    pull = rate * decay
    settled_std = noise_std / math.sqrt(pull * (2 - pull))  # wider than the start
    reach = 2 * math.sqrt(smoothness * loss_bound) / decay
    reach += noise_norm(dimension=dimension, noise_std=settled_std)
    sampler = sampling_residue(
        dimension=dimension, draws=steps, reach=reach * (1 + 1e-9), noise_std=noise_std
    )
    growth = 1 + rate * (smoothness + decay)
    moved = growth * cell_diagonal(dimension=dimension, noise_std=noise_std) / 2
    moved += _ARITHMETIC * reach
    mu = sampler.mu + math.sqrt(steps) * moved / noise_std
    return computed(ideal, Residue(mu=mu * (1 + 1e-12), delta=sampler.delta))


def steps_needed(
    *,
    order: float,
    divergence: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    loss_bound: float,
    noise_std: float,
    dimension: int,
    records: int,
    request_size: int,
) -> tuple[int, int]:
    """Return the smallest (K_A, K) that keep the divergence at ``order`` below a target."""
    target = require_positive("divergence", divergence)
    variance = require_noise("noise_std", noise_std) ** 2 / (2 * learning_rate)
    log_bound = 4 * require_positive("loss_bound", loss_bound) / variance
    if log_bound > 600:
        raise CalibrationError("more than 10^12 steps are needed")
    bound = math.exp(log_bound)
    curvature = (smoothness + weight_decay) ** 2
    limit = weight_decay * min(target / dimension, 1 / order) / (64 * order * bound * curvature)
    if learning_rate > limit:
        raise ParameterError("learning_rate", f"at most {limit:g}")
    pace = 2 * bound / (weight_decay * learning_rate)
    share = require_steps("request_size", request_size) / require_steps("records", records)
    training = pace * math.log(max(order * log_bound / target, 1.0))
    request = pace * math.log(2 * order * (target + share * log_bound) / target)
    if max(training, request) > MOST_STEPS:
        raise CalibrationError("more than 10^12 steps are needed")
    return max(1, math.ceil(training)), max(1, math.ceil(request))
