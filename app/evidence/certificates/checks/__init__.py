"""A verifier's checks: fields, place in the log, weights, guarantee."""
