"""How processes of this service log: one format, and no chatter of libraries."""

import logging

_QUIET = ("httpx", "alembic", "rq")


def configure() -> None:
    """Log to standard error from INFO up; libraries from WARNING up."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
