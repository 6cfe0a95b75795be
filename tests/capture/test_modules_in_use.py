"""Modules as users treat them: each kind of module, hook, copy and wrapper, compiled beside plain Python.

A row does the same to a compiled module and to an equal plain one, in whole graphs unless it says otherwise.
"""

# ruff: noqa: E701, D101, D102, D103, D105, D107  rows are short programs
from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrizations, parametrize, prune

import firebrick

X = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])
P: dict[str, Any] = {}


def row(function: Any) -> Any:
    P[function.__name__] = function
    return function


def C(model: Any, full: bool = True) -> Any:
    return firebrick.compile(model, fullgraph=full, backend="eager")


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.scale = nn.Linear(3, 3), 2.0

    def forward(self, x):
        return self.lin(x) * self.scale


def both(make, use, full=True):
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    model = make()
    same(use(C(model, full), model), use(plain, plain))


@row
def lazy():
    both(
        lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyBatchNorm1d()).eval(),
        lambda f, m: (torch.manual_seed(1), f(X), f(X))[1:],
        full=False,
    )


@row
def lazy_full():
    both(lambda: nn.LazyLinear(4), lambda f, m: (torch.manual_seed(1), f(X), f(X))[1:])


@row
def lazy_init_first():
    def use(f, m):
        torch.manual_seed(1)
        m(X)
        return f(X)

    both(lambda: nn.LazyLinear(4), use)


class Sym(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).mT

    def right_inverse(self, w):
        return w.triu()


@row
def param_custom():
    def make():
        m = Net()
        parametrize.register_parametrization(m.lin, "weight", Sym())
        return m

    both(make, lambda f, m: f(X))


@row
def param_added_between():
    def use(f, m):
        r = [f(X)]
        parametrize.register_parametrization(m.lin, "weight", Sym())
        r.append(f(X))
        parametrize.remove_parametrizations(m.lin, "weight")
        r.append(f(X))
        return r

    both(Net, use)


@row
def param_cached():
    def make():
        m = Net()
        parametrize.register_parametrization(m.lin, "weight", Sym())
        return m

    def use(f, m):
        with parametrize.cached():
            return f(X), f(X)

    both(make, use)


@row
def weight_norm():
    both(lambda: parametrizations.weight_norm(nn.Linear(3, 3)), lambda f, m: f(X))


@row
def spectral_norm():
    both(lambda: parametrizations.spectral_norm(nn.Linear(3, 3)), lambda f, m: (f(X), f(X), m.eval() and f(X)))


@row
def orthogonal():
    both(lambda: parametrizations.orthogonal(nn.Linear(3, 3)), lambda f, m: f(X))


@row
def old_weight_norm():
    both(lambda: nn.utils.weight_norm(nn.Linear(3, 3)), lambda f, m: f(X))


@row
def old_spectral():
    both(lambda: nn.utils.spectral_norm(nn.Linear(3, 3)), lambda f, m: (f(X), f(X)))


@row
def pruned():
    def use(f, m):
        r = [f(X)]
        prune.l1_unstructured(m.lin, "weight", amount=0.3)
        r.append(f(X))
        prune.remove(m.lin, "weight")
        r.append(f(X))
        return r

    both(Net, use)


HOOKS = {
    "pre": lambda m: m.register_forward_pre_hook(lambda mod, a: (a[0] + 1,)),
    "pre_kw": lambda m: m.register_forward_pre_hook(lambda mod, a, k: ((a[0] + 1,), k), with_kwargs=True),
    "fwd": lambda m: m.register_forward_hook(lambda mod, a, o: o * 2),
    "fwd_kw": lambda m: m.register_forward_hook(lambda mod, a, k, o: o * 2, with_kwargs=True),
    "fwd_always": lambda m: m.register_forward_hook(lambda mod, a, o: o * 2, always_call=True),
    "fwd_prepend": lambda m: m.register_forward_hook(lambda mod, a, o: o + 3, prepend=True),
}
for place in ("outer", "inner"):
    for h, reg in HOOKS.items():

        def hook(reg=reg, place=place):
            def use(f, m):
                t = m if place == "outer" else m.lin
                r = [f(X)]
                a = reg(t)
                r.append(f(X))
                b = reg(t)
                r.append(f(X))
                a.remove()
                r.append(f(X))
                b.remove()
                r.append(f(X))
                return r

            both(Net, use)

        P[f"hook_{place}_{h}"] = hook
