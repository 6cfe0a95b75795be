"""Modules and their parameters meeting arguments of every layout."""

from __future__ import annotations

from tests.fuzz.features.frame import Feature, Tensor, Writer
from tests.fuzz.features.layouts import views


def new(w: Writer, text: str, mode: str | None = None) -> str:
    """The name of a module at the top level, with weights that are the same in each run."""
    name = w.fresh("M")
    w.top(
        f"torch.manual_seed({w.random.randrange(9)})", f"{name} = {text}{mode or w.random.choice(['', '', '.eval()'])}"
    )
    if w.random.random() < 0.1:
        w.top(f"for p in {name}.parameters():\n    p.requires_grad_(False)")
    return name


def last_dim(w: Writer, size: int) -> tuple[str, int]:
    """A module that takes any tensor with that last dimension, and the size that it gives."""
    out = w.random.choice([size, size, size, 4])
    return w.random.choice([
        (f"nn.Linear({size}, {out})", out), (f"nn.Linear({size}, {out}, bias=False)", out), (f"nn.LayerNorm({size})", size), (f"nn.RMSNorm({size})", size),
        (f"nn.Sequential(nn.LayerNorm({size}), nn.Linear({size}, {out}))", out), (f"nn.Sequential(nn.Linear({size}, 8), nn.ReLU(), nn.Linear(8, {out}))", out),
        (f"nn.Sequential(nn.Sequential(nn.Linear({size}, {size}), nn.GELU()), nn.LayerNorm({size}, elementwise_affine=False))", size),
        (f"nn.Linear({size}, {out}).requires_grad_(False)", out), (f"nn.Sequential(nn.Linear({size}, 4), nn.Tanh(), nn.Linear(4, {out}, bias=False))", out),
    ])  # fmt: skip


def linear(w: Writer) -> None:
    """A module over the last dimension, by itself or beside a residual, then a view."""
    a = w.tensor(rank=w.random.choice([2, 3, 3, 4]))
    text, size = last_dim(w, a.shape[-1])
    module = new(w, text)
    out = w.bind(f"{module}({a.name})", a, (*a.shape[:-1], size), grad=True)
    if size == a.shape[-1] and w.random.random() < 0.6:
        out = w.bind(
            w.random.choice([f"{a.name} + {out.name}", f"{out.name} + {a.name}", f"{out.name} * {a.name}"]), out
        )
    if w.random.random() < 0.6:
        text, shape = w.random.choice(views(w, out))
        w.bind(text, out, shape)


def block(w: Writer) -> None:
    """A residual block of a user's class: a norm, a layer, an addition, in some order."""
    a = w.tensor(rank=3)
    size = a.shape[-1]
    name = w.fresh("Block")
    order = w.random.choice(["x + self.lin(self.pre(x))", "self.lin(self.pre(x)) + x", "self.pre(x + self.lin(x))", "x + F.gelu(self.lin(self.pre(x)))",
                             "x.transpose(1, 2).contiguous().transpose(1, 2) + self.lin(self.pre(x))", "self.pre(x).transpose(1, 2).softmax(-1) @ self.lin(x)"])  # fmt: skip
    pre = w.random.choice([f"nn.LayerNorm({size})", f"nn.Linear({size}, {size})", "nn.ReLU()", "nn.Identity()"])
    w.top(f"class {name}(nn.Module):", "    def __init__(self):", "        super().__init__()", f"        self.pre, self.lin = {pre}, nn.Linear({size}, {size})",
          "    def forward(self, x):", f"        return {order}")  # fmt: skip
    module = new(w, w.random.choice([f"{name}()", f"{name}()", f"nn.Sequential({name}(), {name}())"]))
    shape = (a.shape[0], size, size) if "softmax" in order else a.shape
    if "softmax" in order and "Sequential" in w.parts["top"][-1]:
        w.top(f"{module} = {module}[0]")
    out = w.bind(f"{module}({a.name})", a, shape, grad=True)
    text, shape = w.random.choice(views(w, out))
    w.bind(text, out, shape)


