"""What planning needs to know of a model: sizes and public constants, no weight, no record."""

from dataclasses import dataclass

from app.domain.architectures import ArchitectureSpec
from app.domain.checks import require_count, require_positive, require_steps
from app.domain.errors import ParameterError
from app.domain.heads import boosted_trees
from app.domain.recipes import MOST_EPOCHS
from app.domain.tasks.spec import TaskSpec
from app.planning.tracking import Tracking

MOST_RECORDS = 10**9
MOST_WEIGHTS = 10**12


@dataclass(frozen=True)
class ConvexShape:
    """A linear head whose constants the service enforces.

    Attributes:
        lipschitz: the largest slope of a record's loss; None where it has no bound.
        smoothness: its largest curvature.
        weight_decay, learning_rate: of its recipe.
    """

    lipschitz: float | None
    smoothness: float
    weight_decay: float
    learning_rate: float

    def __post_init__(self) -> None:
        """Refuse constants that no head has."""
        for name in ("smoothness", "weight_decay", "learning_rate"):
            require_positive(name, getattr(self, name))
        if self.lipschitz is not None:
            require_positive("lipschitz", self.lipschitz)


@dataclass(frozen=True)
class RidgeShape:
    """A ridge head.

    Attributes:
        feature_range: public bound to which features are clipped.
        target_range: public bound to which a regression's targets are clipped.
    """

    feature_range: float
    target_range: float | None = None

    def __post_init__(self) -> None:
        """Refuse a range that no head has."""
        require_positive("feature_range", self.feature_range)
        if self.target_range is not None:
            require_positive("target_range", self.target_range)


@dataclass(frozen=True)
class TreesShape:
    """Boosted trees: the options of ``app.domain.heads.boosted_trees``.

    Attributes:
        rows: trees that a round grows: one for each output of the task, one for two classes.
        patience: of the recipe.
    """

    trees: int
    leaves: int
    depth: int
    smallest_leaf: int
    shrinkage: float
    rows: int = 1
    patience: int | None = None

    @classmethod
    def of(
        cls, architecture: ArchitectureSpec, task: TaskSpec, *, patience: int | None = None
    ) -> "TreesShape | None":
        """Return the options of boosted trees, or of an ensemble's; None for other networks."""
        member = architecture.member
        if member.name != boosted_trees.NAME:
            return None
        options = boosted_trees.options_of(member.options)
        return cls(**options, rows=task.rows, patience=patience)


@dataclass(frozen=True)
class EnsembleShape:
    """An ensemble, and how many of its members the next run is to train anew.

    Attributes:
        members: how many networks it averages.
        concerned: of the active ones those that the new request concerns: counted, or expected of
            as many persons; one where none is known.
        out: how many are out.
        refills: whether the next run trains those that are out.
    """

    members: int
    concerned: float = 1.0
    out: int = 0
    refills: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that no ensemble has."""
        require_steps("members", self.members)
        if not 0 <= self.concerned <= self.members:
            raise ParameterError("concerned", f"from 0 to {self.members}")


@dataclass(frozen=True)
class DpTrainingShape:
    """A model that was trained with DP-SGD, and how many of its records are forgotten by now."""

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
        records: records that the present weights were trained on, those forgotten since included;
            ``retained`` if not given.
        forgotten: how many of those were forgotten since, the new request's included.
        newly_forgotten: how many of them no certificate covers yet.
        begins_again: whether the weights of all earlier releases are gone.
        trained_here: whether the lineage's training is, or will be, the service's own.
        is_spent: whether a result from its weights was thrown away: the next run trains anew.
        convex: given for linear heads that are trained here only.
        ridge: given for ridge heads only.
        trees: given for boosted trees, and for ensembles of them.
        ensemble: given for ensembles only.
        rough: why no constant bounds the curvature of a record's loss, where none does.
        dp_training: given for models trained with DP-SGD only.
        tracking: of a lineage whose training was tracked, with the new request in its history; None
            before training, and where nothing is known.
    """

    retained: int
    batch_size: int
    recipe_epochs: float
    dimension: int | None = None
    earlier_releases: int = 0
    records: int | None = None
    forgotten: int = 0
    newly_forgotten: int = 0
    begins_again: bool = False
    trained_here: bool = True
    is_spent: bool = False
    convex: ConvexShape | None = None
    ridge: RidgeShape | None = None
    trees: TreesShape | None = None
    ensemble: EnsembleShape | None = None
    rough: str | None = None
    dp_training: DpTrainingShape | None = None
    tracking: Tracking | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that no model has."""
        require_steps("retained", self.retained)
        require_steps("batch_size", self.batch_size)
        require_positive("recipe_epochs", self.recipe_epochs)
        if self.dimension is not None:
            require_steps("dimension", self.dimension)
        for name, most in (
            ("retained", MOST_RECORDS),
            ("batch_size", MOST_RECORDS),
            ("recipe_epochs", MOST_EPOCHS),
            ("dimension", MOST_WEIGHTS),
        ):
            if (getattr(self, name) or 0) > most:
                raise ParameterError(name, f"at most {most}")
        require_count("forgotten", self.forgotten)
        require_count("earlier_releases", self.earlier_releases)
        if self.records is None:
            object.__setattr__(self, "records", self.retained)

    @property
    def trained_on(self) -> int:
        """Records that the present weights were, or will be, trained on."""
        return self.records or self.retained

    @property
    def is_new(self) -> bool:
        """Whether the lineage is still to be trained, here and from nothing."""
        return self.trained_here and (self.earlier_releases == 0 or self.begins_again)

    @property
    def is_head(self) -> bool:
        """Whether it can be trained anew exactly and fast."""
        return any(each is not None for each in (self.convex, self.ridge, self.trees))

    @property
    def passes(self) -> float:
        """How often a training reads each record: in each epoch, or for each tree."""
        return self.recipe_epochs if self.trees is None else self.trees.trees * self.trees.rows

    def gradients_of(self, records: int) -> float:
        """Return how many gradients a training on so many records takes: in whole batches."""
        batch = self.batch_size if self.trees is None else 1
        return self.passes * (-(-records // batch) * batch)

    def gradients_of_member(self, members: int) -> float:
        """Return how many a training of one of so many members takes."""
        return self.gradients_of(-(-self.retained // members))

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one pass over the retained records."""
        return -(-self.retained // self.batch_size)
