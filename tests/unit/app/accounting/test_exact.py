from app.accounting import exact
from app.accounting.guarantees import ExactGuarantee
from app.accounting.terms import Support


def test_retraining_is_exact():
    guarantee = ExactGuarantee(terms=exact.RETRAINING)
    assert guarantee.epsilon(delta=1e-12) == 0.0
    assert guarantee.delta(epsilon=0.0) == 0.0
    assert guarantee.advantage() == 0.0


def test_requests_that_look_at_releases_are_not_covered():
    assert not exact.RETRAINING.adaptive
    assert all(a.support is Support.ENFORCED for a in exact.RETRAINING.assumptions)
