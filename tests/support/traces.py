"""What a service must leave nowhere: told as a test goes on, searched for whenever it asks."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from app.domain import provenance
from app.domain.states import VersionState
from app.runtime.settings import Settings
from app.storage.stores import key_store
from tests.support.markers import Marker, marker_of_weights, search_bytes
from tests.support.opened import opened_beside, opened_objects
from tests.support.people import People
from tests.support.places import Places
from tests.support.service import Service


class Traces:
    """Made-up people, every version of their models, and all places where these could be found.

    Objects are encrypted: what is current is in no file that can be read as it is. What is gone is
    not even in the objects, for somebody who has every key.

    Attributes:
        places: what is searched.
        gone: what must be left nowhere.
    """

    def __init__(self, service: Service, *people: People) -> None:
        self.places = Places(
            service.servers,
            *(service.data_dir, service.temporary, service.log),
            ours=service.data_dir.parent,
            processes=service.processes,
        )
        self.gone: list[Marker] = []
        self._searched_for = 0
        self._service = service
        self._people = people
        self._current: dict[str, bytes] = {}
        self._seeds: set[str] = set()
        self.gone += self._ids()

    def forgotten(self, people: People, subject: int) -> None:
        """Take a subject's features for gone."""
        self.gone += people.features_of(subject)

    def superseded(self, name: str, content: bytes) -> None:
        """Take weights for gone: the content of a safetensors file."""
        self.gone += _markers_of(name, safetensors.numpy.load(content))

    def published(self, model: str, content: bytes) -> None:
        """Take weights for a model's current ones, and those that they replace for gone."""
        if model in self._current:
            before, now = map(safetensors.numpy.load, (self._current[model], content))
            replaced = {
                name: tensor
                for name, tensor in before.items()
                if name not in now or not np.array_equal(tensor, now[name])
            }
            self.gone += _markers_of(f"weights of {model}", replaced) if replaced else []
        self._current[model] = content
        keys = key_store(Settings(data_dir=self._service.data_dir))
        with self._service.database() as database:
            kept = opened_beside(keys, database, VersionState.PRIVATE, VersionState.CERTIFIED)
        known = [provenance.from_bytes(each) for each in kept.values()]
        now = {each.seed for members in known for each in members.values()}
        self.gone += _seeds(self._seeds - now)
        self._seeds = now

    def kept(self) -> list[Marker]:
        """Return what encrypted objects alone may hold."""
        current = [marker for markers in self._weights() for marker in markers]
        current += _seeds(self._seeds)
        return [*current, *(marker for crowd in self._people for marker in crowd.features())]

    def opened(self) -> dict[str, bytes]:
        """Return the content of every object, with all keys that are left."""
        data_dir = self._service.data_dir
        keys = key_store(Settings(data_dir=data_dir))
        with self._service.database() as database:
            return opened_objects(data_dir / "blobs", keys, database)

    def assert_nothing_in_objects(self, opened: Mapping[str, bytes]) -> None:
        """Check that what is current is in the objects, and nothing that is gone."""
        found = search_bytes(opened, self.gone)
        assert found == [], found
        pushed = [crowd.features()[0] for crowd in self._people]
        for marker in (*pushed, *(markers[0] for markers in self._weights())):
            assert search_bytes(opened, [marker]) != [], marker.name

    def assert_none(self) -> None:
        """Search what has changed since the last call; the service may be running, and be at rest.

        What was gone already was searched for then; objects are searched for all that is gone.
        """
        self.places.dump()
        gone = [*self._ids(), *self.gone[self._searched_for :]]
        self._searched_for = len(self.gone)
        found = self.places.search_what_changed([*gone, *self.kept()])
        assert found == [], found
        self.assert_nothing_in_objects(self.opened())

    def assert_none_at_all(self) -> None:
        """Search every place for all that is gone or kept."""
        self.places.dump()
        found = self.places.search([*self.gone, *self.kept()])
        assert found == [], found

    def _ids(self) -> list[Marker]:
        return [crowd.ids() for crowd in self._people]

    def _weights(self) -> Iterator[list[Marker]]:
        for model, content in self._current.items():
            yield _markers_of(f"weights of {model}", safetensors.numpy.load(content))


def _seeds(seeds: Iterable[str]) -> list[Marker]:
    return [Marker("a seed", bytes.fromhex(each)) for each in sorted(seeds)]


def _markers_of(name: str, tensors: Mapping[str, NDArray[Any]]) -> list[Marker]:
    return marker_of_weights(name, max(tensors.values(), key=lambda tensor: tensor.size))