def image(w: Writer) -> None:
    """Convolutions, norms and pooling of images."""
    a = w.tensor(rank=4)
    n, c, h, width = a.shape
    out = w.random.choice([c, 4])
    groups = c if out == c and w.random.random() < 0.3 else 1
    stride = w.random.choice([1, 1, 2])
    kernel = w.random.choice([1, 3])
    conv = f"nn.Conv2d({c}, {out}, {kernel}, stride={stride}, padding={kernel // 2}, groups={groups}, bias={w.random.random() < 0.5})"
    text = w.random.choice([conv, f"nn.Sequential({conv}, nn.BatchNorm2d({out}), nn.ReLU())", f"nn.Sequential(nn.BatchNorm2d({c}), {conv})",
                            f"nn.Sequential({conv}, nn.GroupNorm(1, {out}))", f"nn.Sequential(nn.MaxPool2d(3, 1, 1), {conv})"])  # fmt: skip
    sizes = [(s - 1) // stride + 1 for s in (h, width)]
    b = w.bind(f"{new(w, text)}({a.name})", a, (n, out, *sizes), grad=True)
    if b.shape == a.shape and w.random.random() < 0.5:
        b = w.bind(f"{a.name} + {b.name}", b)
    if w.random.random() < 0.4:
        w.bind(
            w.random.choice(["{b}.flatten(2).transpose(1, 2)", "{b}.permute(0, 2, 3, 1).flatten(1, 2)"]).format(
                b=b.name
            ),
            b,
            (n, sizes[0] * sizes[1], out),
        )


def rows_and_volumes(w: Writer) -> None:
    """Convolutions in one and three dimensions."""
    rank = w.random.choice([1, 3])
    a = w.tensor(rank=rank + 2)
    c = a.shape[1]
    stride = w.random.choice([1, 2])
    sizes = [(s - 1) // stride + 1 for s in a.shape[2:]]
    module = new(
        w,
        f"nn.Sequential(nn.Conv{rank}d({c}, 4, 3, stride={stride}, padding=1), nn.BatchNorm{rank}d(4){w.random.choice([', nn.ReLU()', ''])})",
    )
    w.bind(f"{module}({a.name})", a, (a.shape[0], 4, *sizes), grad=True)


def embedding(w: Writer) -> None:
    """A table looked up by whole numbers."""
    shape = w.random.choice([(2, 6), (3,), (1, 4)])
    a = w.argument(shape, "int64", layouts=("plain", "transposed", "expanded", "gaps", "selected"))
    options = w.random.choice(["", "", ", padding_idx=1", ", scale_grad_by_freq=True"])
    module = new(w, f"nn.Embedding(9, 8{options})")
    w.bind(f"{module}({a.name} % 9)", a, (*shape, 8), dtype="float32", grad=True)


def attention(w: Writer) -> None:
    """Heads made by views, and torch's own layers."""
    a = w.tensor(shape=(2, 6, 8))
    name = w.fresh()
    kind = w.random.choice(["sdpa", "layer", "encoder"])
    if kind == "sdpa":
        module = new(w, "nn.Linear(8, 24)")
        w.put(f"{name} = {module}({a.name}).view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)")
        w.bind(
            f"F.scaled_dot_product_attention({name}[0], {name}[1], {name}[2], is_causal={w.random.random() < 0.4}).transpose(1, 2).reshape(2, 6, 8) + {a.name}",
            a,
            grad=True,
        )
    elif kind == "layer":
        w.bind(
            f"{new(w, 'nn.MultiheadAttention(8, 2, batch_first=True)')}({a.name}, {a.name}, {a.name})[0]", a, grad=True
        )
    else:
        w.bind(
            f"{new(w, 'nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)')}({a.name})", a, grad=True
        )


def parameters(w: Writer) -> None:
    """Parameters used as tensors: views, sums, ties between modules, functional calls."""
    a = w.tensor(rank=3)
    size = a.shape[-1]
    module = new(w, f"nn.Linear({size}, {size})", "")
    out = Tensor("", a.shape, a.dtype, True)
    w.bind(w.random.choice([
        "{a} * {m}.bias", "{a} @ {m}.weight", "{a} @ {m}.weight.t() + {m}.weight.sum(0)", "F.linear({a}, {m}.weight.t(), {m}.bias)", "{a} + {m}.weight.diag()",
        "{a} + {m}.weight[0]", "torch.einsum('bsi,oi->bso', {a}, {m}.weight)", "{a} - {m}.weight.detach().mean()", "{m}({m}({a}))",
        "torch.func.functional_call({m}, {{'bias': {m}.bias * 2}}, ({a},))", "F.linear({a}, {m}.weight[:, :], {m}.bias.flip(0))", "{a} + [p for p in {m}.parameters()][1]",
    ]).format(a=a.name, m=module), out)  # fmt: skip


ROWS = (
    Feature("linear", 6, linear), Feature("block", 4, block), Feature("image", 4, image), Feature("rows_and_volumes", 2, rows_and_volumes),
    Feature("embedding", 2, embedding), Feature("attention", 2, attention), Feature("parameters", 3, parameters),
)  # fmt: skip
