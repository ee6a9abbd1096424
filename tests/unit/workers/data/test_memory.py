"""What the allocator keeps of freed memory."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from workers.data.memory import keep_freed
from workers.training.networks.heads import LinearHead

if sys.argv[1] == "kept":
    keep_freed()
head = LinearHead(3072, 10, rows=10, feature_norm=None, bias=0.5)
records = torch.rand(152, 3072)
for _ in range(5):
    head(records)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    head(records)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)
"""


@pytest.mark.slow  # it starts programs that import PyTorch
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_a_steps_memory_is_that_of_the_step_before() -> None:
    """A page that the kernel cleared for one step is not cleared for the next one again."""
    # What glibc keeps on its own depends on what was freed before; so it keeps nothing.
    alone = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
    asked = [sys.executable, "-c", FAULTS]
    faults = [int(subprocess.check_output([*asked, how], env=alone)) for how in ("kept", "not")]
    assert faults[0] < 500 < faults[1]
