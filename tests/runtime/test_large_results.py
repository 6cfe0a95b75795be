"""Memory of large results comes in huge pages: the first write to each small page would take longer than the loop."""

import re
from pathlib import Path

import pytest
import torch

import firebrick

pytestmark = pytest.mark.compiler
SMAPS = Path("/proc/self/smaps")
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_at(address):
    """The kernel's flags of the mapping that holds an address."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        if place := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(place[1], 16) <= address < int(place[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@pytest.mark.skipif(not (SMAPS.exists() and HUGE.exists()), reason="the system has no huge pages")
@pytest.mark.parametrize(("mib", "huge"), [(40, True), (1, False)])
def test_only_large_results_ask_for_huge_pages(mib, huge):
    x = torch.ones(mib << 18)
    y = firebrick.compile(lambda x: x * 2)(x)
    assert ("hg" in flags_at(y.data_ptr() + y.nbytes // 2)) == huge
    assert torch.equal(y, x * 2)


def test_large_results_of_other_strides():
    x = torch.randn(3, 1000, 1024)
    y = firebrick.compile(lambda x: x.transpose(1, 2) + 1)(x)
    assert y.stride() == (x.transpose(1, 2) + 1).stride()
    assert torch.equal(y, x.transpose(1, 2) + 1)
