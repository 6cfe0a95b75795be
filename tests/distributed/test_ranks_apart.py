"""Ranks that do not do the same: they compile at other calls, share what is compiled, and end when one of them fails."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from data_parallel import build_with_other_shapes, recompile_apart, work_of_the_cache
from failing import fail_in_step
from ranks import Ranks

pytestmark = pytest.mark.compiler


def test_ranks_that_recompile_at_other_calls_wait_for_each_other(ranks):
    (one, graphs), (other, other_graphs) = ranks.run(recompile_apart)
    torch.testing.assert_close(one, other)
    grew = [[b > a for a, b in zip(counts, counts[1:], strict=False)] for counts in (graphs, other_graphs)]
    assert any(a != b for a, b in zip(*grew, strict=True))


def test_ranks_of_a_machine_share_one_compile(tmp_path):
    pair, alone = Ranks(2, FIREBRICK_CACHE_DIR=str(tmp_path / "2")), Ranks(1, FIREBRICK_CACHE_DIR=str(tmp_path / "1"))
    (one, other), (expected,) = pair.run(work_of_the_cache), alone.run(work_of_the_cache)
    pair.close(), alone.close()
    for name in ("cache misses", "units built"):
        assert one[name] + other[name] == expected[name] > 0
    assert one["cache hits"] + other["cache hits"] > expected["cache hits"]


FAILURES = {"raises": "rank 1 has no data", "is killed": "ended with code -9", "gets another shape": "4x"}


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp", "tensor"])
@pytest.mark.parametrize("how", FAILURES)
def test_a_rank_that_fails_ends_the_others(world, wrapper, how):
    group = Ranks(world)
    begin = time.monotonic()
    outcomes = group.outcomes(fail_in_step, wrapper, how)
    seconds = time.monotonic() - begin
    group.close()
    assert not any(ok for ok, _ in outcomes)
    assert seconds < 60
    causes = [cause for _, cause in outcomes]
    if (wrapper, how) == ("tensor", "gets another shape"):  # no rank knows of it before the collective
        assert all("Error" in cause or "ended with code" in cause for cause in causes)
    else:
        assert FAILURES[how] in causes.pop(1)
        assert all("gloo" in cause and "onnection" in cause for cause in causes)


@pytest.mark.slow
def test_the_launcher_names_the_rank_that_raised():
    arguments = ["--standalone", "--nproc-per-node", "4", str(Path(__file__).with_name("failing.py"))]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode
    assert "ValueError: rank 1 has no data" in done.stderr
    assert "rank      : 1 " in done.stderr  # among the failures: on a busy machine another's end is observed first


def test_other_shapes_are_named(ranks):
    for ended, error in ranks.outcomes(build_with_other_shapes):
        assert not ended
        assert "rank" in error or "shape" in error or "size" in error
