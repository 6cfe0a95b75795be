"""Ordinary arithmetic between the features, and what puts features into control flow."""

from __future__ import annotations

from tests.fuzz.features.frame import Feature, Tensor, Writer

POINTWISE = (
    "{a} + 1", "{a} * 2", "torch.tanh({a})", "torch.sigmoid({a})", "F.relu({a})", "F.gelu({a})", "{a}.abs() + 0.5", "-{a}",
    "{a} * {a}", "torch.sin({a})", "F.silu({a})", "{a} - {a}.mean()", "torch.where({a} > 0, {a}, {a} * 0.1)", "{a}.clone()",
    "{a}.clamp(-1, 1)", "F.softmax({a}, -1)", "torch.exp(-{a} * {a})", "{a}.to(torch.float64).to({a}.dtype)", "F.elu({a})",
    "{a}.square().add(1).sqrt()", "{a}.lerp({a} * 2, 0.3)", "torch.zeros_like({a}) + {a}", "torch.ones_like({a}) * {a}",
    "torch.full_like({a}, 0.5) * {a}", "{a}.masked_fill({a} > 1, 0.25)", "torch.addcmul({a}, {a}, {a}, value=0.5)",
)  # fmt: skip
PAIRS = ("{a} + {b}", "{a} * {b}", "{a} - {b}", "torch.maximum({a}, {b})", "torch.where({a} > 0, {a}, {b})", "{a} / ({b}.abs() + 1)",
         "torch.atan2({a}, {b}.abs() + 1)", "{a}.add({b}, alpha=2)", "torch.lerp({a}, {b}, 0.25)", "torch.hypot({a}, {b} + 3)")  # fmt: skip
REDUCTIONS = ("{a}.sum({d})", "{a}.mean({d})", "{a}.amax({d})", "{a}.sum({d}, keepdim=True)", "{a}.var({d})", "{a}.logsumexp({d})",
              "{a}.softmax({d})", "{a}.cumsum({d})", "{a}.norm(dim={d})", "{a}.std({d}, keepdim=True)", "{a}.log_softmax({d})")  # fmt: skip


def shape_of_reduction(text: str, a: Tensor, dim: int) -> tuple[int, ...]:
    """Shape of one of `REDUCTIONS`."""
    if "softmax" in text or "cumsum" in text:
        return a.shape
    if "keepdim" in text:
        return (*a.shape[:dim], 1, *a.shape[dim + 1 :])
    return (*a.shape[:dim], *a.shape[dim + 1 :])


def pointwise(w: Writer) -> None:
    a = w.tensor()
    w.bind(w.random.choice(POINTWISE).format(a=a.name), a)


def pair(w: Writer) -> None:
    a = w.tensor()
    b = w.tensor(shape=a.shape)
    w.bind(w.random.choice(PAIRS).format(a=a.name, b=b.name), a, grad=a.grad or b.grad)


def reduction(w: Writer) -> None:
    a = w.tensor()
    dim = w.random.randrange(a.rank) if a.rank else 0
    text = w.random.choice(REDUCTIONS)
    w.bind(text.format(a=a.name, d=dim), a, shape_of_reduction(text, a, dim) if a.rank else ())


def graph_break(w: Writer) -> None:
    a = w.tensor()
    w.put(
        w.random.choice([f"print(tuple({a.name}.shape))", f"SEEN.append({a.name}.dim())", f"print({a.name}.stride())"])
    )


def branch(w: Writer) -> None:
    a = w.tensor()
    head = w.random.choice(["for _ in range(2):", f"if {a.name}.dim() > 1:", "with torch.no_grad():", "with torch.enable_grad():",
                            "while True:", "with contextlib.nullcontext():"])  # fmt: skip
    name = w.bind(f"{a.name} + 0", a).name
    with w.block(head):
        w.put(f"{name} = {w.random.choice(POINTWISE).format(a=name)}")
        if head.startswith("while"):
            w.put("break")


HELPERS = (
    "torch.func.vjp(torch.sin, {a})[1]({a})[0]", "torch.func.vjp(lambda t: (t * 2, t.exp()), {a})[1](({a}, {a}))[0]",
    "torch.func.linearize(torch.sin, {a} + 0)[1]({a})", "torch.jit.annotate(torch.Tensor, {a} + 1)",
    "{a} + torch.Tensor({a}.shape).zero_()", "{a} * torch.FloatTensor([{a}.dim()])", "{a}.type(torch.DoubleTensor).type({a}.type())", "torch.Tensor({a}) + 1",
    "checkpoint(lambda t: t.sin() * 2, {a}, use_reentrant=False)", "torch.func.jacrev(lambda t: (t * t).sum())({a})", "{a} * (hash(SEEN.append) == hash(SEEN.append))",
    "{a} * collections.namedtuple('P', 'n')({a}.dim()).n", "{a} + type('C', (), {{'k': 2}}).k",
)  # fmt: skip
"""Calls of what torch and Python have beside operators; the shape stays. `linearize` folds what it traces, and eager
refuses that of an expanded tensor: it gets one with memory of its own."""
SETTINGS = (
    "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):", "with torch.backends.mkldnn.flags(enabled=False):",
    "with warnings.catch_warnings():", "with torch.autograd.graph.disable_saved_tensors_hooks('no'):", "with torch.fx.traceback.annotate({'a': 1}):",
)  # fmt: skip


