"""``python -m expunge.recompute KIT RECORDS``: computes a version again, without a service.

KIT is what ``expunge recompute-kit`` wrote, RECORDS your own copy of the records: Parquet, CSV,
Arrow or npz, with the columns of the dataset. Exits with 1 if something else comes out.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from app.domain.errors import ExpungeError
from workers.__main__ import prepare_environment


def main() -> None:
    """Print the digests of what was released and of what was computed, as JSON."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    prepare_environment()
    from workers.recompute import recompute_from  # noqa: PLC0415 - after the environment

    try:
        found = recompute_from(Path(sys.argv[1]), Path(sys.argv[2]))
    except ExpungeError as error:
        sys.exit(f"error: {error}")
    print(json.dumps(asdict(found) | {"equal": found.is_equal}, indent=1))  # noqa: T201
    sys.exit(0 if found.is_equal else 1)


if __name__ == "__main__":
    main()
