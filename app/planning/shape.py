"""What planning needs to know of a model: sizes and public constants, no weight, no record."""

from dataclasses import dataclass

from app.domain.checks import require_non_negative, require_positive, require_steps


@dataclass(frozen=True)
class ConvexShape:
    """A linear head whose constants the service enforces, and how far forgotten records moved it.

    Attributes:
        lipschitz: M, the largest gradient of one record's loss.
        smoothness: L of one record's loss, without the regulariser.
        weight_decay: lambda of the training loss.
        learning_rate: eta; at most 1 / (smoothness + weight_decay).
        drift: D, how far the worlds are apart now (MATH.md section 5b).
        noise_std: per coordinate and step of a lineage trained with noise; 0 if trained without.
    """

    lipschitz: float
    smoothness: float
    weight_decay: float
    learning_rate: float
    drift: float
    noise_std: float = 0.0

    def __post_init__(self) -> None:
        """Refuse constants that no head has."""
        for name in ("lipschitz", "smoothness", "weight_decay", "learning_rate"):
            require_positive(name, getattr(self, name))
        require_non_negative("drift", self.drift)
        require_non_negative("noise_std", self.noise_std)


@dataclass(frozen=True)
class DpTrainingShape:
    """A model that was trained with DP-SGD.

    Attributes:
        noise_multiplier, sampling_rate, steps: of that training.
        forgotten: how many of its records are forgotten, the new ones included.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    forgotten: int


@dataclass(frozen=True)
class ModelShape:
    """The size of a model's job.

    Attributes:
        retained: records to learn from.
        batch_size: records per step.
        recipe_epochs: passes over the records in one training.
        dimension: trainable parameters, if known.
        earlier_releases: versions released so far.
        convex: given for linear heads only.
        dp_training: given for models trained with DP-SGD only.
    """

    retained: int
    batch_size: int
    recipe_epochs: float
    dimension: int | None = None
    earlier_releases: int = 0
    convex: ConvexShape | None = None
    dp_training: DpTrainingShape | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that no model has."""
        require_steps("retained", self.retained)
        require_steps("batch_size", self.batch_size)
        require_positive("recipe_epochs", self.recipe_epochs)
        if self.dimension is not None:
            require_steps("dimension", self.dimension)

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one pass over the retained records."""
        return -(-self.retained // self.batch_size)
