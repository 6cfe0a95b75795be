"""Ranks that do not do the same: they compile at other calls, share what is compiled, and end when one of them fails."""

import pytest
import torch
from data_parallel import build_with_other_shapes, fail_in_step, recompile_apart, work_of_the_cache
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


FAILURES = {"raises": "rank 1 has no data", "is killed": "ended with code -9", "gets another shape": "4x15"}


@pytest.mark.slow
@pytest.mark.parametrize("how", FAILURES)
def test_a_rank_that_fails_ends_the_others(how):
    pair = Ranks()
    (ended, error), (other_ended, cause) = pair.outcomes(fail_in_step, how)
    pair.close()
    assert not ended
    assert not other_ended
    assert FAILURES[how] in cause
    assert "Error" in error


def test_other_shapes_are_named(ranks):
    for ended, error in ranks.outcomes(build_with_other_shapes):
        assert not ended
        assert "rank" in error or "shape" in error or "size" in error
