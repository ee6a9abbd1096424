"""``expunge witness``: a witness of other operators' logs."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import existing_file, option
from app.evidence.certificates.cosignature import WitnessSigner
from app.evidence.certificates.trusted_keys import read_trusted_keys
from app.evidence.witnesses.server import WitnessServer
from app.evidence.witnesses.witness import Witness


def witness(
    *,
    name: Annotated[str, option("The witness's name, such as witness.example.org.")],
    trusted: Annotated[
        list[Path],
        existing_file(
            "The trusted-keys.json of a log to watch; may be repeated. Read at each call."
        ),
    ],
    state: Annotated[
        Path, option("The file of the last cosigned checkpoints. Never lose it.")
    ] = Path("witness.json"),
    key: Annotated[
        Path, option("The private key, a PEM file of mode 0600; created if missing.")
    ] = Path("witness.pem"),
    host: Annotated[str, option("The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("The port.", min=0, max=65535)] = 8110,
) -> None:
    """Cosign the checkpoints of logs that only grow (C2SP tlog-witness), until interrupted.

    Run it where the log's operator has no access: it remembers the last size and root, and refuses
    a log that is not an extension of them. It prints its verifier key, for the service's
    EXPUNGE_WITNESSES and for --witness of 'expunge verify'.
    """
    for path in trusted:
        read_trusted_keys(path.read_bytes())
    signer = WitnessSigner.from_file(key, name=name)
    cosigner = Witness(signer, state, trusted)
    server = WitnessServer((host, port), cosigner)
    typer.echo(f"{signer.key}")
    typer.echo(f"listening on http://{host}:{server.server_address[1]} (Ctrl-C stops)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        cosigner.close()