def helper(w: Writer) -> None:
    """A call of a helper, now and then under a setting, in the midst of which an exception may leave or be caught."""
    a = w.tensor()
    w.top("import collections, warnings, torch.nn.attention", "from torch.utils.checkpoint import checkpoint")
    text = w.random.choice(HELPERS).format(a=a.name)
    if "torch.func" in text and "inference" in w.mode:  # what they make there is of another kind where it is compiled
        w.mode = ""
    if w.random.random() < 0.4:
        name = w.bind(f"{a.name} + 0", a).name
        with w.block(w.random.choice(SETTINGS)):
            w.put(f"{name} = {text}")
            if w.random.random() < 0.3:
                w.put(
                    w.random.choice(
                        [f"if {name}.dim() == 2: raise ValueError({name}.shape)", f"assert {name}.dim() < 3, 'rank'"]
                    )
                )
    else:
        w.bind(text, a, grad=a.grad)


REFUSED = (
    "{a}.sum({d})", "{a}.softmax({d})", "{a}.amax({d})", "{a}.cumsum({d})", "{a}.flip({d})", "{a}.mean(({d}, 0))", "{a}.unsqueeze({d} + 2)", "{a}.argmax({d})",
    "{a}.amin((0, 0))", "{a}.permute([0] * {a}.dim())" , "F.cosine_similarity({a}, {a}, dim={d})", "torch.linalg.vector_norm({a}, dim={d})", "{a}.transpose(0, {d})", "{a}.squeeze({d})",
    "torch.cat([{a}, {a}], {d})", "torch.stack([{a}, {a}], {d} + 1)", "{a}.roll(1, {d})", "{a}[:0].max()", "{a}[:0].argmin()", "torch.zeros(0, 3).amax(0)", "torch.arange(3).add_(1.5)",
    "torch.arange(3).div_(2)", "torch.arange(3).exp_()", "(~({a} > 0)).add_(1)", "({a} > 0) - ({a} < 0)", "{a}.clamp()", "torch.full((2,), 300, dtype=torch.int8)",
    "F.max_pool1d({a}.flatten()[None, None], 2, padding=2)", "F.layer_norm({a}, (77,))", "F.one_hot(torch.arange(4), 2)", "{a} @ {a}.flatten()[None].expand(77, -1)", "{a}.reshape(77, 77)",
    "{a}.view(-1, 77)", "{a}.expand(77, 77, 77)", "{a}.gather(0, {a})", "{a}.scatter(0, torch.zeros_like({a}, dtype=torch.int64), {a}.double())", "torch.index_select({a}, {d}, torch.tensor([0]))",
    "{a} + torch.ones(77, 78)", "F.binary_cross_entropy({a}.abs() + 2, {a}.sigmoid())", "F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 5]))", "F.nll_loss({a}, {a})", "{a}.bitwise_and(1)",
    "torch.linalg.cholesky(-torch.eye(3))", "torch.linalg.inv(torch.zeros(2, 2))", "torch.linalg.solve(torch.ones(2, 2), torch.ones(2))", "F.embedding({a}, {a})", "F.conv2d({a}, {a})",
    "F.linear({a}, torch.ones(2, 77))", "{a}.masked_fill({a}, 1)", "{a}.index_add(0, torch.tensor([0]), {a}.long())", "{a}.bool().sum({d})", "torch.bincount({a})", "{a}.select(0, 77)",
    "{a}.narrow(0, 0, 77)", "{a}.unflatten(0, (77, 3))", "torch.nn.functional.pad({a}, (1,))", "{a}.chunk(0)", "{a}.split(-1)", "torch.einsum('ab,bc->zc', {a}, {a})", "{a}.addmm({a}, {a})[77]",
    "torch.arange(5, 0, 1)", "torch.linspace(0, 1, -1)", "torch.eye(-2)", "torch.normal({a}, -1.0)", "F.dropout({a}, 1.5)", "F.interpolate({a}, scale_factor=2.0, mode='bilinear')[77]", "{a}.sort({d})",
    "{a}.kthvalue(0)", "{a}.topk(77)", "{a}.tril().triu().inverse()", "{a}.unfold({d}, 1, 1)", "{a}.std({d})", "{a}.prod({d})", "{a}.all({d})", "{a}.logsumexp({d})", "{a}.diff(dim={d})",
)  # fmt: skip
"""Calls that eager refuses; `d` is a dimension beyond the rank."""


def refused(w: Writer) -> None:
    """A call that eager refuses: what is raised, and where, must be the same."""
    a = w.tensor()
    text = w.random.choice(REFUSED).format(a=a.name, d=w.random.choice([a.rank, a.rank + 2, -a.rank - 1]))
    name = w.fresh()
    if w.random.random() < 0.7:
        with w.block("try:"):
            w.put(f"{name} = {text}", f"SEEN.append({name})")
        with w.block("except Exception as error:"):
            w.put("SEEN.append(type(error).__name__)")
    else:
        w.put(f"{name} = {text}")
        w.returns(name)


ROWS = (
    Feature("pointwise", 6, pointwise), Feature("pair", 4, pair), Feature("reduction", 4, reduction),
    Feature("graph_break", 1, graph_break), Feature("branch", 1, branch), Feature("refused", 2, refused),
    Feature("helper", 2, helper),
)  # fmt: skip
