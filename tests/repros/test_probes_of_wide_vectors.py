"""Kernels that are measured as functions of any shape have all that their shape asks for: weights that a tall tile reads
in place were packed by nothing where it was not the last, and a last panel of one vector had no tiles."""

import pytest
import torch

from firebrick.config import Config
from firebrick.targets.cpu.choices import COLUMNS
from firebrick.targets.cpu.cpu_target import detect, runs_here
from firebrick.targets.cpu.matmul_probe import MatmulProbe
from firebrick.targets.cpu.measured_runs import convolutions

pytestmark = pytest.mark.compiler
LEVELS = [level for level in ("avx2", "avx512", "neon") if runs_here(level)]


def at(level, folder):
    config = Config.from_env().with_options({"cache_dir": folder, "simd": level})
    return detect(config), config


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 6, 14, 15, 29, 130])
def test_panels_of_columns_are_packed(level, rows, tmp_path):
    probe = MatmulProbe(*at(level, tmp_path), False)
    x, weight, bias, out = torch.randn(rows, 64), torch.randn(64, 96), torch.randn(96), torch.empty(rows, 96)
    probe.run(probe.plan("panels", (rows, 64, 96), False), (x, weight, bias), out)()
    torch.testing.assert_close(out, torch.addmm(bias, x, weight), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("level", LEVELS)
def test_a_panel_of_one_vector_has_tiles(level, tmp_path):
    target, config = at(level, tmp_path)
    outer = COLUMNS[target.vector_bytes] + target.vector_bytes // 4
    x, weight = torch.empty(1, 8, 14, 14), torch.empty(outer, 8, 3, 3)
    args = (x, weight, [1, 1], [1, 1], [1, 1], 1, torch.empty(1, outer, 14, 14))
    forms = dict.fromkeys((c.name for c in target.choices("aten::convolution", args) if c.name != "call"), 0)
    runs = dict(convolutions(target, config, forms, *args))
    assert runs.keys() == forms.keys()
    for run in runs.values():
        run()
