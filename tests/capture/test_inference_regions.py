"""`torch.inference_mode` entered in captured code: what eager mode gives, with what it says of each tensor."""

import contextlib
import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import firebrick

# -- programs: (x, module) -> results; whole ones are one graph --------------------------------------------------------

WHOLE, PARTS = [], []


def whole(program):
    WHOLE.append(program)
    return program


def in_parts(program):
    PARTS.append(program)
    return program


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros(3))
        self.kept = None

    def forward(self, x):
        return torch.relu(self.norm(self.lin(x)))

    @torch.inference_mode()
    def encode(self, x):
        self.kept = self.lin(x)
        return self.kept * 2


def modes():
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@whole
def region(x, m):
    before = modes()
    with torch.inference_mode():
        y = x * 2
        inside = modes()
    return y, y + 1, before, inside, modes()


@whole
def mode_given(x, m):
    with torch.inference_mode(True):
        y = x * 2
    with torch.inference_mode(mode=False):
        z = x * 3
    return y, z


@whole
def switched_off_inside(x, m):
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            z, inside = x * 3, modes()
            w = z * x
        v = x * 4
    return y, z, w, v, inside, modes()


@whole
def nested(x, m):
    with torch.inference_mode(), torch.inference_mode():
        y = x * 2
    return y, modes()


@whole
def among_other_modes(x, m):
    with torch.no_grad(), torch.inference_mode():
        y = x * 2
    with torch.inference_mode(), torch.no_grad():
        z = x + y
    with torch.no_grad():
        with torch.inference_mode(False):
            w, inside = x * 3, modes()
        off = modes()
    return y, z, w, inside, off


@whole
def autocast_inside(x, m):
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = m.lin(x)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        z = m.lin(x)
    return y, z


@whole
def views_in_the_region(x, m):
    with torch.inference_mode():
        y = x * 2
        return y, y[0], y.t(), y.detach(), x[0], x.t(), x.unbind()[1], x.view(-1)[1:]


@whole
def detached(x, m):
    with torch.inference_mode():
        y = x * 2
        inside = x.detach(), x.data, y.detach()
    a, b = y.detach(), y.data
    return inside, y, a, b, a.is_inference(), a[0]


@whole
def views_behind_the_region(x, m):
    with torch.inference_mode():
        y, v = x * 2, x[1:]
    return y[0], y.view(-1), y.detach(), y.contiguous(), y.clone(), y.unbind()[0], v


@whole
def views_of_what_the_graph_made(x, m):
    h = x * 2
    with torch.inference_mode():
        v, u = h[0], h.view(-1).view(2, 3)
    return v, u, h


@whole
def views_of_what_does_not_leave(x, m):
    h = m.lin(x)
    with torch.inference_mode():
        v = h[0]
    return v, h * 2


@whole
def bytes_as_another_type(x, m):
    x = x.detach()
    with torch.inference_mode():
        y = x * 2
        inside = y.view(torch.int32), x.view(torch.int32)
    return y, inside, y.view(torch.int32)


@whole
def complex_parts(x, m):
    c = torch.complex(x.detach(), x.detach())
    with torch.inference_mode():
        d = c * 2
        inside = d.real, c.imag, torch.view_as_real(d)
    return d, inside, d.imag


@whole
def asked(x, m):
    with torch.inference_mode():
        y, v = x * 2, x[0]
        inside = x.is_inference(), y.is_inference(), v.is_inference(), y[0].is_inference(), y.requires_grad, y.is_leaf
    z = y + 1
    outside = (
        y.is_inference(),
        y[0].is_inference(),
        z.is_inference(),
        torch.is_inference(y),
        m.lin.weight.is_inference(),
    )
    return inside, outside, y.view(torch.int32).is_inference(), z


@whole
def made_from_nothing(x, m):
    with torch.inference_mode():
        y = torch.zeros(2), torch.arange(3), torch.tensor([1.0, 2.0]), torch.ones_like(x), torch.full((2,), 3.0)
    return y, torch.zeros(2)


