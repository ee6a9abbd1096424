"""What a service must leave nowhere: told as a test goes on, searched for whenever it asks."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import safetensors.numpy

from app.services import key_store_dir
from app.settings import Settings
from app.storage.file_keys import FileKeyStore
from tests.support.markers import Marker, marker_of_weights, search_bytes
from tests.support.opened import opened_objects
from tests.support.people import People
from tests.support.places import Places
from tests.support.service import Service


class Traces:
    """Made-up people, every version of their models, and all places where these could be found.

    Objects are encrypted: what is current is in no file that can be read as it is. What is gone is
    not even in the objects, for somebody who has every key.
    """

    def __init__(self, service: Service, *people: People) -> None:
        ours = service.data_dir.parent
        self.places = Places(
            service.servers,
            *(service.data_dir, service.temporary, service.log),
            ours=ours,
            processes=service.processes,
        )
        self._service = service
        self._people = people
        self._gone = [crowd.ids() for crowd in people]
        self._current: dict[str, tuple[str, list[Marker]]] = {}

    def forgotten(self, people: People, subject: int) -> None:
        """Take a subject's features for gone."""
        self._gone += people.features_of(subject)

    def superseded(self, name: str, weights: np.ndarray) -> None:
        """Take weights for gone."""
        self._gone += marker_of_weights(name, weights)

    def published(self, model: str, file: Path) -> None:
        """Take a model's weights for its current ones, and those before them for gone."""
        version, markers = self._current.get(model, ("", []))
        if file.name != version:
            self._gone += markers
            weights = safetensors.numpy.load_file(file).values()
            largest = max(weights, key=lambda tensor: tensor.size)
            self._current[model] = file.name, marker_of_weights(file.name, largest)

    def assert_none(self) -> None:
        """Search every place for what is gone, and all but opened objects for what is current.

        The service may be running; it must have come to rest.
        """
        self.places.dump()
        readable = self.places.search_what_changed([*self._gone, *self.kept()])
        assert readable == [], readable
        opened = self.opened()
        left = search_bytes(opened, self._gone)
        assert left == [], left
        assert_all_found(opened, [m for crowd in self._people for m in crowd.features()[:1]])
        for _, current in self._current.values():
            assert_all_found(opened, current[:1])

    def kept(self) -> list[Marker]:
        """Return what encrypted objects alone may hold."""
        current = [marker for _, markers in self._current.values() for marker in markers]
        return [*current, *(marker for crowd in self._people for marker in crowd.features())]

    def opened(self) -> dict[str, bytes]:
        """Return the content of every object, with all keys that are left."""
        data_dir = self._service.data_dir
        keys = FileKeyStore(key_store_dir(Settings(data_dir=data_dir)))
        with self._service.database() as database:
            return opened_objects(data_dir / "blobs", keys, database)


def assert_all_found(places: dict[str, bytes], markers: Iterable[Marker]) -> None:
    """Check that a search sees what must be there."""
    for marker in markers:
        assert search_bytes(places, [marker]) != [], marker.name
