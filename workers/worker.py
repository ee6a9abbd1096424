"""The worker process: one run at a time, each in a child of its own.

Torch is imported before forking, so that a child starts at once; CUDA is never touched here.
"""

import torch  # noqa: F401 - imported once, for all children
from rq import Worker
from rq.serializers import JSONSerializer

import workers.jobs  # noqa: F401 - likewise
from app.services import redis_connection
from app.settings import Settings
from workers.queue import NAME


def main() -> None:
    """Work until SIGTERM or SIGINT."""
    connection = redis_connection(Settings())
    worker = Worker(
        [NAME], connection=connection, serializer=JSONSerializer, log_job_description=False
    )
    worker.work(logging_level="WARNING")
