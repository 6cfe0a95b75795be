"""Programs in files on a GPU: saved in one process, loaded in another that has neither the model's code nor Triton."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick.errors import CacheError, ConfigError

LOAD = """
import sys, torch, firebrick
sys.modules["triton"] = None
loaded = firebrick.load(sys.argv[1])
calls, wanted = torch.load(sys.argv[2])
with torch.no_grad():
    for args, want in zip(calls, wanted):
        for _ in range(6):  # recorded too
            made = loaded(*args)
        for a, b in zip(made, want):
            assert a.device == b.device and a.dtype == b.dtype and a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=2e-2 if a.dtype == torch.float16 else 1e-4, atol=1e-2)
counts = firebrick.stats()["counts"]
print(counts.get("units built", 0), counts.get("frames", 0), "own_model" in sys.modules)
"""


class Net(nn.Module):
    """Matmuls, a convolution, a weight that is shared and one that stays on the CPU."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.register_buffer("scale", torch.rand(64))

    def forward(self, x, table):
        y = F.relu(self.norm(self.conv(x))).mean((2, 3))
        y = self.down(F.gelu(self.up(y)) * self.scale)
        return y.softmax(-1), y @ self.down.weight, table + 1


@pytest.fixture
def saved(tmp_path):
    """Saves what was compiled for calls; the file, and another with the calls and eager's results."""

    def save(model, *calls, **options):
        firebrick.reset()
        run = firebrick.compile(model, **options)
        with torch.no_grad():
            wanted = [[*model(*args)] for args in calls]
            for args in calls:
                run(*args)
        firebrick.save(run, tmp_path / "program.fb")
        torch.save([list(calls), wanted], tmp_path / "calls.pt")
        return str(tmp_path / "program.fb"), str(tmp_path / "calls.pt")

    return save


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_another_process_runs_it(dtype, saved, run_python, tmp_path):
    torch.manual_seed(0)
    net = Net().cuda().to(dtype).eval()
    calls = [(torch.randn(n, 3, 8, 8, device="cuda", dtype=dtype), torch.randn(5)) for n in (2, 4)]
    files = saved(net, *calls)
    done = run_python("-c", LOAD, *files, FIREBRICK_CACHE_DIR=str(tmp_path / "empty"))
    assert done.stdout.split() == ["0", "0", "False"], done.stdout + done.stderr
    loaded = firebrick.load(files[0])
    with torch.no_grad():
        torch.testing.assert_close([*loaded(*calls[1])], torch.load(files[1])[1][1], rtol=2e-2, atol=1e-2)
        many = torch.randn(7, 3, 8, 8, device="cuda", dtype=dtype), torch.randn(5)  # a size that was not saved
        torch.testing.assert_close([*loaded(*many)], [*net(*many)], rtol=2e-2, atol=1e-2)
        with pytest.raises(ConfigError, match=r"no program was saved for a call with x=\w+\[2, 3, 8, 8\], table"):
            loaded(calls[0][0].cpu(), calls[0][1])


def test_matmuls_that_were_measured_are_in_the_file(saved, run_python, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256)).cuda().half().eval()
    run = nn.Sequential(net)  # whose result is one tensor; the caller takes its rows apart
    call = (torch.randn(64, 256, device="cuda", dtype=torch.float16),)
    files = saved(run, call, mode="max-autotune", options={"cache_dir": str(tmp_path / "cache")})
    done = run_python("-c", LOAD, *files, FIREBRICK_CACHE_DIR=str(tmp_path / "empty"))
    assert done.stdout.split() == ["0", "0", "False"], done.stdout + done.stderr


def test_dropout_draws_eagers_numbers(saved):
    files = saved(lambda x: (F.dropout(x, 0.5, True) + 1,), (torch.randn(64, 100, device="cuda"),))
    loaded, x = firebrick.load(files[0]), torch.randn(64, 100, device="cuda")
    for seed in range(6):
        torch.manual_seed(seed)
        want = F.dropout(x, 0.5, True) + 1
        torch.manual_seed(seed)
        assert torch.equal(loaded(x)[0], want)


def test_another_card_is_refused(saved, monkeypatch):
    path, _ = saved(lambda x: (x + 1,), (torch.randn(8, device="cuda"),))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(CacheError, match="needs GPU 0, this machine has 0"):
        firebrick.load(path)
