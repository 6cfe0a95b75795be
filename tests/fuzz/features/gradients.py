"""What reaches into gradients from outside: hooks, sparse and batched gradients, tangents, forbidden writes, devices."""

from __future__ import annotations

from tests.fuzz.features.frame import Feature, Tensor, Writer
from tests.fuzz.features.modules import new


def _shown(w: Writer, text: str) -> str:
    """`out[i]` behind the call: a value of captured code, which is returned."""
    w.mode = ""
    w.returns(text)
    return f"out[{len(w.results) - 1}]"


def _tried(w: Writer, *lines: str) -> None:
    """Plain Python that may raise; whether autograd's words are said is compared."""
    with w.block("try:", "last"):
        w.last(*lines)
    with w.block("except RuntimeError as error:", "last"):
        w.last("SEEN.append([type(error).__name__, 'inplace' in str(error)])")


def inner_hooks(w: Writer) -> None:
    """Hooks on modules inside of the module that is called."""
    a = w.tensor(rank=2, grad=True)
    net = new(w, f"nn.Sequential(nn.Linear({a.shape[-1]}, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)), nn.ReLU())")
    inner = w.random.choice([f"{net}[0]", f"{net}[1]", f"{net}[1][1]", f"{net}[2]"])
    w.top(w.random.choice([
        "{m}.register_full_backward_hook(lambda m, gi, go: tuple(g if g is None else g * 10 for g in gi))",
        "{m}.register_full_backward_hook(lambda m, gi, go: SEEN.append(go[0].sum().item()))",
        "{m}.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))",
        "{m}.register_forward_hook(lambda m, args, out: out * 2)", "{m}.register_forward_pre_hook(lambda m, args: (args[0] + 1,))",
        "{m}.register_backward_hook(lambda m, gi, go: SEEN.append(go[0].sum().item()))",
        "{m}.register_forward_hook(lambda m, args, out: SEEN.append('left'), always_call=True)", "",
    ]).format(m=inner))  # fmt: skip
    out = _shown(w, w.bind(f"{net}({a.name})", a, (a.shape[0], 4), grad=True).name)
    w.after(f"{out}.square().sum().backward(retain_graph=True)")
    if w.random.random() < 0.4:  # of all modules: set while main is called
        w.top("nn.modules.module._global_is_full_backward_hook = None")
        w.mode = w.random.choice([
            "with nn.modules.module.register_module_full_backward_hook(lambda m, gi, go: tuple(g if g is None else g * 2 for g in gi)):",
            "with nn.modules.module.register_module_full_backward_pre_hook(lambda m, go: SEEN.append(type(m).__name__)):",
            "with nn.modules.module.register_module_backward_hook(lambda m, gi, go: SEEN.append(type(m).__name__)):",
            "with nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2):",
        ])  # fmt: skip


def sparse_gradients(w: Writer) -> None:
    """Lookups whose gradients are sparse, alone and before layers."""
    a = w.argument((2, 5), "int64", layouts=("plain", "transposed", "expanded"))
    options = w.random.choice(["", ", padding_idx=1", ", max_norm=0.7"])
    table = w.random.choice([f"nn.Embedding(9, 8, sparse=True{options})", "nn.EmbeddingBag(9, 8, sparse=True)"])
    shape = (2, 8) if "Bag" in table else (2, 5, 8)
    module = new(w, w.random.choice([table, f"nn.Sequential({table}, nn.Linear(8, 8), nn.Tanh())"]), "")
    w.top(f"{module}.requires_grad_(True)")
    value = w.bind(f"{module}({a.name} % 9)", a, shape, dtype="float32", grad=True)
    value = w.bind(w.random.choice(["{v} * 2", "{v}.sin()", "{v}"]).format(v=value.name), value)
    w.after(f"{_shown(w, value.name)}.square().sum().backward(retain_graph=True)")


