"""Measurements that anyone can repeat, one command each."""

import os

# As in the service's processes: threads that spin at barriers would count as work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
