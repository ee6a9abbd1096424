"""The files of present versions, as the API's verifier remembers them.

A version's file never changes. Each process reads it once, as far as the verifier asks about it;
what is kept is its digest, its header, and of numbers in F64 their norm and whether they lie on the
grid of their noise.
"""

from app.domain.description import ModelDescription
from app.domain.errors import VerificationError
from app.evidence.certificates.weights_file import StoredTensor, WeightsFile, opened
from app.registry.remembered import Newest
from app.registry.tables import VersionRow
from app.storage.blobs import Blobs


class RememberedFile(WeightsFile):
    """What a verifier asks about a file, without the file."""

    def __init__(self, file: WeightsFile, *, grid: float | None) -> None:
        self._sha256 = file.sha256()
        self._tensors = file.tensors()
        self._description = file.description()
        self._grid = grid
        heads = [tensor for tensor in self._tensors.values() if tensor.dtype == "F64"]
        self._norms = {tensor: file.norm(tensor) for tensor in heads}
        self._on_grid = {
            tensor for tensor in heads if grid is not None and file.is_on_grid(tensor, grid)
        }

    def sha256(self) -> str:
        """Return the digest of the whole file, in hex."""
        return self._sha256

    def tensors(self) -> dict[str, StoredTensor]:
        """Return the tensors by name."""
        return self._tensors

    def description(self) -> ModelDescription | None:
        """Return what the file says of its model; None if it says nothing."""
        return self._description

    def is_on_grid(self, tensor: StoredTensor, grid: float) -> bool:
        """Return whether every number of a tensor is a multiple of its noise's grid."""
        if grid != self._grid:
            raise VerificationError("weights", "another grid than the version's")
        return tensor in self._on_grid

    def norm(self, tensor: StoredTensor) -> float:
        """Return the norm of an F64 tensor."""
        return self._norms[tensor]


class PresentWeights:
    """Remembers the files of the versions that were asked about last."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._known: Newest[str, RememberedFile] = Newest()

    def knows(self, version: VersionRow) -> bool:
        """Return whether a version's file need not be read any more."""
        return version.id in self._known

    def of_version(self, version: VersionRow, *, grid: float | None) -> RememberedFile:
        """Return a version's file, whose certificate states this grid.

        Raises:
            ExpungeError: it cannot be read, or it is not the version's.
        """
        known = self._known.get(version.id)
        if known is None:
            with opened(self._blobs.read(version.blob_id)) as file:
                known = self._known.add(version.id, RememberedFile(file, grid=grid))
        if known.sha256() != version.sha256:
            raise VerificationError("digest", "the stored weights are not the version's")
        return known