@whole
def written_in_the_region(x, m):
    y = x.clone()
    with torch.inference_mode():
        z = x * 2
        z.add_(1)
        z[0] = 5
        y.mul_(2)
        y.view(-1)[0] = 3
        m.count.add_(1)
    return y, z, m.count * 1


@whole
def argument_written(x, m):
    with torch.inference_mode():
        x.mul_(2)
        x[0].add_(1)
    return x + 1


@whole
def parameter_written(x, m):
    with torch.inference_mode():
        m.lin.weight.mul_(0.5)
        m.lin.bias.zero_()
    return m.lin(x)


@whole
def module_called(x, m):
    with torch.inference_mode():
        return m(x)


@whole
def gradients_around(x, m):
    y = m.lin(x)
    with torch.inference_mode():
        c = y.detach() * 2
    return ((m.lin(x) * c.clone()).sum() + y.sum() + (c + y).mean()), c


@whole
def decorated_function(x, m):
    return doubled(x), doubled_by_class(x) + x


@torch.inference_mode()
def doubled(x):
    return x * 2


@torch.inference_mode
def doubled_by_class(x):
    return x * 2


@torch.inference_mode(False)
def recorded(x):
    return x * 2


@whole
def decorated_method(x, m):
    y = m.encode(x)
    return y, m.kept, y + m.kept


@whole
def decorated_to_record(x, m):
    with torch.inference_mode():
        return recorded(x), x * 3


@whole
def decorated_here(x, m):
    @torch.inference_mode()
    def inner(t):
        return t * 2, modes()

    return inner(x), torch.inference_mode(lambda t: t + 1)(x)


@whole
def recursion(x, m):
    return countdown(x, 3)


@torch.inference_mode()
def countdown(x, n):
    return (x * n, *countdown(x + 1, n - 1)) if n else (x, modes())


MADE_BEFORE = torch.inference_mode()


@whole
def context_made_before(x, m):
    with MADE_BEFORE:
        y = x * 2
    return y, modes()


@whole
def by_exit_stack(x, m):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        y = x * 2
        stack.enter_context(torch.no_grad())
    return y, modes()


@whole
def entered_by_hand(x, m):
    context = torch.inference_mode()
    context.__enter__()
    y = x * 2
    context.__exit__(None, None, None)
    return y, modes()


@whole
def exception_caught(x, m):
    try:
        with torch.inference_mode():
            y = x * 2
            raise ValueError("inside")
    except ValueError as error:
        return y, str(error), modes(), x * 3


@whole
def returns_from_inside(x, m):
    for i in range(3):
        with torch.inference_mode():
            if i == 1:
                return x * i, modes()


@whole
def loops(x, m):
    found = []
    for i in range(3):
        with torch.inference_mode():
            if i == 1:
                continue
            x = x + i
            found.append(x)
    return found, modes()


@contextlib.contextmanager
def held(log):
    with torch.inference_mode():
        log.append(modes())
        yield 2
    log.append(modes())


@whole
def by_generator(x, m):
    log = []
    with held(log) as two:
        y = x * two
    return y, log, modes()


def pieces(x):
    with torch.inference_mode():
        for i in range(3):
            yield x * i, modes()


@whole
def generator_holds_it_open(x, m):
    found = []
    for y, inside in pieces(x):
        found.append((y, inside, modes(), x + 1))
    return found, modes()


@whole
def stored(x, m):
    box = {"list": []}
    with torch.inference_mode():
        m.kept = x * 2
        box["list"].append(m.kept[0])
    return box


@whole
def same_object(x, m):
    with torch.inference_mode():
        y = x * 2
        z = y.contiguous()
        w = x.contiguous()
    return y, z, y is z, w, w is x, y.view_as(y)


@whole
def arrays(x, m):
    with torch.inference_mode():
        y = x.detach() * 2
        a = y.numpy()
    return a + 1, np.sum(a)


@whole
def computed_from_inference_tensors(x, m):
    with torch.inference_mode():
        y = x * 2
        index = torch.tensor([0])
    with torch.no_grad():
        return y + 1, torch.cat([y, x]), y.sum(), torch.where(y > 0, y, x), x.detach()[index]


