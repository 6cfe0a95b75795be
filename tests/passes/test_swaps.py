"""Module swaps report what they changed, keep results where they are exact, and can be undone."""

import copy

import pytest
import torch
from torch import nn

from firebrick import passes
from firebrick.errors import PassError

X = torch.randn(3, 5, 16)


class Block(nn.Module):
    """A pre-norm transformer block without attention proper."""

    def __init__(self, d=16):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.query, self.key, self.value = (nn.Linear(d, d) for _ in range(3))
        self.up, self.act, self.down = nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = self.query(h), self.key(h), self.value(h)
        x = x + torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v
        return x + self.down(self.act(self.up(self.norm2(x))))


def block():
    torch.manual_seed(0)
    return Block().eval()


def test_swap_by_class_name_and_predicate():
    for match in (nn.GELU, "a*t", lambda name, module: name == "act"):
        model = block()
        report = passes.swap(model, match, nn.SiLU, samples=[X], exact=False)
        assert isinstance(model.act, nn.SiLU)
        assert report.error > 0
        assert "act: GELU -> SiLU" in str(report)
        assert "changes the mathematics" in str(report)
        report.undo()
        report.undo()
        assert isinstance(model.act, nn.GELU)


def test_shared_modules_stay_shared():
    act = nn.GELU()
    model = nn.Sequential(act, nn.Linear(16, 16), act)
    report = passes.swap(model, nn.GELU, lambda name, module: nn.ReLU())
    assert model[0] is model[2]
    assert len(report.swaps) == 2


def test_swap_errors_are_named():
    with pytest.raises(PassError, match="the model itself matches"):
        passes.swap(nn.GELU(), nn.GELU, nn.ReLU)
    with pytest.raises(PassError, match="returned a int for act"):
        passes.swap(block(), nn.GELU, lambda m: 3)
    with pytest.raises(PassError, match="can't match"):
        passes.swap(block(), 3, nn.ReLU)


def test_gelu_to_relu_writes_in_place_only_where_nothing_else_reads():
    model = block()
    report = passes.gelu_to_relu(model, samples=[X])
    assert model.act.inplace
    assert 0 < report.error < 1

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.GELU()

        def forward(self, x):
            y = x * 2
            return self.act(y) + y

    model = Reads()
    report = passes.gelu_to_relu(model, samples=[X])
    assert not model.act.inplace
    assert "read again" in str(report)


def test_layernorm_to_batchnorm_and_folding():
    model = block()
    samples = [torch.randn(3, 5, 16) for _ in range(8)]
    reference = copy.deepcopy(model)
    report = passes.layernorm_to_batchnorm(model, samples)
    assert [s.name for s in report.swaps] == ["norm1", "norm2"]
    assert 0 < report.error < 0.5
    norms = model(X)
    folded = passes.fold_batchnorm(model, X)
    assert len(folded.swaps) == 2
    assert "folded into query, key, value" in str(folded)
    torch.testing.assert_close(model(X), norms)
    folded.undo()
    torch.testing.assert_close(model(X), norms)
    report.undo()
    torch.testing.assert_close(model(X), reference(X))


def test_batchnorm_trains():
    norm = passes.FeatureBatchNorm(16).train()
    x = torch.randn(100, 16) * 3 + 1
    for _ in range(200):
        y = norm(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(16), atol=1e-4, rtol=0)
    torch.testing.assert_close(norm.eval()(x), y, atol=0.05, rtol=0.05)


def test_norms_whose_output_is_read_elsewhere_are_left():
    class Post(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = passes.FeatureBatchNorm(16), nn.Linear(16, 16)

        def forward(self, x):
            h = self.norm(x)
            return h + self.up(h)

    report = passes.fold_batchnorm(Post().eval(), X)
    assert not report.swaps
    assert "more than linear" in report.left["norm"]
    with pytest.raises(PassError, match="inference only"):
        passes.fold_batchnorm(Post(), X)


@pytest.mark.parametrize("bias", [True, False])
def test_conv_and_linear_before_batchnorm(bias):
    conv = nn.Sequential(nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU())
    x = torch.randn(2, 3, 9, 9)
    conv(x)
    conv.eval()
    wanted = conv(x)
    report = passes.fold_batchnorm(conv, x)
    assert isinstance(conv[1], nn.Identity)
    torch.testing.assert_close(conv(x), wanted)
    report.undo()
    assert isinstance(conv[1], nn.BatchNorm2d)
    linear = nn.Sequential(nn.Linear(16, 8, bias=bias), nn.BatchNorm1d(8))
    y = torch.randn(4, 16)
    linear(y)
    linear.eval()
    wanted = linear(y)
    passes.fold_batchnorm(linear, y)
    assert isinstance(linear[1], nn.Identity)
    torch.testing.assert_close(linear(y), wanted)


def test_fuse_qkv():
    model = block()
    wanted = model(X)
    report = passes.fuse_qkv(model, X)
    assert [s.name for s in report.swaps] == ["query", "key", "value"]
    assert model.query.joined is model.value.joined
    torch.testing.assert_close(model(X), wanted)
    with torch.no_grad():
        torch.testing.assert_close(model(X), wanted)
        torch.testing.assert_close(model(X * 2), block()(X * 2))
    report.undo()
    assert isinstance(model.query, nn.Linear)


def test_quantize_linear():
    model = block()
    report = passes.quantize_linear(model, samples=[X], smallest=16, skip=("down",))
    assert sorted(s.name for s in report.swaps) == ["key", "query", "up", "value"]
    assert model.up.weight.dtype == torch.int8
    assert 0 < report.error < 0.05
    report.undo()
    assert isinstance(model.up, nn.Linear)
