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


ROWS = (
    Feature("pointwise", 6, pointwise), Feature("pair", 4, pair), Feature("reduction", 4, reduction),
    Feature("graph_break", 1, graph_break), Feature("branch", 1, branch),
)  # fmt: skip
