"""The simulated accelerator: its own errors, its commands, and BERT's share on it, found by entry point."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import firebrick
from firebrick.backends.engines import engine_backend

PACKAGE = Path(__file__).parents[2] / "examples" / "firebrick_simchip"
sys.path.insert(0, str(PACKAGE / "src"))
from firebrick_simchip import Chip, ChipError, SimChip  # noqa: E402

LIMIT = 500


def test_it_is_small():
    files = list((PACKAGE / "src").rglob("*.py"))
    assert sum(len(f.read_text().splitlines()) for f in files) <= LIMIT


def test_commands_run_in_order_and_take_time():
    chip = Chip(memory=1 << 20)
    a, b = np.ones((4, 8), np.float32), np.full((8, 2), 2, np.float32)
    x, y = chip.write(a), chip.write(b)
    z = chip.allocate((4, 2))
    chip.run("matmul_div", [x, y], z, (4,))
    assert (chip.read(z) == 4).all()
    assert [c.name for c in chip.log] == ["write", "write", "matmul_div", "read"]
    assert all(c.start < c.end for c in chip.log)
    assert chip.clock == chip.log[-1].end


def test_errors():
    chip = Chip(memory=4096)
    with pytest.raises(ChipError, match="only float32"):
        chip.write(np.ones(3))
    with pytest.raises(ChipError, match="out of memory: 8192 bytes wanted, 4096 free"):
        chip.allocate((2048,))
    with pytest.raises(ChipError, match="no kernel 'fft'"):
        chip.run("fft", [chip.allocate((2,))], chip.allocate((2,)))
    x, y = chip.write(np.ones((2, 3), np.float32)), chip.write(np.ones((2, 3), np.float32))
    chip.run("matmul", [x, y], chip.allocate((2, 2)))
    with pytest.raises(ChipError, match="matmul:"):
        chip.wait()
    chip.run("add", [x, y], chip.allocate((3, 3)))
    with pytest.raises(ChipError, match=r"add gives \(2, 3\), its output b\d is \(3, 3\)"):
        chip.wait()
    chip.release(x)
    with pytest.raises(ChipError, match="released"):
        chip.read(x)


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        y = torch.bmm(x, x.transpose(1, 2)) / 4.0
        return self.down(torch.relu(self.up(torch.softmax(y, -1) @ x))) + x


def test_as_a_backend():
    torch.manual_seed(0)
    model, x = Scores().eval(), torch.randn(2, 5, 8)
    chip, texts = Chip(), []
    compiled = firebrick.compile(model, backend=engine_backend(SimChip(chip), report=texts.append))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
    names = {c.name for c in chip.log}
    assert {"matmul_div", "matmul_add", "relu"} <= names
    assert "simchip refused" in texts[0]
    assert len(chip.live) == 4, "weights stay, the rest is given back"


def test_a_full_chip_falls_back():
    model, x = Scores().eval(), torch.randn(2, 5, 8)
    small = Chip(memory=512)
    compiled = firebrick.compile(model, backend=engine_backend(SimChip(small)))
    with torch.no_grad(), pytest.raises(firebrick.errors.BackendError, match="out of memory"):
        compiled(x)


@pytest.mark.slow
def test_the_entry_point_is_found(tmp_path):
    target = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
    ]
    subprocess.run([*command, str(PACKAGE)], check=True, capture_output=True)
    code = (
        "import torch, firebrick; assert 'simchip' in firebrick.list_backends();"
        "f = firebrick.compile(lambda x: torch.relu(x @ x) + 1, backend='simchip');"
        "x = torch.randn(4, 4); torch.testing.assert_close(f(x), torch.relu(x @ x) + 1);"
        "import firebrick_simchip; assert firebrick_simchip.chip().log"
    )
    source = Path(__file__).parents[2] / "src"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": f"{target}:{source}", "FIREBRICK_STRICT": "1"}
    )
