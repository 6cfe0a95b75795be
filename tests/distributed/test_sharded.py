"""FSDP2 and tensor parallel with compiled modules give what they give in plain Python."""

import pytest
from sharded import compare, save_and_load


@pytest.mark.compiler
@pytest.mark.parametrize("how", ["module", "blocks", "step"])
@pytest.mark.parametrize("wrapper", ["fsdp", "tensor"])
def test_parameters_after_20_steps_with_shards(ranks, wrapper, how):
    graphs = ranks.run(compare, wrapper, how)
    assert all(graphs)
    if (wrapper, how) == ("tensor", "module"):
        assert graphs == [1, 1]  # its collectives are in it


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["fsdp", "tensor"])
def test_four_processes(four_ranks, wrapper):
    assert all(four_ranks.run(compare, wrapper, "module"))


@pytest.mark.compiler
def test_distributed_checkpoint_of_a_compiled_module(ranks, tmp_path):
    ranks.run(save_and_load, str(tmp_path))