def forward_ad(w: Writer) -> None:
    """Tensors that carry tangents: as arguments, under a transform around the call, or inside."""
    apart = ("plain", "transposed", "gaps", "offset", "unaligned", "selected")  # eager writes into tensors like primals
    a, b = w.argument((3, 4), grad=False), w.argument((3, 4), grad=False, layouts=apart)
    tangent, dual = w.fresh("t"), w.fresh("a")
    w.before(f"{tangent} = given(5 + call, 3, 4)", f"{dual} = {b.name}")
    text = w.random.choice([
        "({d} * {d}).sin()", "{d} @ {d}.t() + {d}.sum()", "F.gelu({d}) * {a}", "{d}.softmax(-1)", "{m}({d}) + {d}", "F.layer_norm({d}, (4,)).transpose(0, 1)",
        "{d}.clone().mul_({a})", "torch.where({d} > 0, {d}, {a}).cumsum(0)", "torch.cat([{d}, {a}]).sum(1)",
    ]).format(d=dual, a=a.name, m=new(w, "nn.Linear(4, 4)"))  # fmt: skip
    w.mode, outside = "", "enter_dual_level" in "".join(w.parts["before"])  # tangents of tangents are an error
    if outside or (w.random.random() < 0.6 and "func.jvp" not in "".join((*w.parts["body"], *w.parts["before"]))):
        w.before(*([] if outside else ["fwAD.enter_dual_level()"]), f"{dual} = fwAD.make_dual({dual}, {tangent})")
        w.arguments.append(dual)
        name = w.fresh()
        w.put(f"{name} = {text}")
        w.returns(name)
        w.after(f"TANGENT = fwAD.unpack_dual(out[{len(w.results) - 1}]).tangent")
        w.after("out = tuple(fwAD.unpack_dual(o).primal if isinstance(o, torch.Tensor) else o for o in out)")
        w.observes("TANGENT")
        return
    w.arguments += [dual, tangent]
    name = w.fresh()
    if w.random.random() < 0.5:
        w.top("def pushed(main, at, *args):",
              "    *start, primal = args[:at + 1]",
              "    run = lambda one: main(*start, one, *args[at + 1:])[NUMBER]",
              "    SEEN.append(torch.func.jvp(run, (primal,), (args[at + 1],))[1])", "    return main(*args)")  # fmt: skip
        w.before(f"main = functools.partial(pushed, main, {len(w.arguments) - 2})")
        w.put(f"{name} = {text}")
        w.top(f"NUMBER = {len(w.results)}")
    else:
        w.put(f"{name} = torch.func.jvp(lambda {dual}: {text}, ({dual},), ({tangent},))[1]")
    w.returns(name)


def other_devices(w: Writer) -> None:
    """Tensors of the meta device beside those of the CPU."""
    a = w.tensor(rank=2)
    name = w.fresh()
    rows, columns = a.shape
    if w.random.random() < 0.5:
        w.put(w.random.choice([
            "{n} = {a}.to('meta') + 1", "{n} = torch.ones_like({a}, device='meta') * 2", "{n} = {a}.to(device=torch.device('meta')).t().contiguous()",
            "{n} = {a}.new_zeros(3, device='meta')", "{n} = torch.zeros({r}, {c}, device='meta') + torch.arange({c}, device='meta')",
        ]).format(n=name, a=a.name, r=rows, c=columns))  # fmt: skip
    else:
        with w.block(f"with torch.device({w.random.choice([repr('meta'), repr('meta'), repr('cpu')])}):"):
            w.put(f"{name} = {w.random.choice(['torch.zeros(3) + 1', 'torch.arange(4)', 'torch.full((2, 2), 3.0)', 'torch.tensor([1.0])', 'torch.empty(2, 3).zero_().t()', 'torch.eye(2)'])}")  # fmt: skip
        w.bind(f"{a.name} + torch.ones({columns})", a)
    w.returns(name, f"{name}.device.type")


