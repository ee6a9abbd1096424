"""Models that live through planned runs and requests, without a service: what planning is asked."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.domain.heads import boosted_trees
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.planning.planner import make_plan
from app.planning.shape import ConvexShape, EnsembleShape, ModelShape, RidgeShape, TreesShape
from app.planning.tracking import Tracking, history_of_run

HEAD = ConvexShape(lipschitz=1.0, smoothness=0.25, weight_decay=0.05, learning_rate=1.0)
NEW = ModelShape(
    retained=1000, records=1000, batch_size=100, recipe_epochs=5, dimension=20, convex=HEAD
)

ENSEMBLE = replace(NEW, convex=None, ensemble=EnsembleShape(4))
TREES = replace(NEW, convex=None, trees=TreesShape(**boosted_trees.DEFAULTS))
RIDGE = replace(NEW, convex=None, ridge=RidgeShape(feature_range=16.0))


def planned(shape: ModelShape, mechanism: str, **policy: Any) -> Plan:
    """Return the plan of the next run."""
    return make_plan(policy=Policy(mechanism=mechanism, **policy), shape=shape)


def after(plan: Plan, shape: ModelShape, *, forget: Mapping[int, int]) -> ModelShape:
    """Return the model once the plan was carried out and the next request came."""
    history, forgotten = None, shape.forgotten + sum(forget.values())
    if plan.history is not None:
        history = history_of_run(plan, steps=int(plan.settings["steps"])).after_request(forget)
        forgotten = history.forgotten()
    tracking = Tracking(
        plan.mechanism, 0, settings=plan.settings, training=plan.training, history=history
    )
    return replace(
        shape,
        retained=shape.trained_on - forgotten,
        forgotten=forgotten,
        newly_forgotten=sum(forget.values()),
        earlier_releases=shape.earlier_releases + 1,
        tracking=tracking,
    )


def trained(
    mechanism: str,
    *,
    shape: ModelShape = NEW,
    forget: Mapping[int, int] | None = None,
    **policy: Any,
) -> ModelShape:
    """Return a model after its training and a first request, by default for one record."""
    return after(planned(shape, mechanism, **policy), shape, forget=forget or {0: 1})
