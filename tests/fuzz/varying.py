"""Programs whose sizes, ints and floats differ from call to call: what was a number in one call is a symbol in the next.

Sizes are drawn from small numbers, 1 among them (0 in a few programs), so that a dimension that could be broadcast in one
call can't in the next, and dimensions that were equal once differ. Shapes that a program writes are in terms of its
sizes, so that most of its calls are legal; those that are not must raise what eager raises.
"""

# ruff: noqa: E501 - tables of program pieces are easier to read unbroken

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.fuzz.features.frame import PRELUDE

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["generate"]

NAME = "varying"
CALLS = 4

HEAD = """
W = 4
torch.manual_seed(3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(W, W), nn.LayerNorm(W)
        self.conv, self.batch = nn.Conv1d(W, W, 3, padding=1), nn.BatchNorm1d(W)
        self.embed, self.rnn = nn.Embedding(6, W), nn.GRU(W, W, batch_first=True)
        self.attend = nn.MultiheadAttention(W, 2, batch_first=True)
        self.calls = 0

    def heads(self, x):
        b, s, _ = x.shape
        q, k, v = (self.linear(x).view(b, s, 2, W // 2).transpose(1, 2) for _ in range(3))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, W)


NET = Net()
"""

# Shapes: B and S vary, Q is S or 1, P is B or 1, W is W. A row is (shapes of what it reads, text, shape of its result);
# the result of a row without a shape is not read again. {n} {k} are ints, {f} is a float, {i} is a small number.
ROWS: Sequence[tuple[tuple[str, ...], str, str]] = (
    # elementwise and broadcast
    (("BSW",), "{0} * {f} + {i}", "BSW"), (("BSW",), "F.gelu({0}) - {n}", "BSW"), (("BSW", "BSW"), "{0} * {1}", "BSW"),
    (("BSW", "BQW"), "{0} + {1}", "BSW"), (("BSW", "PSW"), "{0} - {1}", "BSW"), (("BSW", "BQW"), "torch.where({1} > 0, {0}, {1})", "BSW"),
    (("BQW", "BSW"), "torch.maximum({0}, {1}) * {f}", "BSW"), (("BQW", "PSW"), "{0} * {1}", "BSW"), (("BSW",), "{0} + {0}.shape[1]", "BSW"),
    (("BSW",), "{0} / {0}.numel()", "BSW"), (("BSW", "BQW"), "torch.lerp({0}, {1}, 0.25)", "BSW"), (("BQW", "BSW"), "torch.broadcast_tensors({0}, {1})[0] + 1", "BSW"),
    (("BQW", "BSW"), "{0}.expand_as({1})", "BSW"), (("BQW", "BSW"), "{0}.expand(-1, {1}.shape[1], -1)", "BSW"), (("BSW",), "{0}.masked_fill({0} > {f}, {n})", "BSW"),
    (("BSW",), "{0}.to(torch.float64).to(torch.float32)", "BSW"), (("BSW",), "{0} * torch.arange({0}.shape[1])[:, None]", "BSW"),
    (("BSW",), "{0} ** 2 + {0}.size(0) * {f}", "BSW"), (("BSW",), "{0} + torch.full(({0}.shape[0], 1, 1), {f})", "BSW"),
    # modules and matmuls
    (("BSW",), "NET.linear({0})", "BSW"), (("BSW",), "NET.norm({0})", "BSW"), (("BSW",), "NET.conv({0}.transpose(1, 2)).transpose(1, 2)", "BSW"),
    (("BSW",), "NET.heads({0})", "BSW"), (("BSW",), "NET.rnn({0})[0]", "BSW"), (("BSW",), "NET.attend({0}, {0}, {0}, need_weights=False)[0]", "BSW"),
    (("BSW",), "NET.batch({0}.transpose(1, 2)).transpose(1, 2)", "BSW"), (("BSW",), "torch.softmax({0} @ {0}.transpose(1, 2) / {0}.shape[1], -1) @ {0}", "BSW"),
    (("BSW", "BSW"), "torch.einsum('bsw,btw->bst', {0}, {1})", "BSS"), (("BSS",), "{0}.masked_fill(torch.ones({0}.shape[1], {0}.shape[1]).tril() == 0, -1e9).softmax(-1)", "BSS"),
    (("BSS", "BSW"), "torch.bmm({0}, {1})", "BSW"), (("BSS",), "{0}.tril({i})", "BSS"), (("BSS",), "{0} + {0}.transpose(1, 2)", "BSS"), (("BSS",), "{0}.diagonal(dim1=1, dim2=2)", "BS"),
    (("BS",), "NET.embed({0}.abs().long() % 6)", "BSW"), (("BSW",), "F.layer_norm({0}, {0}.shape[1:])", "BSW"), (("BSW",), "F.dropout({0}, 0.5, training=False)", "BSW"),
    # reductions
    (("BSW",), "{0}.sum(1)", "BW"), (("BSW",), "{0}.mean(1, keepdim=True)", "B1W"), (("BSW",), "{0}.amax((0, 2))", "S"), (("BSW",), "{0}.sum(-1)", "BS"), (("BSW",), "{0}.std(2)", "BS"),
    (("BSW",), "{0}.cumsum(1)", "BSW"), (("BSW",), "{0}.softmax(1)", "BSW"), (("BSW",), "{0}.var((0, 1), unbiased=False)", "W"), (("BSW",), "{0}.logsumexp(0)", "SW"), (("BSW",), "{0}.mean(0)", "SW"),
    (("BS",), "{0}.argmax(1)[:, None] + {0}", "BS"), (("BS",), "{0}.sort(1, stable=True).values", "BS"), (("BSW",), "{0}.prod(2)", "BS"), (("BSW",), "F.normalize({0}, dim=1)", "BSW"), (("BSW",), "{0}.contiguous().median(1).values", "BW"),
    (("BS",), "{0}.topk(1, 1).values", "B1"), (("BSW",), "{0}.norm()", ""), (("BSW", ""), "{0} / ({1}.abs() + 1)", "BSW"),
    # views and layouts
    (("BSW",), "{0}.reshape(-1, W)", "NW"), (("NW", "BSW"), "{0}.view({1}.shape)", "BSW"), (("NW", "BSW"), "{0}.reshape({1}.shape[0], -1, W)", "BSW"), (("BSW",), "{0}.flatten()", ""), (("BSW",), "{0}.reshape({0}.shape[0], -1)", "BV"),
    (("BV",), "{0}.view({0}.shape[0], -1, W)", "BSW"), (("BV",), "{0}.unflatten(1, (-1, W))", "BSW"), (("BSW",), "{0}.transpose(0, 1)", "SBW"), (("SBW",), "{0}.permute(1, 0, 2)", "BSW"), (("SBW",), "{0}.contiguous().transpose(0, 1)", "BSW"),
    (("SBW",), "{0}.reshape(-1, W)", "NW"), (("SBW",), "{0}.reshape({0}.shape[1], {0}.shape[0], W)", "BSW"), (("SBW",), "{0}.ravel()", "?"), (("BSW",), "{0}.permute(2, 0, 1).reshape(W, -1)", "?"), (("SBW", "BW"), "{0} + {1}", "SBW"),
    (("BS",), "{0}.unsqueeze(-1).expand(-1, -1, W)", "BSW"), (("BS",), "{0}[..., None] * torch.ones(W)", "BSW"), (("BW",), "{0}.unsqueeze(1)", "B1W"), (("B1W",), "{0}.squeeze(1)", "BW"), (("BQW",), "{0}.squeeze()", "?"), (("BQW",), "{0}.squeeze(1)", "?"),
    (("BSW", "B1W"), "{0} - {1}", "BSW"), (("BW", "BSW"), "{1} * {0}[:, None]", "BSW"), (("BSW",), "{0}[:, -1]", "BW"), (("BSW",), "{0}[:, 0]", "BW"), (("BSW",), "{0}[:, ::2]", "?"), (("BSW",), "{0}[:, {0}.shape[1] // 2:]", "?"),
    (("BSW",), "{0}[:{n}]", "?"), (("BSW",), "{0}[:, 1:]", "?"), (("BSW",), "{0}[:, :-1].sum(1)", "BW"), (("BSW",), "{0}.flip(1)", "BSW"), (("BSW",), "{0}.roll({i}, 1)", "BSW"), (("BSW",), "{0}.roll({n}, 1)", "BSW"), (("BSW",), "{0}.chunk(2, 1)[0]", "?"),
    (("BSW",), "{0}.chunk(2, 2)[1].repeat(1, 1, 2)", "BSW"), (("BSW",), "torch.cat([c * {f} for c in {0}.split(2, 2)], 2)", "BSW"), (("BSW",), "{0}.narrow(1, 0, ({0}.shape[1] + 1) // 2)", "?"), (("BSW",), "{0}.tensor_split(2, 1)[1]", "?"), (("BSW",), "{0}.swapaxes(1, 2).unfold(2, 1, 1)", "?"),
    (("BSW",), "{0}.repeat(1, 2, 1)[:, : {0}.shape[1]]", "BSW"), (("BSW",), "{0}.repeat_interleave(2, 1)", "?"), (("BSW",), "{0}.movedim(1, 0)", "SBW"), (("BSW",), "{0}.unbind(2)[1]", "BS"), (("BSW",), "torch.stack({0}.unbind(2)[::-1], 2)", "BSW"), (("BQW",), "{0}.clone().squeeze_()", "?"),
    # joins, making, indexing
    (("BSW", "BQW"), "torch.cat([{0}, {1}], 1)", "?"), (("BSW", "BSW"), "torch.stack([{0}, {1}]).mean(0)", "BSW"), (("BSW",), "F.pad({0}, (0, 0, 1, 0))[:, : {0}.shape[1]]", "BSW"), (("BSW",), "torch.zeros({0}.shape[0], {k}, W)", "?"), (("BSW",), "{0} + torch.linspace(0, 1, {0}.shape[1])[:, None]", "BSW"),
    (("BSW",), "F.interpolate({0}.transpose(1, 2), scale_factor=2)", "?"), (("BSW",), "F.interpolate({0}.transpose(1, 2), size={k}, mode='linear')", "?"), (("BSW",), "F.avg_pool1d({0}.transpose(1, 2), 2, 1, 1)", "?"), (("BSW",), "F.adaptive_avg_pool1d({0}.transpose(1, 2), 2)", "?"), (("BSW",), "F.max_pool1d({0}.transpose(1, 2), 3, 1, 1).transpose(1, 2)", "BSW"),
    (("BSW",), "{0}.index_select(1, torch.arange({0}.shape[1]).flip(0))", "BSW"), (("BSW",), "{0}[torch.arange({0}.shape[0]), {0}.shape[1] - 1]", "BW"), (("BSW",), "{0}.gather(1, torch.zeros_like({0}, dtype=torch.long))", "BSW"), (("BW",), "torch.zeros(3, W).index_add(0, torch.arange({0}.shape[0]) % 3, {0})", "?"), (("BW",), "torch.zeros({0}.shape[0], W).scatter_add(0, torch.arange({0}.shape[0])[:, None].expand(-1, W) // 2, {0})", "BW"),
    (("SW", "BSW"), "{0} + {1}", "BSW"), (("S", "BSW"), "{1} * {0}[:, None]", "BSW"), (("BW",), "F.one_hot(torch.arange({0}.shape[0]), {0}.shape[0]).float() @ {0}", "BW"), (("BSW",), "torch.meshgrid(torch.arange({0}.shape[0]), torch.arange({0}.shape[1]), indexing='ij')[0] + {0}[..., 0]", "BS"), (("BSW",), "{0}.new_ones({0}.shape[:2])", "BS"),
    # Python on sizes and numbers
    (("BSW",), "{0} * max({0}.shape[0], {k})", "BSW"), (("BSW",), "{0} + ({0}.shape[1] % 3) / 2", "BSW"), (("BSW",), "{0} if {0}.shape[1] > 3 else {0} * 2", "BSW"), (("BSW",), "{0} * len({0}) - {0}.dim()", "BSW"), (("BSW",), "{0} * (1 if {0}.shape[0] == {0}.shape[1] else 2)", "BSW"),
    (("BSW",), "{0} * math.sqrt({0}.shape[1])", "BSW"), (("BSW",), "{0} + sum(range(min({k}, 3)))", "BSW"), (("BSW",), "{0} - len(f'{{{0}.shape}}')", "BSW"), (("BSW",), "{0} * ({n} // 2 + {k} % 3) / ({f} + 3)", "BSW"), (("BSW",), "torch.cat([{0}[:, j : j + 1] for j in range({0}.shape[1])], 1)", "BSW"), (("BSW",), "{0} * NET.calls", "BSW"),
    # sizes that data decide
    (("BS",), "{0}[{0} > 0]", "U"), (("U",), "{0} * {f} + 1", "U"), (("U",), "{0}.sum()", ""), (("BSW",), "{0}[{0}[..., 0] > {f}].sum(0)", "W"), (("BS",), "{0}.nonzero().float().sum(0)", "?"), (("BS",), "({0} * 2).long().unique().float()", "U"), (("U",), "F.pad({0}, (0, 1)).cumsum(0)", "U"), (("BW",), "{0}.repeat_interleave(torch.arange({0}.shape[0]), 0)", "UW"), (("UW",), "NET.linear({0}).mean(1)", "U"), (("UW",), "torch.zeros(2, W).index_add(0, torch.arange({0}.shape[0]) % 2, {0})", "?"), (("UW", "W"), "{0} * {1} - 1", "UW"),
)  # fmt: skip