def batched_gradients(w: Writer) -> None:
    """A backward that is handed a batch of gradients."""
    a = w.argument((3, 4), grad=True)
    text = w.random.choice(
        ["({a} * {a}).sin()", "{a}.cumsum(0) * 2", "{a}.softmax(-1)", "F.layer_norm({a}, (4,)) + {a}"]
    )
    out = _shown(w, w.bind(text.format(a=a.name), a, grad=True).name)
    name, batch = w.fresh("g"), "given(7 + call, 2, 3, 4)"
    w.after(w.random.choice([
        f"{name} = torch.autograd.grad({out}, {a.name}, {batch}, is_grads_batched=True, retain_graph=True)",
        f"{name} = torch.vmap(lambda v: torch.autograd.grad({out}, {a.name}, v, retain_graph=True)[0])({batch})",
    ]))  # fmt: skip
    w.observes(name)


def saved_writes(w: Writer) -> None:
    """Writes to what a backward may need, inside or behind the call."""
    a = w.argument((3, 4), grad=True)
    y = w.bind(f"{a.name} * 2", a, grad=True)
    z = w.bind(w.random.choice(["{y}.exp()", "{y}.sigmoid()", "{y}.softmax(-1)", "{y} * {y}", "{y}.sin()", "{y} + 1", "{y}.relu()"]).format(y=y.name), y)  # fmt: skip
    target = w.random.choice([z.name, z.name, y.name])
    write = w.random.choice(["{t}.add_(1)", "{t}[0] = 1.0", "{t}.detach().mul_(2)", "{t}.mul_(2)"]).format(t=target)
    if w.random.random() < 0.6:
        w.put(write)
        _tried(w, f"{_shown(w, z.name)}.sum().backward(retain_graph=True)")
        return
    w.mode = ""
    w.returns(z.name)
    _tried(
        w,
        write.replace(target, f"out[{len(w.results) - 1}]"),
        f"out[{len(w.results) - 1}].sum().backward(retain_graph=True)",
    )


def several_views(w: Writer) -> None:
    """Writes to one of the views that one function gives."""
    a = w.argument((4, 6), grad=w.random.random() < 0.8)
    y = w.bind(f"{a.name} * 2", a)
    parts = w.fresh("p")
    w.put(f"{parts} = {w.random.choice(['{y}.unbind(0)', '{y}.split(2)', '{y}.chunk(2)', 'torch.split({y}, [1, 3])', 'torch.unsafe_chunk({y}, 2)', '({y}[0], {y}[1])', 'list({y})']).format(y=y.name)}")  # fmt: skip
    w.mode = ""
    if w.random.random() < 0.5:
        with w.block("try:"):
            w.put(f"{parts}[0].mul_(3)")
        with w.block("except RuntimeError:"):
            w.put("SEEN.append('refused')")
        w.returns(y.name)
        return
    w.returns(f"{parts}[0]")
    _tried(w, f"out[{len(w.results) - 1}].mul_(3)", f"out[{len(w.results) - 1}].sum().backward(retain_graph=True)")


def scalars_of_complex(w: Writer) -> None:
    """Complex numbers in training."""
    z = w.argument((3, 4), "complex64", grad=True, layouts=("plain", "transposed", "gaps"))
    text = w.random.choice(["{z} * {z} + 1j * {z}.conj()", "{z} * (1 + 2j)", "{z}.cumsum(1)", "{z}.flip(1)", "{z} @ {z}.mH", "{z}.roll(1, 0)", "{z} / ({z} + 4)"])  # fmt: skip
    out = _shown(w, w.bind(text.format(z=z.name), z, (3, 3) if "@" in text else None, grad=True).name)
    w.after(f"{out}.abs().square().sum().backward(retain_graph=True)")