BW = {
    "bw": lambda m: m.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2 if gi[0] is not None else None,)),
    "bw_pre": lambda m: m.register_full_backward_pre_hook(lambda mod, go: (go[0] * 3,)),
}
for place in ("outer", "inner"):
    for h, reg in BW.items():

        def hook(reg=reg, place=place):
            def use(f, m):
                t = m if place == "outer" else m.lin
                r = []

                def g():
                    m.zero_grad()
                    x = X.clone().requires_grad_()
                    f(x).sum().backward()
                    r.append((x.grad, m.lin.weight.grad.clone()))

                g()
                a = reg(t)
                g()
                a.remove()
                g()
                return r

            both(Net, use, full=False)

        P[f"hook_{place}_{h}"] = hook


@row
def hook_global():
    def use(f, m):
        r = [f(X)]
        a = register_module_forward_hook(lambda mod, i, o: o * 2)
        r.append(f(X))
        b = register_module_forward_pre_hook(lambda mod, i: (i[0] + 1,))
        r.append(f(X))
        a.remove()
        b.remove()
        r.append(f(X))
        return r

    both(Net, use)


@row
def hook_state_dict():
    def use(f, m):
        m.register_state_dict_post_hook(lambda mod, sd, p, meta: sd.__setitem__(p + "extra", torch.ones(1)))
        m.register_load_state_dict_pre_hook(lambda mod, sd, *a: sd.pop("extra", None))
        sd = f.state_dict()
        k = sorted(sd)
        f.load_state_dict(sd)
        return [len(k), f(X)]

    both(Net, use)