@whole
def checkpoint_inside(x, m):
    with torch.inference_mode():
        return checkpoint(m.lin, x, use_reentrant=False)


@whole
def random_numbers(x, m):
    with torch.inference_mode():
        y = torch.rand(3)
    return y, torch.rand(3) + y


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)

    def forward(self, x):
        return x + torch.relu(self.norm(self.lin(x))).view(-1).view(x.shape)


torch.manual_seed(0)
LAYERS = nn.ModuleList(Layer() for _ in range(8))


@whole
def many_equal_layers(x, m):
    found = []
    with torch.inference_mode():
        y = x
        for layer in LAYERS:
            y = layer(y)
            found.append((y, y[0], y.is_inference()))
    for layer in LAYERS:
        x = layer(x)
    return found, x, x.is_inference()


@torch.inference_mode()
def decorated_pieces(x):
    for i in range(2):
        yield x * i, modes()


@whole
def decorated_generator(x, m):
    return [(y, inside, modes()) for y, inside in decorated_pieces(x)]


@whole
def inference_tensor_kept(x, m):
    with torch.inference_mode():
        m.kept = x * 2
    with torch.inference_mode():
        m.kept.add_(1)
        m.kept[0] = m.count
    return m.kept + 1


@whole
def function_of_module(x, m):
    with torch.inference_mode():
        y = nn.functional.linear(x, m.lin.weight.t(), m.lin.bias)
        w = m.lin.weight[0]
    return y, w


@whole
def closure_over_region(x, m):
    def step(t):
        nonlocal total
        with torch.inference_mode():
            total = total + t.sum()
        return t * 2

    total = torch.zeros(())
    return step(step(x)), total


@whole
def try_finally(x, m):
    log = []
    try:
        with torch.inference_mode():
            try:
                return x * 2, log
            finally:
                log.append(modes())
    finally:
        log.append(modes())


@whole
def chosen_by_flag(x, m):
    found = []
    for flag in (True, False, True):
        with torch.inference_mode(mode=flag):
            found.append((x * 2, modes()))
        with torch.inference_mode() if flag else torch.no_grad():
            found.append((x * 3, modes()))
        with torch.inference_mode() if flag else contextlib.nullcontext():
            found.append((x * 4, modes()))
    return found


@whole
def recorded_between_regions(x, m):
    with torch.inference_mode():
        scale = m.lin.weight.abs().max()
    h = m.lin(x) * scale.clone()
    with torch.inference_mode():
        norm = h.norm()
    return h.sum(), norm, scale


# -- programs that break -------------------------------------------------------------------------------------------------


@in_parts
def break_inside(x, m):
    with torch.inference_mode():
        y = x * 2
        v = x[0]
        print("inside", *modes())
        z = y + 1
    return y, v, z, x * 3, modes()


@in_parts
def break_behind(x, m):
    with torch.inference_mode():
        y = x * 2
    print("behind", *modes())
    return y, y[0], y + 1


@in_parts
def break_with_region_off(x, m):
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            w = x * 3
            print("off", *modes())
            z = x * 4
        u = x * 5
    return y, w, z, u, modes()


@in_parts
def loop_with_break(x, m):
    found = []
    for i in range(4):
        with torch.inference_mode():
            x = x * 2
            if i % 2:
                print("round", i, *modes())
            found.append(x + i)
    return found, modes()


@in_parts
def loop_in_region(x, m):
    with torch.inference_mode():
        for i in range(3):
            x = x + i
            print("round", i, *modes())
    return x, modes()


@in_parts
def exception_behind_break(x, m):
    try:
        with torch.inference_mode():
            y = x * 2
            print("inside")
            raise ValueError("inside")
    except ValueError:
        return y, modes(), x * 2


@in_parts
def break_in_decorated(x, m):
    @torch.inference_mode()
    def inner(t):
        t = t * 2
        print("inner", *modes())
        return t + 1, modes()

    return inner(x), modes()


@in_parts
def written_outside(x, m):
    with torch.inference_mode():
        y = x * 2
    try:
        y.add_(1)
    except RuntimeError as error:
        return y + 1, str(error)


