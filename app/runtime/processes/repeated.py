"""Work that is repeated in a thread of this process, until it is stopped."""

import threading
from collections.abc import Callable

_SHORTEST_DELAY_S = 1.0


class Repeated:
    """A thread that works in rounds, whatever fails meanwhile.

    ``pause_s`` is the time between two rounds; after failures it grows from a second to
    ``longest_s``. ``on_failure`` gets the first of several failures in a row.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        pause_s: float,
        longest_s: float = _SHORTEST_DELAY_S,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.stopping = threading.Event()
        self._work = work
        self._pause_s = pause_s
        self._longest_s = longest_s
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin, a pause from now."""
        self._thread.start()

    def stop(self, wait_s: float | None = None) -> None:
        """Begin no further round, and wait for the present one, perhaps not for longer."""
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def _run(self) -> None:
        delay_s, failing = self._pause_s, False
        while not self.stopping.wait(delay_s):
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - what is away may come back
                if not failing:
                    self._on_failure(error)
                failing = True
                delay_s = min(max(_SHORTEST_DELAY_S, 2 * delay_s), self._longest_s)
            else:
                delay_s, failing = self._pause_s, False
