"""What the CPU's kernels say that they can't do was raised for tensors on a GPU too: a graph break in autocast."""

import pytest
import torch
import torch.nn.functional as F

from firebrick.fakes.mode import new_fake_mode, refusing


def asked(call, *shapes, device="cuda", dtype=torch.float16):
    mode = new_fake_mode()
    with mode, torch.no_grad():
        tensors = [torch.empty(shape, device=device, dtype=dtype) for shape in shapes]
        with refusing(mode):
            return call(*tensors)


CALLS = [
    (lambda x: F.softmax(x, -1, torch.float32), (2, 8)),
    (lambda x: F.log_softmax(x, -1, torch.float32), (2, 8)),
    (lambda x: torch.fft.rfft(x), (2, 8)),
]


@pytest.mark.parametrize(("call", "shape"), CALLS, ids=["softmax", "log_softmax", "fft"])
def test_a_gpu_is_not_asked_about_it(call, shape):
    assert asked(call, shape).device.type == "cuda"


def test_what_every_device_refuses():
    with pytest.raises(IndexError):
        asked(lambda x: F.softmax(x, 2, torch.float32), (2, 8))
    with pytest.raises(RuntimeError):
        asked(lambda x, y: x @ y, (2, 8), (2, 8))


def test_what_the_cpu_refuses_of_its_own():
    with pytest.raises(RuntimeError, match="conversion is not supported on CPU"):
        asked(lambda x: torch.ops.aten._softmax(x, -1, True), (2, 8), device="cpu")