class Wins(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.k = 2

    def __getattr__(self, name):
        if name == "magic":
            return 5
        if name == "lin2":
            return super().__getattr__("lin")
        return super().__getattr__(name)

    def forward(self, x):
        return self.lin2(x) * self.magic + self.k


@row
def getattr_own():
    both(Wins, lambda f, m: (f(X), f.magic))


class WinsAll(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.k = 2

    def __getattribute__(self, name):
        if name == "k":
            return 7
        return super().__getattribute__(name)

    def forward(self, x):
        return self.lin(x) * self.k


@row
def getattribute_own():
    both(WinsAll, lambda f, m: (f(X), f.k))


class Reg(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def __getattr__(self, name):
        if name == "lin":
            return super().__getattr__("lin").weight  # wins over the submodule
        return super().__getattr__(name)

    def forward(self, x):
        return x @ self.lin


@row
def getattr_wins():
    both(Reg, lambda f, m: f(X))


class Wrap(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self._inner = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["_inner"], name)

    def forward(self, *a, **k):
        return self._inner(*a, **k)

    def state_dict(self, *a, **k):
        return self._inner.state_dict(*a, **k)

    def load_state_dict(self, *a, **k):
        return self._inner.load_state_dict(*a, **k)


@row
def wrapper():
    def use(f, m):
        f.scale
        sd = f.state_dict()
        f.load_state_dict(sd)
        return (sorted(sd) == ["lin.bias", "lin.weight"], f.scale, f(X), f.lin(X))

    both(lambda: Wrap(Net()), use)


@row
def wrapper_compiled_inside():
    both(lambda: Wrap(C(Net())), lambda f, m: (f(X), f.scale, len(f.state_dict())))


@row
def klass():
    m = Net()
    f = C(m)
    assert isinstance(f, Net) and f.__class__.__name__ == "Net", f.__class__
    assert type(f).__mro__[1] is Net

    class Other(Net):
        def forward(self, x):
            return self.lin(x) - 1

    f(X)
    m.__class__ = Other
    same(f(X), m(X))


@row
def pickled():
    m = Net()
    f = C(m)
    f(X)
    g = pickle.loads(pickle.dumps(f))
    same(g(X), m(X))
    assert isinstance(g, Net)
    b = io.BytesIO()
    torch.save(f, b)
    b.seek(0)
    g = torch.load(b, weights_only=False)
    same(g(X), m(X))


@row
def copies():
    m = Net()
    f = C(m)
    f(X)
    for g in (copy.copy(f), copy.deepcopy(f)):
        same(g(X), m(X))
    g = copy.deepcopy(f)
    g.scale = 5.0
    same(g(X), m.lin(X) * 5)
    same(f(X), m.lin(X) * 2)
    fn = firebrick.compile(lambda x: x + 1, backend="eager")
    for g in (copy.copy(fn), copy.deepcopy(fn)):
        same(g(X), X + 1)


@row
def deepcopy_tensor_full():
    def g(x):
        d = {"a": [x, 1]}
        e = copy.deepcopy(d)
        e["a"].append(2)
        return x * len(d["a"]) + len(e["a"])

    same(firebrick.compile(g, backend="eager")(X), g(X))


class Meta(type):
    def __call__(cls, *a, **k):
        o = super().__call__(*a, **k)
        o.tag = 3
        return o

    def __getattr__(cls, n):
        if n == "mk":
            return 9
        raise AttributeError(n)

    @property
    def prop(cls):
        return 4

    def __iter__(cls):
        return iter([1, 2])

    def __len__(cls):
        return 2

    def __contains__(cls, x):
        return x == 1

    def __getitem__(cls, i):
        return i * 2


class MC(metaclass=Meta):
    def __init__(self, v):
        self.v = v


@row
def metaclass():
    def g(x):
        o = MC(2)
        return x * o.v + o.tag + MC.mk + MC.prop + sum(MC) + len(MC) + (1 in MC) + MC[4]

    same(C(g)(X), g(X))


@row
def metaclass_statement():
    def g(x):
        class A(metaclass=Meta):
            def __init__(self):
                self.z = 1

        return x + A().tag + A().z

    same(firebrick.compile(g, backend="eager")(X), g(X))


@row
def type_call():
    def g(x):
        A = type("A", (), {"k": 2})
        return x * A.k

    same(C(g)(X), g(X))


class Plain:
    def __init__(self, v):
        self.v = v

    def __call__(self, x):
        return x * self.v


@row
def compile_class():
    K = firebrick.compile(Plain, backend="eager")
    o = K(3)
    assert isinstance(o, Plain)
    same(o(X), X * 3)


@row
def compile_module_class():
    K = firebrick.compile(Net, backend="eager")
    o = K()
    assert isinstance(o, Net)
    same(o(X), o.lin(X) * 2)


@row
def compile_class_inside():
    def g(x):
        return Plain(2)(x) + Plain(3).v

    same(C(g)(X), g(X))


@row
def compile_callable_object():
    o = firebrick.compile(Plain(3), backend="eager")
    same(o(X), X * 3)


@row
def module_compile_method():
    m = Net()
    m.compile(backend="firebrick")
    same(m(X), Net.forward(m, X))


@row
def module_compile_then_ours():
    m = Net()
    m.compile(backend="eager")
    f = C(m, full=False)
    same(f(X), Net.forward(m, X))


@row
def module_compile_inner():
    m = Net()
    m.lin.compile(backend="eager")
    f = C(m)
    same(f(X), Net.forward(m, X))


@row
def jit_trace():
    f = firebrick.compile(lambda x: (x * 2).sin() + 1)
    t = torch.jit.trace(f, (X,))
    same(t(X + 1), (X + 1).mul(2).sin() + 1)


@row
def jit_trace_module():
    m = Net().eval()
    f = firebrick.compile(m)
    t = torch.jit.trace(f, (X,))
    same(t(X + 1), m(X + 1))


@row
def jit_trace_grad():
    m = Net()
    f = firebrick.compile(m)
    f(X)
    t = torch.jit.trace(f, (X,))
    same(t(X + 1), m(X + 1))


@row
def fx_trace():
    f = firebrick.compile(Net())
    g = torch.fx.symbolic_trace(f)
    same(g(X), f(X))


@row
def traced_by_make_fx():
    f = firebrick.compile(lambda x: x.sin() * 2)
    g = make_fx(f)(X)
    same(g(X + 1), (X + 1).sin() * 2)


@row
def train_eval():
    both(
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)),
        lambda f, m: (f.eval() and f(X), f.train() and f.training),
    )


@row
def to_dtype():
    both(Net, lambda f, m: (f(X), f.double()(X.double()), f.float()(X)))


@row
def add_module_between():
    def use(f, m):
        r = [f(X)]
        m.lin = nn.Sequential(m.lin, nn.ReLU())
        r.append(f(X))
        m.register_buffer("b", torch.ones(3))
        r.append(f(X))
        del m.b
        r.append(f(X))
        return r

    both(Net, use)


@row
def setattr_compiled():
    def use(f, m):
        r = [f(X)]
        f.scale = 7.0
        r.append(f(X))
        return r + [m.scale]

    both(Net, use)


@row
def modlists():
    class L(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
            s.d = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
            s.p = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
            s.q = nn.ParameterDict({"w": nn.Parameter(torch.ones(3))})

        def forward(s, x):
            for _, layer in enumerate(s.l):
                x = layer(x)
            for layer in s.l[1:]:
                x = x + layer(x)
            for k, v in s.d.items():
                x = v(x)
            for p in s.p:
                x = x * p
            return x + s.q["w"] + len(s.l) + ("a" in s.d) + s.l[-1](x)

    both(L, lambda f, m: f(X))


@row
def named_things():
    class L(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = nn.Linear(3, 3)
            s.b = nn.Sequential(nn.Linear(3, 3))
            s.register_buffer("c", torch.ones(3))

        def forward(s, x):
            for n, p in s.named_parameters():
                x = x + p.sum() * len(n)
            for n, p in s.named_buffers():
                x = x + p
            for m in s.modules():
                x = x + (1 if isinstance(m, nn.Linear) else 0)
            for n, m in s.named_children():
                x = x + len(n)
            return x + sum(p.numel() for p in s.parameters()) + len(s.state_dict())

    both(L, lambda f, m: f(X), full=False)


@row
def apply_inside():
    class L(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = nn.Linear(3, 3)
            s.n = 0

        def forward(s, x):
            s.n += 1
            return s.a(x) + s.n + s.get_parameter("a.weight").sum() + s.get_submodule("a").bias

    both(L, lambda f, m: (f(X), f(X), m.n))


@row
def hooks_that_are_always_called():
    class Refusing(nn.Module):
        def forward(self, x):
            if x.shape[0] == 1:
                raise ValueError("one row")
            return x * 2

    heard = []

    def make():
        net = nn.Sequential(nn.Linear(3, 3), Refusing())
        net[1].register_forward_hook(lambda m, a, o: heard.append(o is None), always_call=True)
        net[1].register_forward_hook(lambda m, a, o: heard.append("plain"))
        net[1].register_forward_hook(lambda m, a, k, o: heard.append(k), always_call=True, with_kwargs=True)
        return net

    def use(f, m):
        heard.clear()
        with pytest.raises(ValueError, match="one row"):
            f(X[:1])
        return f(X), [str(what) for what in heard] == ["True", "{}", "False", "plain", "{}"]

    both(make, use)


@pytest.mark.parametrize("name", P)
def test_row(name: str) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        P[name]()


def test_a_class_whose_objects_are_not_called_is_refused() -> None:
    class Idle:
        pass

    with pytest.raises(firebrick.errors.ConfigError, match="objects of the class Idle can't be called"):
        firebrick.compile(Idle)
