"""The simulated accelerator: its own errors, its commands, and BERT's share on it, found by entry point."""

import gc
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
from firebrick_simchip import Chip, ChipError, Operand, SimChip, SimTarget, assemble  # noqa: E402

LIMIT = 500


def test_it_is_small():
    files = list((PACKAGE / "src").rglob("*.py"))
    assert sum(len(f.read_text().splitlines()) for f in files) <= LIMIT


def stored(chip, array):
    """An array on the chip, as an operand."""
    buffer = chip.allocate(array.nbytes)
    chip.write(buffer, array)
    return dense(buffer, array.shape)


def dense(buffer, shape):
    strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return Operand(buffer, tuple(shape), strides)


def test_commands_run_in_order_and_take_time():
    chip = Chip(memory=1 << 20)
    x, y = stored(chip, np.ones((4, 8), np.float32)), stored(chip, np.full((8, 2), 2, np.float32))
    z = dense(chip.allocate(32), (4, 2))
    chip.run("matmul_div", [x, y], z, (4,))
    kernels = assemble("def k(a0, a1):\n  x1 = load(a0, f32, lane)\n  store(a1, f32, lane, add(x1, 0.5))\n")
    w = chip.allocate(32)
    chip.launch(kernels["k"], [z.buffer, w], 8)
    out = chip.read(w, np.empty((4, 2), np.float32))
    assert (out == 4.5).all()
    assert [c.name for c in chip.log] == ["write", "write", "matmul_div", "k", "read"]
    assert all(c.start < c.end for c in chip.log)
    assert chip.clock == chip.log[-1].end


def test_a_kernel_with_masks_and_loops():
    text = """
def rows(a0, a1):
  x1 = lt(lane, 3)
  r0 = 0.0
  for i0 in range(4):
    x2 = load(a0, f32, 4 * lane + i0, x1)
    r0 = add(r0, x2)
  store(a1, f32, lane, r0, x1)
"""
    chip = Chip(memory=1 << 20)
    x = stored(chip, np.arange(12, dtype=np.float32))
    out = chip.allocate(12)
    chip.launch(assemble(text)["rows"], [x.buffer, out], 64)
    assert chip.read(out, np.empty(3, np.float32)).tolist() == [6, 22, 38]


def test_errors():
    chip = Chip(memory=4096)
    with pytest.raises(ChipError, match="only float32 and bool"):
        stored(chip, np.ones(3))
    with pytest.raises(ChipError, match="out of memory: 8192 bytes wanted, 3840 free"):
        chip.allocate(8192)
    x, y = stored(chip, np.ones((2, 3), np.float32)), stored(chip, np.ones((2, 3), np.float32))
    four = dense(chip.allocate(16), (2, 2))
    with pytest.raises(ChipError, match="no operation 'fft'"):
        chip.run("fft", [x], four)
    chip.run("matmul", [x, y], four)
    with pytest.raises(ChipError, match="matmul:"):
        chip.wait()
    chip.run("matmul", [x, dense(y.buffer, (3, 2))], dense(x.buffer, (3, 2)))
    with pytest.raises(ChipError, match=r"matmul gives \(2, 2\), its output b\d is \(3, 2\)"):
        chip.wait()
    chip.run("matmul", [x, dense(y.buffer, (3, 99))], four)
    with pytest.raises(ChipError, match="ends beyond"):
        chip.wait()
    with pytest.raises(ChipError, match=r"k, line 2: no instruction fft"):
        assemble("def k(a0):\n  x1 = fft(a0)\n")
    with pytest.raises(ChipError, match="line 1"):
        assemble("def k(")
    (kernel,) = assemble("def k(a0):\n  store(a0, f32, lane, 1.0)\n").values()
    chip.launch(kernel, [four.buffer], 99)
    with pytest.raises(ChipError, match="k: index 4 is out of bounds"):
        chip.wait()
    chip.launch(kernel, [], 1)
    with pytest.raises(ChipError, match="k takes 1 buffers, not 0"):
        chip.wait()
    chip.release(x.buffer)
    with pytest.raises(ChipError, match="released"):
        chip.read(x.buffer, np.empty(6, np.float32))


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
    names = [c.name for c in chip.log]
    assert {"matmul_div", "matmul_add", "matmul"} <= set(names)
    kernels = {n for n in names if n.startswith("k")}
    assert 1 <= len(kernels) <= 3, "softmax, relu and the sum are kernels, not one command an op"
    assert "100 %" in texts[0]
    chip.wait()
    assert len(chip.live) == 4, "weights stay, the rest is given back"


