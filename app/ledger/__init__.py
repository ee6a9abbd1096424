"""Forget requests, obligations, runs, the outbox and publication.

Everything raises ``NotFoundError`` for an id that does not exist, ``ConflictError`` where a state
does not allow it now, and ``LeaseLostError`` where another worker holds the run, or it is over;
where a run is planned, what planning raises.
"""
