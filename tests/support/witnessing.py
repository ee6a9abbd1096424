"""Witnesses that run, and logs that they see."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.evidence.certificates.cosignature import WitnessSigner
from app.evidence.witnesses.server import WitnessServer
from app.evidence.witnesses.submission import Submission
from app.evidence.witnesses.witness import Witness
from tests.support import trees
from tests.support.bundles import SmallLog
from tests.support.patience import PATIENCE_S


def witness_signer(name: str = "witness.example") -> WitnessSigner:
    """Return a fresh witness's signer."""
    return WitnessSigner(Ed25519PrivateKey.generate(), name=name)


@contextmanager
def serving(
    signer: WitnessSigner, state: Path, *trusted: Path, address: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[str]:
    """Run a witness; yield its URL."""
    witness = Witness(signer, state, trusted)
    server = WitnessServer(address, witness)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(PATIENCE_S)
        server.server_close()
        witness.close()


def submission(log: SmallLog, *, old_size: int, size: int | None = None) -> bytes:
    """Return what a log sends about its first ``size`` entries, by default all."""
    leaves = log.leaves()[:size]
    same = old_size in (0, len(leaves))
    proof = [] if same else trees.proof(old_size, leaves)
    return Submission(old_size, proof, log.checkpoint(size=size)).to_bytes()
