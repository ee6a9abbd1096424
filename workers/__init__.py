"""Everything that processes weights and records: the only package that uses torch."""

import os

# Read by MKL at its first product: else a row's last bits depend on where it lies in memory, so
# DP-SGD could compute few records at once.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