@in_parts
def view_written_outside(x, m):
    with torch.inference_mode():
        y = x * 2
    try:
        y[0].mul_(2)
    except RuntimeError as error:
        return str(error)


@in_parts
def detached_and_written(x, m):
    with torch.inference_mode():
        y = x * 2
    y.detach().add_(1)
    y.data[0] = 3
    return y


@in_parts
def transposed_outside(x, m):
    with torch.inference_mode():
        y = x * 2
    y.t_()
    return y


@in_parts
def saved_for_backward(x, m):
    with torch.inference_mode():
        y = x * 2
    return y * m.lin.weight[0]


@in_parts
def saved_by_a_layer(x, m):
    with torch.inference_mode():
        y = x * 2
    return m.lin(y[:1])


@in_parts
def index_saved(x, m):
    with torch.inference_mode():
        index = torch.tensor([0, 1])
    return m.lin.weight[index]


@in_parts
def saved_by_in_place(x, m):
    with torch.inference_mode():
        y = x * 2
    h = m.lin(x)
    h.mul_(y)
    return h


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x


@in_parts
def saved_by_a_function(x, m):
    with torch.inference_mode():
        y = x * 2
    return Product.apply(y, m.lin.weight[:2])


@in_parts
def view_from_inside_written_outside(x, m):
    h = x * 1
    with torch.inference_mode():
        v = h[0]
    v.mul_(m.lin.bias)
    return h


@in_parts
def base_written_outside(x, m):
    h = x * 1
    with torch.inference_mode():
        v = h[0]
    h.mul_(m.lin.bias)
    return v, h


@in_parts
def parts_written_inside(x, m):
    h = m.lin(x)
    with torch.inference_mode():
        v, w = h[0], x.detach()[0]
        v.add_(1)
        h.mul_(2)
        w.add_(1)
    return v, w, x.detach() + 1


@in_parts
def view_from_inside_used_outside(x, m):
    with torch.inference_mode():
        v = x[0]
    return v, v[1:], v * 2, v + m.lin.bias


@in_parts
def generator_goes_out(x, m):
    found = pieces(x)
    first = next(found)
    return first, modes(), list(found), modes()


@in_parts
def raises_inside(x, m):
    m.kept = x + 1
    with torch.inference_mode():
        m.kept = x * 2
        raise ValueError("inside")


@in_parts
def data_decides_inside(x, m):
    with torch.inference_mode():
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        z = y[0]
    return y, z, y.is_inference()


@in_parts
def read_inside(x, m):
    with torch.inference_mode():
        n = (x * 2).sum().item()
        y = x + n
    return y, n


@in_parts
def kept_over_breaks(x, m):
    with torch.inference_mode():
        y = x * 2
        v, b = y[0], {"y": y, "list": [y[1]]}
    print("one", y.is_inference())
    z = y + 1
    print("two", v.is_inference())
    return y, v, b, z


@in_parts
def enable_grad_inside(x, m):
    with torch.inference_mode():
        with torch.enable_grad():
            y, inside = x * 2, modes()
            z = y + 1
        w = z + 1
    return y, inside, z, w, modes()


@in_parts
def grad_switched_inside(x, m):
    with torch.inference_mode():
        torch.set_grad_enabled(True)
        y = x * 2
        asked = y.requires_grad, modes()
    return y, asked, modes()


@in_parts
def left_before_what_is_inside(x, m):
    outer, inner = torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16)
    outer.__enter__()
    inner.__enter__()
    y = m.lin(x)
    outer.__exit__(None, None, None)
    z = m.lin(x)
    inner.__exit__(None, None, None)
    return y, z, modes(), torch.is_autocast_enabled("cpu")


@in_parts
def parameter_made(x, m):
    with torch.inference_mode():
        y = x * 2
        p = nn.Parameter(x.detach())
        q = nn.Parameter(y)
    return p, q, y + 1


@in_parts
def parameter_made_outside(x, m):
    with torch.inference_mode():
        y = x * 2
    return nn.Parameter(y, requires_grad=False), y + 1


@in_parts
def vmap_inside(x, m):
    with torch.inference_mode():
        y = torch.func.vmap(lambda t: t * 2)(x)
    return y, y + 1