# Writes: to what was made (never to an argument that needs gradients, see `write`).
WRITES: Sequence[tuple[str, str]] = (
    ("BSW", "{0}.add_({f})"), ("BSW", "{0}[:, 0] = {n}"), ("BSW", "{0}[:, -1].mul_(2)"), ("BSW", "{0}.view(-1).add_(1)"), ("BSW", "{0}.reshape(-1, W)[0] = {f}"), ("BSW", "{0}[:, : {0}.shape[1] // 2].zero_()"), ("BSW", "{0}.transpose(0, 1).reshape(-1).add_(1)"), ("BSW", "{0}.transpose(0, 1)[0].mul_(3)"),
    ("BQW", "{0}.squeeze().sub_(1)"), ("BQW", "{0}.unbind(2)[1].add_(2)"), ("BSW", "{0}.flatten(0, 1)[1:].neg_()"), ("BS", "{0}[{0} > 0] = {f}"), ("BSW", "{0}.chunk(2, 2)[0].copy_({0}.chunk(2, 2)[1])"), ("BSW", "{0}.swapaxes(0, 1).ravel().zero_()"), ("BS", "{0}.fill_diagonal_(1)"), ("SBW", "{0}.reshape(-1).mul_(2)"),
    ("BSW", "{0}.index_fill_(1, torch.tensor([0]), {f})"), ("BSW", "{0}.expand(2, -1, -1, -1)[0].add_(1)"), ("NW", "{0}[::2] += 1"),
)  # fmt: skip

