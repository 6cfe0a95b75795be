"""TVM read past an embedding's table, and OpenVINO took zeros, for an index out of range; eager raises."""

import importlib.util

import pytest
import torch

import firebrick


@pytest.mark.parametrize("name", ["onnxrt", "openvino", "tvm"])
def test_an_index_out_of_range_raises(name):
    package = {"onnxrt": "onnxruntime"}.get(name, name)
    if any(importlib.util.find_spec(p) is None for p in ("onnx", package)):
        pytest.skip(f"{package} is not installed")
    table = torch.nn.Embedding(8, 16)
    head = torch.nn.Linear(16, 16)

    def look_up(index):
        return torch.relu(head(table(index)) * 2 + 1)

    compiled = firebrick.compile(look_up, backend=name)
    with torch.no_grad():
        good = torch.tensor([[0, 7]])
        torch.testing.assert_close(compiled(good), look_up(good), rtol=1e-3, atol=1e-4)
        with pytest.raises(Exception, match=r"(?i)range|bound"):
            compiled(torch.tensor([[0, 8]]))