@in_parts
def vmap_of_inference_tensor(x, m):
    with torch.inference_mode():
        y = x * 2
    return torch.func.vmap(lambda t: t.sum())(y), y[0]


@in_parts
def grad_of_inference_tensor(x, m):
    with torch.inference_mode():
        y = x * 2
    return torch.func.grad(lambda t: t.square().sum())(y)


@in_parts
def grad_in_region(x, m):
    with torch.inference_mode():
        return torch.func.grad(lambda t: t.square().sum())(x)


@in_parts
def cond_inside(x, m):
    with torch.inference_mode():
        return torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t + 1, (x,))


@in_parts
def region_in_cond(x, m):
    def one(t):
        with torch.inference_mode():
            return t * 2

    return torch.cond(x.sum() > 0, one, lambda t: t + 1, (x.detach(),))


@in_parts
def checkpoint_of_inference_tensor(x, m):
    with torch.inference_mode():
        y = x * 2
    return checkpoint(lambda t, u: (t * m.count + u).sum(), y, m.lin(x), use_reentrant=False)


@in_parts
def region_in_checkpoint(x, m):
    def inner(t):
        with torch.inference_mode():
            c = t.detach() * 2
        return m.lin(t) + c

    return checkpoint(inner, x, use_reentrant=False)


@in_parts
def function_inside(x, m):
    with torch.inference_mode():
        y = Product.apply(x, x)
    return y, y + 1


@in_parts
def tensor_on_an_array(x, m):
    a = np.ones(3, dtype=np.float32)
    with torch.inference_mode():
        y, t = x.detach() * 2, torch.from_numpy(a)
        u = torch.as_tensor(a + 1)
    z = torch.from_numpy(y.numpy())
    return y, z, t, u, t + 1


@in_parts
def data_set(x, m):
    t = x.detach().clone()
    with torch.inference_mode():
        y = x * 2
    t.data = y
    return t, y


@in_parts
def gradient_set(x, m):
    with torch.inference_mode():
        y = torch.ones(3, 3)
    m.lin.weight.grad = y
    return y


@in_parts
def conjugated(x, m):
    c = torch.complex(x.detach(), x.detach())
    with torch.inference_mode():
        d = (c * 2).conj()
    return d, d * 2


@in_parts
def view_state_asked(x, m):
    with torch.inference_mode():
        y = x * 2
        return y, y[0]._is_view()


EAGER = {complex_parts, argument_written}
"""Programs whose graphs the compiler leaves to eager kernels, in inference mode as without it."""


# -- comparison ----------------------------------------------------------------------------------------------------------


def error_of(action):
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


class Seen:
    """What can be told of results, whichever of them share memory included."""

    def __init__(self):
        self.objects, self.memory = {}, {}

    def of(self, value):
        if isinstance(value, torch.Tensor | np.ndarray | list | dict) and id(value) in self.objects:
            return self.objects[id(value)]
        self.objects[id(value)] = f"#{len(self.objects)}"
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, list | tuple):
            return type(value).__name__, [self.of(item) for item in value]
        if isinstance(value, dict):
            return {key: self.of(item) for key, item in value.items()}
        return value.tolist() if isinstance(value, np.ndarray) else repr(value)

    def tensor(self, t):
        memory = self.memory.setdefault(t.untyped_storage().data_ptr(), len(self.memory))
        place = memory, t.storage_offset(), tuple(t.shape), t.stride(), t.dtype, type(t).__name__
        kind = t.is_inference(), t._is_view(), t.requires_grad, is_leaf(t)
        with torch.no_grad():
            return place, kind, numbers(t)


def is_leaf(t):
    try:
        return t.is_leaf
    except RuntimeError as error:  # what it is a view of was written to in another mode
        return str(error)


def numbers(t):
    return (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).flatten().tolist()


