"""Kernels that are measured as functions of any shape have all that their shape asks for: weights that a tall tile reads
in place were packed by nothing where it was not the last, and a last panel of one vector had no tiles."""

import pytest
import torch
import torch.nn.functional as F

from firebrick.config import Config
from firebrick.targets.cpu.choices import COLUMNS
from firebrick.targets.cpu.convolution_probe import ConvolutionProbe
from firebrick.targets.cpu.cpu_target import detect, runs_here
from firebrick.targets.cpu.matmul_probe import MatmulProbe

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
    columns = COLUMNS[target.vector_bytes]
    probe = ConvolutionProbe(target, config, columns)
    outer = columns + target.vector_bytes // 4
    x, weight = torch.randn(1, 8, 14, 14).contiguous(memory_format=torch.channels_last), torch.randn(outer, 8, 3, 3)
    expected = F.conv2d(x, weight, bias := torch.randn(outer), padding=1)
    out = torch.empty_like(expected, memory_format=torch.channels_last)
    probe.run(x, weight, bias, out, ((1, 1), (1, 1), (1, 1)), False)()
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=1e-4)
