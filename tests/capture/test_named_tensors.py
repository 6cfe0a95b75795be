"""Tensors, torch's own kinds of values, contexts and transforms that capture promises, one program each."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from naming import Table, X, check_row
from torch.utils.checkpoint import checkpoint

TABLE = Table()
row = TABLE.row
W = torch.linspace(-1, 1, 9).reshape(3, 3)


@row()
def kinds_of_torch(x):
    size = x.shape
    return (
        x.to(torch.float64) + torch.finfo(x.dtype).eps, size[0], size.numel(), size + (1,), list(size), torch.Size([2, 3]) == size,
        torch.Size((1, 2))[1:], x.dtype.is_floating_point, x.dtype.itemsize, str(x.dtype), x.device.type, x.device.index,
        torch.device("cpu") == x.device, str(torch.device("cuda", 1)), x.layout is torch.strided, torch.iinfo(torch.int8).max,
        torch.float32 is torch.float, torch.get_default_dtype(), x.dtype in (torch.float32,), {torch.float32: 1}[x.dtype],
        torch.promote_types(torch.int8, torch.float16), torch.result_type(x, 1), torch.is_floating_point(x), torch.is_tensor(x),
        torch.preserve_format, x.is_contiguous(), x.stride(), x.storage_offset(), x.element_size(), x.ndim, x.nelement(),
        isinstance(size, tuple), len(size), size.index(3), math.prod(size), torch.device("cpu").type, x.itemsize, x.nbytes,
    )  # fmt: skip


@row()
def attributes_of_tensors(x):
    rows, columns = x.shape
    (b, *rest) = x.size()
    return (
        x.T, x.mT, x.real, x.requires_grad, x.is_leaf, x.grad_fn, x.grad, x.is_cuda, x.is_sparse, x.is_quantized, x.is_meta,
        x.dim(), x.size(0), x.size(-1), len(x), rows, columns, b, rest, x.shape[-1], x.output_nr, x.retains_grad,
        x.is_complex(), x.numel(), x.is_floating_point(), x.is_signed(), x.get_device(), x.is_inference(), x.is_nested,
        torch.numel(x), x.type(), hasattr(x, "shape"), getattr(x, "zzz", 5), x.is_shared(),
    )  # fmt: skip


@row()
def methods_of_tensors(x):
    y = x.view(3, 2).transpose(0, 1).contiguous().reshape(-1).unsqueeze(0).expand(2, 6).clone()
    a, b = y.chunk(2)
    c, d = x.max(dim=1)
    values, indices = torch.topk(x, 2)
    found = x.min(dim=0)
    return (
        y, a.squeeze(), b.sum(-1, keepdim=True), c, d, values, indices, found.values, found[1], x.split([1, 2], 1)[1],
        x.masked_fill(x > 2, 0.0), x.where(x > 1, x * 2), x.type_as(y), x.new_zeros(2), x.new_tensor([1.0]), x.permute(1, 0),
        x.clamp(min=1), x.to("cpu", torch.int32), x.float().half().bool(), x.int(), x.unbind(0), x[0] @ x.mT, x.flatten(),
        x.repeat(1, 2), x.tile(2), x.roll(1, 0), x.cumsum(1), x.norm(), x.var(0), x.std(), x.argmax(), x.sort(descending=True).values,
        x.gather(1, torch.zeros(2, 1, dtype=torch.long)), x.index_select(0, torch.tensor([1])), x.pow(2), x.abs(), -x, ~(x > 1), x.diff(),
        x.tolist.__name__, torch.Tensor.add(x, 1), x.__add__(2), x.__getitem__(0), x.apply_.__name__, (x > 1).any(), (x > 1).all(),
    )  # fmt: skip


@row(X.clone())
def in_place_methods_and_views(x):
    v = x[0]
    w = x.view(-1)
    x.add_(1).mul_(2)
    v.zero_()
    w[3] = 50
    x[1, 1:] = torch.tensor([7.0, 8.0])
    x[x > 9] = 9
    x.t()[2].sub_(1)
    x += 1
    x[0] /= 2
    y = x.clone()
    y.copy_(x * 2)
    y.fill_diagonal_(3)
    y.index_fill_(1, torch.tensor([0]), 4)
    y.masked_fill_(y > 5, 1)
    y.scatter_(1, torch.zeros(2, 1, dtype=torch.long), 6.0)
    y.unsqueeze_(0).squeeze_(0)
    y.resize_as_.__name__
    return v, w.sum(), y, x is x.add_(0), y.t_().shape


@row(X.clone(), torch.empty(2, 3))
def out_arguments(x, out):
    result = torch.add(x, 1, out=out)
    torch.mul(out, 2, out=out)
    fresh = torch.empty(2, 3)
    torch.sub(x, 1, out=fresh)
    values, indices = torch.empty(2), torch.empty(2, dtype=torch.long)
    torch.max(x, 1, out=(values, indices))
    return result is out, fresh, values, indices


@row()
def indexing_of_tensors(x):
    index = torch.tensor([1, 0])
    return (
        x[1], x[-1, ...], x[:, None, 1:], x[index], x[index, index], x[:, [0, 2]], x[x.shape[0] - 1], x[(0, 1)], x[..., -1:],
        x[True], x[torch.tensor(True)], x[:, torch.tensor([True, False, True])] if False else x[:, ::2], x[slice(None), slice(0, 2)], x[None, None, 0, 0],
        x[[[0, 1], [1, 2]]] if False else x[[0, 1], [1, 2]], x[index.view(2, 1), torch.arange(2)],
    )  # fmt: skip


@row()
def creation(x):
    return (
        torch.zeros(2), torch.ones_like(x), torch.arange(x.shape[0]), torch.full((2,), 3), torch.tensor([[1, 2], [3, x.shape[1]]]),
        torch.eye(2), torch.linspace(0, 1, 3), torch.empty(0), torch.as_tensor([1.5]), torch.tensor(2.5), torch.cat([x, x]),
        torch.stack([x, x], dim=-1), torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij"), torch.tensor(True), x + torch.scalar_tensor(1),
        torch.randn_like(x), torch.rand(2), torch.randint(0, 5, (3,)), torch.randperm(4), torch.bernoulli(x / 10), F.dropout(x, 0.5), torch.normal(x, 1),
    )  # fmt: skip


@row()
def operators_and_mixed_numbers(x):
    return (
        1 - x, 2**x, 7 // (x + 1), 5 % (x + 1), x @ x.T, x == x, x != 1, 1 < x, x & 1 if False else x.int() & 1, x.int() << 1, x**0.5,
        abs(-x), +x, True + x, x * 1j, math.pi * x, x / 3, 3 / (x + 1), x.int() | 2, ~x.int(), x.bool() ^ True,
        sum(x), max(1, 2) * x, min(x.shape) + x, x > x.mean(), x.__radd__(1), pow(x, 2), reversed(x), list(x), [r.sum() for r in x],
    )  # fmt: skip


@row(torch.ones(2, 3, requires_grad=True))
def modes_of_gradients(x):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
        inner = torch.is_grad_enabled()
    with torch.set_grad_enabled(False):
        c = x * 4

    @torch.no_grad()
    def without(y):
        return y * 5

    @torch.enable_grad()
    def with_(y):
        return y * 6

    torch.set_grad_enabled(False)
    d = x + 1
    torch.set_grad_enabled(True)
    return (
        a.requires_grad,
        b.requires_grad,
        c.requires_grad,
        without(x).requires_grad,
        with_(x).requires_grad,
        d.requires_grad,
        inner,
        torch.is_grad_enabled(),
        a,
        b,
    )


@row(graphs=None, breaks=None)
def grad_mode_that_stays(x):
    torch.set_grad_enabled(False)
    y = x + 1
    torch._dynamo.graph_break()
    z = y + torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return z


@row()
def autocast_regions(x):
    with torch.autocast("cpu", torch.bfloat16):
        a = x @ W
        with torch.autocast("cpu", enabled=False):
            b = x @ W
        on = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        c = F.linear(x, W)

    @torch.autocast("cpu", torch.bfloat16)
    def inside(y):
        return y @ W

    return a, b, c, inside(x), on, torch.is_autocast_enabled("cpu")


@row(graphs=None, breaks=None)
def autocast_across_a_break(x):
    with torch.autocast("cpu", torch.bfloat16):
        a = x @ W
        torch._dynamo.graph_break()
        b = x @ W
    return a, b, x @ W


@row()
def profiler_contexts(x):
    with torch.profiler.record_function("name"), torch.autograd.profiler.record_function("other"):
        return x + 1


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None


class Separate(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin(), x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return grad * x.cos()


@row(torch.ones(2, 3, requires_grad=True))
def autograd_functions(x):
    return Double.apply(x, 3.0) + 1


@row(torch.ones(2, 3, requires_grad=True), graphs=None, breaks=None)
def autograd_functions_with_setup(x):
    a, b = Separate.apply(x)
    return a + 1, b.requires_grad


@row(torch.ones(2, 3, requires_grad=True), graphs=None, breaks=None)
def gradients_inside(x):
    y = (x**2).sum()
    (g,) = torch.autograd.grad(y, x)
    return g * 2


@row(torch.ones(2, 3, requires_grad=True), graphs=None, breaks=None)
def backward_inside(x):
    (x**2).sum().backward()
    return x.grad


@row()
def detached(x):
    y = x.detach().requires_grad_() if False else x.detach()
    return y + 1, y.requires_grad


@row()
def vmap(x):
    return (
        torch.vmap(lambda r: r * r.sum())(x),
        torch.func.vmap(torch.dot, in_dims=(0, None))(x, x[0]),
        torch.vmap(torch.sin, out_dims=1)(x),
    )


@row()
def grad_transform(x):
    f = lambda y: (y**2).sum()  # noqa: E731
    return (
        torch.func.grad(f)(x),
        torch.func.grad_and_value(f)(x),
        torch.func.grad(lambda y, z: (y * z).sum(), argnums=1)(x, x),
    )


@row()
def jvp_and_vjp(x):
    out, tangent = torch.func.jvp(torch.sin, (x,), (x,))
    return out, tangent


@row(graphs=None, breaks=None)
def vjp_function(x):
    out, pull = torch.func.vjp(torch.sin, x)
    return out, pull(x)


@row()
def jacobians(x):
    return (
        torch.func.jacrev(torch.sin)(x[0]),
        torch.func.jacfwd(torch.sin)(x[0]),
        torch.func.hessian(lambda y: (y**3).sum())(x[0]),
    )


@row(graphs=None, breaks=None)
def linearized(x):
    out, f = torch.func.linearize(torch.sin, x)
    return out, f(x)


@row(graphs=None, breaks=None)
def functionalized(x):
    return torch.func.functionalize(lambda y: y.clone().add_(1))(x)


@row(graphs=None, breaks=None)
def conditions_on_tensors(x):
    return torch.cond(x.sum() > 3, lambda y: y + 1, lambda y: y - 1, (x,)), torch.where(x > 1, x, -x)


@row(torch.ones(2, 3, requires_grad=True))
def checkpointed(x):
    return checkpoint(lambda y: torch.sin(y) * 2, x, use_reentrant=False)


@row()
def checks(x):
    torch._check(x.shape[0] == 2)
    torch._check(x.shape[0] == 2, lambda: "rows")
    torch._check_value(x.dim() == 2, lambda: "dim")
    torch._assert(x.dim() == 2, "dim")
    return x + 1


@row()
def checks_that_fail(x):
    texts = []
    for check, error in (
        (torch._check, RuntimeError),
        (torch._check_value, ValueError),
        (torch._check_index, IndexError),
    ):
        try:
            check(x.dim() == 3, lambda: "three")
        except error as raised:
            texts.append(str(raised))
    return x + 1, texts


@row(graphs=None, breaks=None)
def data_dependent_values(x):
    n = int(x.sum())
    m = x[0, 1].item()
    rows = x.tolist()
    if x.sum() < 0:
        x = x * 100
    if x.any():
        x = x + 1
    return (
        x + n,
        m,
        rows,
        bool(x[0, 0]),
        float(x.max()),
        [v for v in x.flatten() if v > 3],
        x.nonzero(),
        x[x > 2],
        f"{x.sum():.1f}",
    )


@row()
def control_by_shapes(x):
    if x.shape[0] > 1 and x.size(-1) % 2:
        return x.reshape(x.shape[0] * x.shape[1] // 3, -1)
    return x


@row()
def named_results(x):
    result = torch.sort(x, dim=1, descending=True)
    svd = torch.linalg.svd(x)
    q, r = torch.linalg.qr(x)
    return (
        result.values,
        result.indices,
        svd.S,
        type(result).__name__,
        q @ r,
        torch.aminmax(x).max,
        torch.return_types.sort.__name__,
    )


@row()
def einsum_and_functional(x):
    return (
        torch.einsum("ij,kj->ik", x, x), F.scaled_dot_product_attention(x[None], x[None], x[None]), F.pad(x, (1, 1)), F.one_hot(torch.tensor([0, 2]), 3),
        F.cross_entropy(x, torch.tensor([0, 1])), F.layer_norm(x, (3,)), F.interpolate(x[None], scale_factor=2), F.softmax(x, -1), F.gelu(x), F.embedding(torch.tensor([1]), x),
        F.conv1d(x[None], torch.ones(1, 2, 1)), F.max_pool1d(x[None], 2), F.normalize(x), F.cosine_similarity(x, x), F.unfold(x[None, None], 2), torch.bucketize(x, x[0]),
    )  # fmt: skip


@row(graphs=None, breaks=None)
def random_state(x):
    torch.manual_seed(3)
    a = torch.rand(2)
    state = torch.get_rng_state()
    b = torch.rand(2)
    torch.set_rng_state(state)
    return a, b, torch.rand(2), x + torch.initial_seed()


@row()
def sparse_free_foreach(x):
    made = torch._foreach_add([x, x], 1)
    torch._foreach_mul_(made, 2)
    return made


@row(X.clone(), graphs=None, breaks=None)
def tensors_made_of_tensors(x):
    a, b, c = torch.tensor(x), torch.as_tensor(x), torch.asarray(x)
    a.add_(1)
    d = torch.tensor(x, dtype=torch.float32)
    d.zero_()
    return a, b is x, c is x, d, torch.as_tensor(x, dtype=torch.float64), torch.tensor([x.shape[0], 2.5]), a is x


@row()
def complex_tensors(x):
    z = torch.complex(x, x + 1)
    return (
        z.real,
        z.imag,
        z.abs(),
        z.conj(),
        torch.view_as_real(z),
        z * 1j,
        torch.polar(x, x),
        z.angle(),
        torch.fft.rfft(x),
    )


@row()
def attributes_set_on_tensors(x):
    y = x + 1
    y.note = "here"
    return y * 2, y.note, hasattr(y, "note"), hasattr(y, "other")


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
def test_tensors(program):
    check_row(program)
