"""Bad input on a card: torch's own error or a clear one, or eager's result; and afterwards all goes on."""

import pytest
import torch
import torch.nn.functional as F

import firebrick

GIB = 1 << 30


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


@pytest.fixture(autouse=True)
def _fresh():
    firebrick.reset()
    yield
    torch.cuda.empty_cache()


def large(gib):
    """Tests side by side share a card."""
    free = torch.cuda.mem_get_info()[0] / GIB
    if free < gib:
        pytest.skip(f"{free:.0f} GiB are free")


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("library", [False, True])
def test_out_of_memory(graphs, library):
    def fn(x, n):  # what runs before memory ends is short: a sum over all of y kept a card for minutes
        y = x.expand(n, x.shape[0]) + 1
        return (y @ x[:, None] if library else y[:64].relu()).sum(), y

    run = firebrick.compile(fn, options={"graphs": graphs}, dynamic=True)
    x = rand(1024)
    for _ in range(3):
        for n in (64, 100 << 20, 64):
            if n > 64:
                with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
                    run(x, n)
                continue
            torch.testing.assert_close(run(x, n)[0], fn(x, n)[0], rtol=1e-4, atol=1e-2)


FAILS = """
import torch, firebrick
x, at = torch.randn(100, 8, device="cuda"), torch.tensor([1, 100], device="cuda")
run = firebrick.compile(lambda x, at: x[at] * 2)
print(run(x, at - 50).shape)
try:
    run(x, at)
    torch.cuda.synchronize()
except Exception as error:
    print(type(error).__name__, str(error).partition("\\n")[0])
"""


def test_a_kernel_that_fails(run_python):
    done = run_python("-c", FAILS)
    assert "torch.Size([2, 8])" in done.stdout, done.stderr
    assert "device-side assert" in done.stdout
    assert "index out of bounds" in done.stdout + done.stderr


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_tensors_on_two_gpus():
    def fn(x, y):
        return (x + y).relu() @ y

    run = firebrick.compile(fn)
    x, y = rand(8, 8), rand(8, 8).to("cuda:1")
    with pytest.raises(RuntimeError, match="same device"):
        run(x, y)
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        a, b = x.to(device), y.to(device)
        for _ in range(4):
            made = run(a, b)
            assert made.device == a.device
            torch.testing.assert_close(made, fn(a, b))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("graphs", [False, True])
def test_one_program_on_two_gpus(graphs):
    def fn(x, w, v):
        y = F.gelu(x @ w).to("cuda:1")
        return (F.dropout(y @ v, 0.0, True).softmax(-1) + 1).to("cuda:0") * x

    run = firebrick.compile(fn, options={"graphs": graphs})
    x, w, v = rand(64, 64), rand(64, 64) / 8, rand(64, 64).to("cuda:1") / 8
    for _ in range(6):
        torch.testing.assert_close(run(x, w, v), fn(x, w, v), rtol=1e-4, atol=1e-4)
    with torch.cuda.device(1):
        torch.testing.assert_close(run(x, w, v), fn(x, w, v), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.float64], ids=str)
def test_misaligned_storage(dtype, graphs):
    """Sixteen bytes is what kernels expect; tensors begin at every element."""

    def fn(x, y):
        y.add_(x[:2048].reshape(64, 32).sum(0).to(y.dtype)[:16])
        return x.t() if x.dim() > 1 else x + 1, y * 2

    run = firebrick.compile(fn, options={"graphs": graphs})
    room, other = (rand(10_000) * 10).to(dtype), (rand(100) * 10).to(dtype)
    for first in (0, 1, 2, 3, 5, 8, 1, 1, 1, 0):
        x = room[first : first + 4099]
        y, z = other[first : first + 16].clone(), other.clone()
        want, made = fn(x, y), run(x, z[first : first + 16])
        for a, b in zip((*want, y), (*made, z[first : first + 16]), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-2 if dtype == torch.float16 else 1e-5, atol=1e-2)
        rest = torch.ones(100, dtype=torch.bool, device="cuda")
        rest[first : first + 16] = False
        assert torch.equal(z[rest], other[rest])