LAYOUTS = ("given({seed}, {a}, {b}, W)", "given({seed}, {b}, {a}, W).transpose(0, 1)", "given({seed}, {a}, W, {b}).transpose(1, 2)", "given({seed}, {a}, {b}, 2 * W)[..., ::2]", "given({seed}, {a}, {b} + 1, W)[:, 1:]", "given({seed}, {a}, 1, W).expand({a}, {b}, W)")  # fmt: skip


class _Program:
    def __init__(self, draw: random.Random) -> None:
        self.draw, self.count = draw, 0
        self.shapes: dict[str, str] = {}
        """Name -> its shape as letters."""
        self.given: set[str] = set()
        self.body: list[str] = []

    def fill(self, text: str, names: Sequence[str]) -> str:
        numbers = {"n": "n", "k": "k", "f": "f", "i": str(self.draw.choice([1, 2, -1]))}
        return text.format(*names, **numbers)

    def statement(self) -> None:
        draw = self.draw
        if draw.random() < 0.12 and (names := [n for n in self.shapes if n not in self.given]):
            name = draw.choice(names)
            rows = [text for shape, text in WRITES if shape == self.shapes[name]]
            if rows:
                self.body.append(self.fill(draw.choice(rows), [name]))
            return
        for _ in range(20):
            shapes, text, made = draw.choice(ROWS)
            pools = [[n for n, s in self.shapes.items() if s == shape] for shape in shapes]
            if all(pools):
                break
        else:
            return
        names = [draw.choice(pool[-3:]) for pool in pools]
        name = f"v{self.count}"
        self.count += 1
        self.body.append(f"{name} = {self.fill(text, names)}")
        self.shapes[name] = made

    def sizes(self) -> list[tuple[object, ...]]:
        """(B, S, whether Q is 1, whether P is 1, n, k, f) of each call."""
        draw = self.draw
        pool = [0, 1, 2, 3, 5] if draw.random() < 0.05 else [1, 2, 3, 4, 5, 8, 17]
        fixed = draw.choice(["", "", "B", "S", "numbers", "BS"])
        rows: list[tuple[object, ...]] = []
        for _ in range(CALLS):
            row = [draw.choice(pool), draw.choice(pool), draw.random() < 0.3, draw.random() < 0.3, draw.randint(1, 6), draw.randint(1, 9), draw.choice([0.5, 1.5, -0.25, 2.0])]  # fmt: skip
            if rows:
                keep = {"B": [0], "S": [1], "numbers": [4, 5, 6], "BS": [0, 1]}.get(fixed, [])
                row = [rows[0][k] if k in keep else v for k, v in enumerate(row)]
            rows.append(tuple(row))
        return rows

    def text(self) -> str:
        draw = self.draw
        backend = draw.choice(["firebrick", "aot_eager"])
        grad = draw.random() < 0.35
        sizes = {"BSW": ("b", "s"), "BQW": ("b", "q"), "PSW": ("p", "s")}
        arguments = []
        for name, shape in [("x", "BSW"), *(("xyz"[k], draw.choice(list(sizes))) for k in range(1, draw.choice([1, 2, 3, 3])))]:  # fmt: skip
            a, b = sizes[shape]
            arguments.append(
                (name, draw.choice(LAYOUTS[:1] * 3 + LAYOUTS).format(seed=f"{ord(name)} + call", a=a, b=b))
            )
            self.shapes[name] = shape
        self.given = set(self.shapes) if grad or draw.random() < 0.5 else set()
        for _ in range(draw.choice([1, 2, 3, 4, 5, 6, 8, 10])):
            self.statement()
        if draw.random() < 0.2:
            self.body.insert(0, "NET.calls += 1")
        made = [n for n in self.shapes if n.startswith("v")]
        results = sorted({*made[-1:], *(n for n in made if draw.random() < 0.3)})
        if draw.random() < 0.2:
            results.append(draw.choice(["x.shape[1] * 2", "n + k", "x.numel()", "f * 2", "(x.shape[0] + 1) // 2", "x.shape"]))  # fmt: skip
        names = [n for n, _ in arguments]
        call = f"out = main({', '.join(names)}, n, k, f)"
        after = []
        if grad:
            after += ["    loss = sum(t.square().sum() for t in out if isinstance(t, torch.Tensor) and t.requires_grad)", "    if isinstance(loss, torch.Tensor):"]  # fmt: skip
            if draw.random() < 0.3:
                after += ["        g, = torch.autograd.grad(loss, [x], create_graph=True, allow_unused=True)", "        loss = loss if g is None else loss + g.square().sum()"]  # fmt: skip
            after += ["        loss.backward()"]
        lines = [
            PRELUDE.format(backend=backend), HEAD, f"SIZES = {self.sizes()!r}", "", "",
            f"def main({', '.join(names)}, n, k, f):", *(f"    {line}" for line in self.body or ["v0 = x + 1"]),
            f"    return ({''.join(r + ', ' for r in results or ['x + 1'])})", "", "",
            "def drive(main, call):", "    b, s, one, single, n, k, f = SIZES[call]", "    q, p = 1 if one else s, 1 if single else b",
            *(f"    {name} = {text}" + (".requires_grad_()" if grad else "") for name, text in arguments),
            *([f"    {call}"] if grad else ["    with torch.no_grad():", f"        {call}"]), *after,
            f"    return out, {''.join(f'{n}, {n}.grad, ' for n in names)}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"


def generate(seed: int) -> str:
    """The program of a seed; the same text each time."""
    return _Program(random.Random(f"{NAME} {seed}")).text()
