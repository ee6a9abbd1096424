"""Tables whose rows the log follows."""

from typing import ClassVar


class Logged:
    """A table with the digest of each row in the log: see ``app/evidence/log/writing.py``."""

    __left_out__: ClassVar[frozenset[str]] = frozenset()
    """Columns that change without an entry, so no digest tells of them."""