def test_sizes_beyond_32_bits():
    large(30)
    n = (1 << 31) + 4096
    x = torch.arange(n, device="cuda", dtype=torch.int64).to(torch.uint8)
    run = firebrick.compile(lambda x: (x + 1, (x > 250).sum()))
    made, want = run(x), (x + 1, (x > 250).sum())
    assert all(torch.equal(a, b) for a, b in zip(made, want, strict=True))
    del made, want
    x = x.reshape(-1, 4096)
    run = firebrick.compile(lambda x: (x[-3:] * 2, x.amax(1), x[:, 7] + 1, x.t()[5] + 2))
    for a, b in zip(run(x), (x[-3:] * 2, x.amax(1), x[:, 7] + 1, x.t()[5] + 2), strict=True):
        assert torch.equal(a, b)


def test_rows_beyond_32_bits():
    large(40)
    x = torch.randn((1 << 19) + 3, 4096, device="cuda", dtype=torch.bfloat16)  # 2**31 elements and more
    run = firebrick.compile(lambda x: F.softmax(x * 2, -1))
    made = run(x)
    for rows in (slice(0, 64), slice(-64, None), slice(1 << 18, (1 << 18) + 64)):
        torch.testing.assert_close(made[rows], F.softmax(x[rows] * 2, -1))


def test_tensors_on_cpu_and_gpu_mixed():
    def fn(x, table, n):
        y = (table * 2 + n)[3].to("cuda") + x
        return y, y.sum().cpu() + table.sum(), table[:2] + 1

    run = firebrick.compile(fn)
    x = rand(40, 50)
    for n in (1.0, 2.0, 3.0):
        table = torch.randn(5, 50)
        for a, b in zip(run(x, table, torch.tensor(n)), fn(x, table, torch.tensor(n)), strict=True):
            assert a.device == b.device
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
    with pytest.raises(RuntimeError, match="same device|at least two devices"):
        firebrick.compile(lambda x, y: x + y)(x, torch.randn(40, 50))


def test_streams_of_a_program_that_is_called_on_many():
    run, w = firebrick.compile(lambda x, w: F.gelu(x @ w).softmax(-1) + x, options={"graphs": True}), rand(64, 64)
    for _ in range(12):  # more streams than are recorded
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x = rand(32, 64)
            for _ in range(4):
                made = run(x, w)
            want = F.gelu(x @ w).softmax(-1) + x
        stream.synchronize()
        torch.testing.assert_close(made, want, rtol=1e-4, atol=1e-4)


class Int8(torch.nn.Module):
    """A linear layer of an int8 weight: whole in 8 bits, or the weight alone."""

    def __init__(self, whole):
        super().__init__()
        w = torch.randn(128, 64)
        scale = w.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (w / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.whole = whole

    def forward(self, x):
        if not self.whole:
            return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))
        step = x.abs().amax(1, keepdim=True) / 127
        q = (x / step).round().to(torch.int8)
        return torch._int_mm(q, self.weight.t()).to(x.dtype) * step * self.scale.t()


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_int8_linears(whole, graphs):
    net = Int8(whole).cuda()
    run = firebrick.compile(net, options={"graphs": graphs})
    for _ in range(6):
        x = rand(32, 64)
        torch.testing.assert_close(run(x), net(x), rtol=1e-3, atol=1e-2)


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="no fp8")
@pytest.mark.parametrize("graphs", [False, True])
def test_fp8_linears(graphs):
    w = rand(64, 128).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")

    def fn(x):
        scale = x.abs().amax().float() / 448
        q = (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return F.gelu(torch._scaled_mm(q, w, scale_a=scale, scale_b=one, out_dtype=torch.bfloat16))

    run = firebrick.compile(fn, options={"graphs": graphs})
    for _ in range(6):
        x = rand(32, 128)
        torch.testing.assert_close(run(x), fn(x), rtol=2e-2, atol=2e-2)
