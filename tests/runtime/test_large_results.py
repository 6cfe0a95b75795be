"""Memory of large results comes in huge pages: the first write to each small page would take longer than the loop."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import firebrick

pytestmark = pytest.mark.compiler
SMAPS = Path("/proc/self/smaps")
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


PROGRAM = """
import sys
import torch
import firebrick
from pathlib import Path
import re

x = torch.ones(int(sys.argv[1]) << 18)
y = firebrick.compile(lambda x: x * 2)(x)
assert torch.equal(y, x * 2)
address, inside = y.data_ptr() + y.nbytes // 2, False
for line in Path("/proc/self/smaps").read_text().splitlines():
    if place := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
        inside = int(place[1], 16) <= address < int(place[2], 16)
    elif inside and line.startswith("VmFlags:"):
        print("hg" in line.split())
"""


@pytest.mark.skipif(not (SMAPS.exists() and HUGE.exists()), reason="the system has no huge pages")
@pytest.mark.parametrize(("mib", "huge"), [(40, True), (1, False)])
def test_only_large_results_ask_for_huge_pages(mib, huge):
    # a process of its own: memory that a large result had asked for may be given to a small one
    found = subprocess.run([sys.executable, "-c", PROGRAM, str(mib)], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(huge)]


DROPPED = """
import ctypes
import resource
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages, whatever the system's setting is: pages are counted
import torch
import firebrick

xs = [torch.ones(1 << 18) for _ in range(100)]
double = firebrick.compile(lambda xs: [x * 2 for x in xs], options={"keep_memory": True})
for _ in range(3):
    double(xs)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
double(xs)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults(**environment: str) -> int:
    """Of a call whose 100 MiB of results, 25,600 pages, are as large as those that the calls before it dropped."""
    program = [sys.executable, "-c", DROPPED]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))} | environment
    return int(subprocess.run(program, capture_output=True, text=True, check=True, env=env).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library gives memory back as it likes")
def test_results_use_the_memory_of_dropped_ones():
    assert _page_faults() < 5_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library gives memory back as it likes")
def test_memory_is_given_back_as_the_user_told_the_c_library():
    assert _page_faults(MALLOC_TRIM_THRESHOLD_="131072") > 20_000


def test_large_results_of_other_strides():
    x = torch.randn(3, 1000, 1024)
    y = firebrick.compile(lambda x: x.transpose(1, 2) + 1)(x)
    assert y.stride() == (x.transpose(1, 2) + 1).stride()
    assert torch.equal(y, x.transpose(1, 2) + 1)
