"""A requester who looks at a release first: Chourasia & Shah 2023, section 3 and Theorem 3.1.

Of each person, the requester asks for the person's record to be forgotten together with the
witness that contradicts the release. What stays is the witness that agrees: whoever sees only the
release after the request reads the coin from it, whether or not the person's record was forgotten
to the last bit. Only noise in the release that the requester saw helps.

An exact certificate is contradicted also where it says ``adaptive``: it does not cover what the
choice of requests gives away, and says so.
"""

from people import PEOPLE, Service, coins, told

POLICIES = {
    "retraining": {"mechanism": "retraining"},
    "tracked_release": {"mechanism": "tracked_release"},
    "exact_training": {"mechanism": "exact_training", "adaptive": True},
    "noisy_gd_convex": {
        "mechanism": "noisy_gd_convex",
        "adaptive": True,
        "parameters": {"earlier_releases": 1, "forgotten": 2 * PEOPLE},
    },
}

for mechanism, policy in POLICIES.items():
    labels = coins()
    service = Service(labels, policy)
    seen, _ = service.release()
    contradicting = ["zero" if score > 0 else "one" for score in seen]
    service.forget(
        f"{kind}-{axis}" for axis in range(PEOPLE) for kind in ("person", contradicting[axis])
    )
    scores, certificate = service.release()
    told(mechanism, certificate["guarantee"], scores, labels)
    service.archive()
