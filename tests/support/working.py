"""Work in this process, through the real queue."""

from collections.abc import Callable

from rq import SimpleWorker
from rq.serializers import JSONSerializer

from app.runtime.locations import redis_connection
from app.services import Services
from workers.dispatcher import Dispatcher
from workers.queue import NAME, open_queue


def working(services: Services) -> Callable[[], None]:
    """Return what dispatches and works until nothing is left to do; the queue is emptied first."""
    connection = redis_connection(services.settings)
    connection.flushdb()
    queue = open_queue(connection)
    dispatcher = Dispatcher(services, queue)

    def until_idle() -> None:
        for _ in range(20):
            dispatcher.tick()
            if not queue.count:
                return
            worker = SimpleWorker([NAME], connection=connection, serializer=JSONSerializer)
            worker.work(burst=True, logging_level="WARNING")
        raise AssertionError("the queue never became empty")

    return until_idle
