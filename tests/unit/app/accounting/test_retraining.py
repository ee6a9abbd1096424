from app.accounting import retraining
from app.accounting.terms import Support


def test_retraining_is_exact():
    guarantee = retraining.account()
    assert guarantee.epsilon(delta=1e-12) == 0.0
    assert guarantee.delta(epsilon=0.0) == 0.0
    assert guarantee.advantage() == 0.0
    assert retraining.calibrate() == 0.0


def test_requests_that_look_at_releases_are_not_covered():
    assert not retraining.TERMS.adaptive
    assert all(a.support is Support.ENFORCED for a in retraining.TERMS.assumptions)