_SMOOTH = (
    "({a} * {a}).sin()", "{a}.tanh() * {a}", "F.gelu({a})", "F.silu({a}).square()", "{a}.softmax(-1) * {a}",
    "F.layer_norm({a}, (4,)).tanh()", "{a}.cumsum(0).square()", "({a} @ {a}.t()).tanh() @ {a}", "{a}.logsumexp(-1, keepdim=True) * {a}",
    "F.softplus({a}) + {a}.detach() * {a}", "{a}.clone().mul_({a}).sin_()", "{a}.norm(dim=1, keepdim=True) * {a}", "F.dropout({a}.sin(), 0.5)",
    "{a}.amax(1, keepdim=True) * {a}", "{a}.t().reshape(3, 4).square()", "torch.where({a} > 0, {a}.exp(), {a} * 2)", "{a}.var(0) * {a}", "{m}({a}).tanh()",
    "torch.utils.checkpoint.checkpoint(lambda x: F.dropout(x.sin(), 0.5) * x, {a}, use_reentrant=False)",
)  # fmt: skip


def _smooth(w: Writer, like: Tensor) -> Tensor:
    text, module = w.random.choice(_SMOOTH), ""
    if "{m}" in text:
        module = new(w, "nn.Linear(4, 4).double()")
    if "checkpoint" in text:
        w.top("import torch.utils.checkpoint")
    return w.bind(text.format(a=like.name, m=module), like, grad=True)


def second_gradients(w: Writer) -> None:
    """Gradients of gradients behind the call: penalties, products with Hessians, several losses, a third level."""
    # In float32 rounding grows with each level, and the sine of 1e40 is rounding alone. In-place draws go by memory, and functional ones by position.
    value = a = w.argument((3, 4), "float64", grad=True, layouts=("plain", "offset", "unaligned"))
    for _ in range(w.random.randint(1, 3)):
        value = _smooth(w, value)
        if w.random.random() < 0.2:
            w.put("len(str(call_of_plain_python()))")
    outs = [_shown(w, value.name)]
    if w.random.random() < 0.5:
        outs.append(_shown(w, _smooth(w, w.random.choice([a, value])).name))
    w.top("def call_of_plain_python():", "    return vars(torch)['__version__']")
    g, h = w.fresh("g"), w.fresh("h")
    loss = " + ".join(f"{out}.{w.random.choice(['sum()', 'square().mean()', 'atan().sum()'])}" for out in outs)
    w.after(f"{g}, = torch.autograd.grad({loss}, {a.name}, create_graph=True)")
    then = w.random.choice([
        "{h} = torch.autograd.grad((({g} * {g}).sum(1).add(1e-3).sqrt() - 1).square().mean(), {a}, retain_graph=True, allow_unused=True)",
        "{h} = torch.autograd.grad({g}, {a}, given(9 + call, 3, 4).double(), retain_graph=True, allow_unused=True)",
        "({g}.square().sum() + {o}.mean()).backward(retain_graph=True); {h} = {a}.grad",
        "{h} = torch.autograd.grad(({g} / (1 + {g}.detach().abs().amax())).sin().sum(), {a}, create_graph=True)[0]; {h} = torch.autograd.grad({h}.sum(), {a}, retain_graph=True, allow_unused=True)",
        "{o}.sum().backward(retain_graph=True); {g}.sum().backward(retain_graph=True); {h} = {a}.grad",
        "{h} = [torch.autograd.grad({g}[i, 0], {a}, retain_graph=True, allow_unused=True)[0] for i in range(3)]",
    ]).format(h=h, g=g, a=a.name, o=outs[-1])  # fmt: skip
    _tried(w, *then.split("; "))
    w.before(f"{h} = None")
    w.top("def laid_out(value):", "    rows = value if isinstance(value, (list, tuple)) else [value]",
          "    return [None if r is None else r.contiguous() for r in rows]")  # fmt: skip
    w.observes(f"laid_out({g})", f"laid_out({h})", "torch.rand(1)")


ROWS = (
    Feature("inner_hooks", 2, inner_hooks), Feature("sparse_gradients", 2, sparse_gradients), Feature("forward_ad", 2, forward_ad),
    Feature("other_devices", 2, other_devices), Feature("batched_gradients", 2, batched_gradients), Feature("saved_writes", 2, saved_writes),
    Feature("second_gradients", 2, second_gradients), Feature("several_views", 2, several_views), Feature("scalars_of_complex", 2, scalars_of_complex),
)  # fmt: skip