def assert_alike(got, want):
    """The same, floating-point numbers within rounding."""
    if isinstance(want, float):
        assert got == pytest.approx(want, rel=1e-3, abs=1e-5)
    elif isinstance(want, list | tuple) and isinstance(got, list | tuple) and len(got) == len(want):
        for one, other in zip(got, want, strict=True):
            assert_alike(one, other)
    elif isinstance(want, dict) and isinstance(got, dict):
        assert_alike(list(got.items()), list(want.items()))
    else:
        assert got == want


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


def gradients(result, m):
    """What a backward over all results gives."""
    found = [t for t in tensors(result) if t.requires_grad and is_leaf(t) is False]
    error = error_of(lambda: sum(t.sum() for t in found).backward() if found else None)
    return error, [None if p.grad is None else numbers(p.grad) for p in m.parameters()]


def later_uses(t):
    """What eager mode says of a result that is used later on."""
    floating = t.is_floating_point()
    factor = torch.ones(t.shape, dtype=t.dtype, requires_grad=True) if floating else torch.ones(t.shape)
    yield error_of(lambda: t * factor if floating else t * 1)
    yield error_of(lambda: t.detach().requires_grad_() if floating else None)
    yield error_of(lambda: t.view_as(t).add_(1))
    yield error_of(lambda: t.add_(factor))
    yield error_of(lambda: t.grad_fn)


def observed(function, kind, capsys):
    m = Model()
    with torch.inference_mode(kind == "inference"):
        x = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]], requires_grad=kind == "recorded")
    torch.manual_seed(1)
    seen, result = Seen(), None

    def call():
        nonlocal result
        result = function(x, m)

    error = error_of(call)
    found = [error, seen.of(result), seen.of(x), seen.of(m.kept), seen.of(list(m.parameters())), seen.of(m.count)]
    found += [
        [t.is_inference() or t._version > 0 for t in (x, *m.parameters(), m.count)],
        modes(),
        capsys.readouterr().out,
    ]
    found += [gradients(result, m), *(list(later_uses(t)) for t in tensors(result))]
    return found


@pytest.mark.parametrize("kind", ["plain", "recorded"])
@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("program", WHOLE, ids=lambda p: p.__name__)
def test_it_is_one_graph_that_does_what_eager_mode_does(program, backend, kind, capsys, monkeypatch):
    if program in EAGER:
        monkeypatch.setenv("FIREBRICK_STRICT", "0")
        warnings.filterwarnings("ignore", "firebrick: graph runs on eager kernels")
    compiled = firebrick.compile(program, backend=backend, fullgraph=True)
    want = observed(program, kind, capsys)
    before = firebrick.stats()["counts"].get("graphs", 0)
    assert_alike(observed(compiled, kind, capsys), want)
    assert firebrick.stats()["counts"].get("graphs", 0) == before + 1
    assert_alike(observed(compiled, kind, capsys), want)


@pytest.mark.parametrize("kind", ["plain", "recorded"])
@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("program", PARTS, ids=lambda p: p.__name__)
def test_what_breaks_does_what_eager_mode_does(program, backend, kind, capsys):
    compiled = firebrick.compile(program, backend=backend)
    want = observed(program, kind, capsys)
    for _ in range(2):
        assert_alike(observed(compiled, kind, capsys), want)


@pytest.mark.parametrize("around", [torch.inference_mode, torch.no_grad], ids=["inference_mode", "no_grad"])
@pytest.mark.parametrize("program", [*WHOLE, *PARTS], ids=lambda p: p.__name__)
def test_called_in_another_mode(program, around, capsys):
    def inside(function, *args):
        with around():
            return function(*args)

    compiled = firebrick.compile(program, backend="eager")
    want = observed(functools.partial(inside, program), "plain", capsys)
    for _ in range(2):
        assert_alike(observed(functools.partial(inside, compiled), "plain", capsys), want)


@pytest.mark.parametrize("program", [*WHOLE, *PARTS], ids=lambda p: p.__name__)
def test_called_with_an_inference_tensor(program, capsys):
    compiled = firebrick.compile(program, backend="eager")
    with contextlib.suppress(Exception):
        observed(compiled, "plain", capsys)  # what is compiled for an ordinary one
    want = observed(program, "inference", capsys)
    for _ in range(2):
        assert_alike(observed(compiled, "inference", capsys), want)
