"""A released version as the files that others use, in the layout of the Hugging Face Hub."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

WEIGHTS: Final = "model.safetensors"
CERTIFICATE: Final = "certificate.json"
CARD: Final = "README.md"
CONFIG: Final = "config.json"


@dataclass(frozen=True)
class Release:
    """A version that is served now, under one certificate.

    Attributes:
        version_id: of the version.
        number: by which the version is known.
        certificate_id: of its certificate; the same version may get another one later.
        sha256: of the weights, in hexadecimal.
        size_bytes: of the weights.
        epsilon: of the certificate's guarantee; None if it guarantees nothing.
        delta: likewise.
        files: the content of all files but the weights, by name.
        weights: opens the weights, in parts.
    """

    version_id: str
    number: int
    certificate_id: str
    sha256: str
    size_bytes: int
    epsilon: float | None
    delta: float | None
    files: Mapping[str, bytes] = field(repr=False)
    weights: Callable[[], Iterable[bytes]] = field(repr=False)

    @property
    def content_id(self) -> str:
        """Names the version together with its certificate, as a name of a folder."""
        return f"v{self.number}-{self.certificate_id}"


def weights_filename(model: str, number: int) -> str:
    """Return the name of a version's weights."""
    return f"{model}-v{number}.safetensors"


def certificate_filename(model: str, number: int) -> str:
    """Return the name of a version's certificate bundle."""
    return f"{model}-v{number}.certificate.json"


def signature_filename(model: str, number: int) -> str:
    """Return the name of a version's model signature."""
    return f"{model}-v{number}.sig"
