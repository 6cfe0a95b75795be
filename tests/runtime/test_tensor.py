"""What the native side reads from torch's tensor objects agrees with what torch says."""

import subprocess
import sys

import pytest
import torch

from firebrick import _native


def tensors():
    leaf = torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        frozen = torch.zeros(2)
    written = torch.zeros(3, dtype=torch.int8)
    for _ in range(5):
        written.add_(1)
    return {
        "plain": torch.zeros(3),
        "leaf": leaf,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "result": leaf * 2,
        "view": leaf[1:],
        "detached": leaf[1:].detach(),
        "written": written,
        "complex": torch.zeros(2, dtype=torch.complex64),
        "conjugate": torch.zeros(2, dtype=torch.complex64).conj(),
        "meta": torch.zeros(2, device="meta"),
        "inference": frozen,
        "empty": torch.empty(0),
        "sparse-like": torch.zeros(4, 4).to_sparse(),
    }


@pytest.mark.parametrize("name", sorted(tensors()))
def test_facts_agree_with_torch(name):
    tensor = tensors()[name]
    facts = _native.tensor_facts(tensor)
    assert facts["dispatch_keys"] == torch._C._dispatch_keys(tensor).raw_repr()
    assert facts["version"] == (-1 if tensor.is_inference() else tensor._version)
    assert facts["requires_grad"] == tensor.requires_grad
    if tensor.layout == torch.strided:
        assert facts["data_ptr"] == tensor.data_ptr()


def test_every_place_was_found():
    assert all(offset > 0 for offset in _native.tensor_layout().values())


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="torch.Tensor"):
        _native.tensor_facts(3)


@pytest.mark.parametrize("mode", ["torch.no_grad()", "torch.inference_mode()", "torch.device('meta')"])
def test_import_under_a_mode_finds_the_same_places(mode):
    code = f"import torch\nwith {mode}:\n    from firebrick import _native\nprint(_native.tensor_layout())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == str(_native.tensor_layout())