def test_pointwise_ops_become_one_kernel_in_the_chips_language(monkeypatch):
    chip, texts = Chip(), []
    load = SimTarget.load
    monkeypatch.setattr(SimTarget, "load", lambda self, given, *rest: texts.extend(given) or load(self, given, *rest))
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    compiled = firebrick.compile(lambda x, y: torch.tanh(x * 2 + y) - x, backend=engine_backend(SimChip(chip)))
    torch.testing.assert_close(compiled(x, y), torch.tanh(x * 2 + y) - x)
    (text,) = texts
    (name,) = [c.name for c in chip.log if c.name not in ("write", "read")]
    assert text.splitlines()[0] == f"def {name}(a0, a1, a2):"
    assert "  x3 = mul(x1, 2.0)" in text or "  x2 = mul(x1, 2.0)" in text
    assert [c.name for c in chip.log] == ["write", "write", name, "read"]


def test_what_the_chip_lacks_stays_with_pytorch():
    texts = []
    compiled = firebrick.compile(
        lambda x: torch.relu(torch.erf(x) + torch.lgamma(x)),
        backend=engine_backend(SimChip(Chip()), report=texts.append),
    )
    x = torch.rand(5) + 1
    torch.testing.assert_close(compiled(x), torch.relu(torch.erf(x) + torch.lgamma(x)))
    assert "no lgamma of f32" in texts[0]
    assert "no erf of f32" in texts[0]


def test_memory_comes_back_when_a_program_is_dropped():
    gc.collect()  # what earlier tests left in cycles
    chip = Chip()
    compiled = firebrick.compile(nn.Linear(4, 4).eval(), backend=engine_backend(SimChip(chip)))
    with torch.no_grad():
        compiled(torch.randn(2, 4))
    chip.wait()
    assert len(chip.live) == 2
    del compiled
    gc.collect()
    chip.wait()
    assert not chip.live


def test_weights_are_copied_once_and_what_lies_between_ops_never():
    """Of two groups with work of the CPU between them: each call copies the input, what the CPU reads and gives."""
    torch.manual_seed(0)
    model, x, chip = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval(), torch.randn(3, 8), Chip()
    compiled = firebrick.compile(lambda x: model(torch.erf(model(x))), passes=[SimChip(chip)])
    with torch.no_grad():
        for call in range(3):
            before = len(chip.log)
            torch.testing.assert_close(compiled(x), model(torch.erf(model(x))))
            moved = [c.name for c in chip.log[before:] if c.name in ("write", "read")]
            assert moved.count("read") == 2 and moved.count("write") == (6 if call == 0 else 2)


def test_a_full_chip_falls_back():
    model, x = Scores().eval(), torch.randn(2, 5, 8)
    compiled = firebrick.compile(model, backend=engine_backend(SimChip(Chip(memory=512))))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


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


@pytest.mark.parametrize("scale", [lambda y: y / 4.0, lambda y: y * 0.25, lambda y: (y / 4.0).view(2, 5, 1, 5)])
def test_matmul_and_division_are_one_command(scale):
    chip = Chip()
    compiled = firebrick.compile(lambda x: scale(torch.matmul(x, x.mT)), backend=engine_backend(SimChip(chip)))
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(compiled(x), scale(torch.matmul(x, x.mT)))
    assert [c.name for c in chip.log].count("matmul_div") == 1
    assert not [c for c in chip.log if c.name.startswith("k")]
