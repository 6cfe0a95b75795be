"""Training programs: a model, hooks, losses and steps around it; `main` is its forward or the whole step.

What is compared: results, losses, gradients, parameters, buffers and the optimizer's state after the steps, the calls of
each hook with their values, and errors. Most run on the joint graphs' eager kernels, so that traces, partitions,
nodes and hooks are what is tried; a few on kernels of our own.
"""

# ruff: noqa: E501 - tables of program pieces are easier to read unbroken

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.fuzz.features.frame import PRELUDE

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NAME", "generate"]

NAME = "training"

WIDTH, ROWS = 6, 4

HEAD = """
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.nn.utils import parametrizations

torch.manual_seed(3)
SEEN = collections.defaultdict(list)


def plain():
    return vars(torch)["__version__"]


def note(name, value):
    SEEN[name].append(None if value is None else value.detach().clone())


def halve(gradient):
    gradient.mul_(0.5)


def stepped(parameter):
    parameter.detach().sub_(0.01 * parameter.grad)
    parameter.grad = None


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k=1.0):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * k

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return 2 * x * grad * ctx.k, None


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.5, 0.5)


def keeps_products(ctx, op, *args, **kwargs):
    return op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
"""

# (statements in __init__, statements in forward); {i} is the layer's number, h is [ROWS, WIDTH], tokens [ROWS]
LAYERS: Sequence[tuple[int, str, str]] = (
    (4, "self.l{i} = nn.Linear(W, W)", "h = {act}(self.l{i}(h))"),
    (3, "self.l{i} = nn.Linear(W, 2 * W); self.m{i} = nn.Linear(2 * W, W)", "h = h + self.m{i}({act}(self.l{i}(h)))"),
    (2, "self.l{i} = nn.LayerNorm(W)", "h = self.l{i}(h)"),
    (2, "self.l{i} = nn.BatchNorm1d(W, momentum={r})", "h = self.l{i}(h)"),
    (1, "self.l{i} = nn.RMSNorm(W)", "h = self.l{i}(h)"),
    (1, "self.l{i} = nn.GroupNorm(2, W)", "h = self.l{i}(h)"),
    (2, "", "h = F.dropout(h, {r}, training=self.training)"),
    (1, "self.l{i} = nn.Dropout({r})", "h = self.l{i}(h) + h"),
    (2, "self.l{i} = nn.Embedding(5, W, padding_idx={pad})", "h = h + self.l{i}(tokens)"),
    (1, "self.l{i} = nn.Embedding(5, W)", "h = h + F.linear(self.l{i}(tokens) * h, self.l{i}.weight).matmul(self.l{i}.weight)"),
    (1, "self.l{i} = nn.MultiheadAttention(W, 2, batch_first=True)", "h = h + self.l{i}(h[None], h[None], h[None], need_weights={bool})[0][0]"),
    (1, "self.l{i} = nn.Linear(W, 3 * W)", "q, k, v = self.l{i}(h).view(1, h.shape[0], 3, 2, W // 2).permute(2, 0, 3, 1, 4).unbind(0); h = h + F.scaled_dot_product_attention(q, k, v, is_causal={bool}).transpose(1, 2).reshape(h.shape[0], W)"),
    (1, "self.l{i} = nn.Conv1d(1, 2, 3, padding=1)", "h = self.l{i}(h.unsqueeze(1)).sum(1).tanh()"),
    (1, "self.l{i} = nn.GRU(W, W, batch_first=True)", "h = self.l{i}(h[None])[0][0]"),
    (1, "self.l{i} = nn.LSTM(W, W)", "h = self.l{i}(h[:, None])[0][:, 0]"),
    (1, "self.l{i} = parametrizations.weight_norm(nn.Linear(W, W))", "h = self.l{i}(h).sin()"),
    (1, "self.l{i} = nn.Parameter(torch.randn(W, dtype=D))", "h = h * self.l{i} + self.l{i}.detach()"),
    (1, "self.l{i} = nn.Parameter(torch.randn(W, W, dtype=D))", "h = torch.einsum('bi,ij->bj', h, self.l{i} @ self.l{i}.t() / W).tanh()"),
    (1, "self.l{i} = nn.Linear(W, W, bias=False)", "h = F.linear(h, self.l{i}.weight.t()) + self.l{i}(h)"),
    (1, "self.register_buffer('b{i}', torch.zeros(W, dtype=D))", "self.b{i}.add_(h.detach().mean(0)); h = h - self.b{i} * {r}"),
    (1, "self.register_buffer('b{i}', torch.ones(W, dtype=D))", "self.b{i} = self.b{i} * 0.9 + h.detach().square().mean(0) * 0.1; h = h / (self.b{i} + 1)"),
    (1, "self.l{i} = nn.Sequential(nn.Linear(W, W), nn.Tanh(), nn.Linear(W, W))", "h = checkpoint(self.l{i}, h, use_reentrant=False)"),
    (1, "self.l{i} = nn.Linear(W, W)", "h = checkpoint(lambda t: F.dropout(self.l{i}(t).sin(), {r}, training=self.training) * t, h, use_reentrant=False)"),
    (1, "self.l{i} = nn.Linear(W, W)", "h = checkpoint(lambda t: self.l{i}(t).sin() * t, h, use_reentrant={bool}, preserve_rng_state={bool})"),
    (1, "self.l{i} = nn.Linear(W, W)", "h = checkpoint(lambda t: F.gelu(self.l{i}(t)) @ self.l{i}.weight, h, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, keeps_products))"),
    (1, "", "h = Squared.apply(h.tanh(), {r})"),
    (1, "", "h = Clipped.apply(h)"),
    (2, "", "len(str(plain()))"),
    (2, "", "h = h * 2; h[{row}] = h[{row2}] * {r}"),
    (1, "", "h = h.clone(); h[:, 1:3].mul_(h[:, :1])"),
    (1, "", "h = h + 1; h.mul_({r}).add_(1)"),
    (1, "", "h = h.clone(); v = h.view(-1); v.sin_()"),
    (1, "", "h = h.clone(); h.t()[2:4].copy_(h.t()[:2] * {r})"),
    (1, "", "h = F.relu(h * 1, inplace=True) + h.detach()"),
    (1, "", "h = h.masked_fill(h > 1, {r}); h = h.clone(); h[h < -1] = {r}"),
    (1, "", "a, b = h.chunk(2, 1); h = torch.cat([a * b, b.sigmoid()], 1)"),
    (1, "", "h = torch.stack([c * (k + 1) for k, c in enumerate(h.unbind(1))], 1)"),
    (1, "", "h = h.cumsum(0).tanh() + h.flip(0)"),
    (1, "", "h = h.sort(1).values + h.amax(1, keepdim=True)"),
    (1, "", "h = h[torch.tensor([1, 0, 3, 2])] * torch.where(h > 0, h, h * {r})"),
    (1, "", "h = h.t().contiguous().t() * h.expand(2, -1, -1).sum(0)"),
    (1, "", "h = (h - h.mean(1, keepdim=True)) / (h.var(1, keepdim=True) + 1).sqrt()"),
    (1, "", "h = h.log_softmax(-1) * h.detach()"),
    (1, "", "h = h.scatter_add(1, tokens[:, None].clamp(max=W - 1), h[:, :1] * {r})"),
    (1, "", "h = F.pad(h, (1, 1))[:, 2:] * 2; h = torch.cat([h, h[:, :1]], 1); h = h[:, :W] if h.shape[1] >= W else F.pad(h, (0, W - h.shape[1]))"),
    (1, "", "with torch.no_grad():\n    s = h.norm()\nh = h / (s + 1)"),
    (1, "", "if h.abs().sum() > 7.7:\n    h = h * {r}\nelse:\n    h = h.sin()"),
    (1, "", "h.register_hook(lambda g: g * {r})"),
    (1, "", "if h.requires_grad:\n    h.register_hook(lambda g: note('h{i}', g))"),
    (1, "self.l{i} = nn.ModuleList([nn.Linear(W, W) for _ in range(2)])", "for layer in self.l{i}:\n    h = {act}(layer(h)) + h"),
)  # fmt: skip
ACTIVATIONS = ("torch.tanh", "F.gelu", "F.silu", "torch.sin", "F.softplus", "torch.sigmoid", "F.elu")

LOSSES = (
    "{y}.square().mean()", "F.mse_loss({y}, target)", "F.cross_entropy({y}, tokens % W)", "F.smooth_l1_loss({y}, target)", "{y}.sin().sum()",
    "({y} * target).sum().tanh()", "F.kl_div({y}.log_softmax(-1), target.softmax(-1), reduction='batchmean')", "{y}.logsumexp(1).mean()",
    "F.cosine_embedding_loss({y}, target, torch.ones(len({y})))", "torch.cdist({y}, target).mean()", "{y}.norm(dim=1).sum()", "F.binary_cross_entropy_with_logits({y}, target.sigmoid())",
)  # fmt: skip
OPTIMIZERS = (
    "torch.optim.SGD({p}, 0.05, momentum={m}, weight_decay=0.01)", "torch.optim.SGD({p}, 0.05, momentum=0.9, nesterov=True)", "torch.optim.Adam({p}, 0.01, eps=1e-2)",
    "torch.optim.AdamW({p}, 0.01, eps=1e-2, amsgrad={bool})", "torch.optim.RMSprop({p}, 0.01, eps=1e-2, momentum={m})", "torch.optim.Adagrad({p}, 0.02, eps=1e-2)",
    "torch.optim.AdamW({p}, 0.01, eps=1e-2, foreach=True)", "torch.optim.SGD({p}, 0.05, foreach=False, maximize={bool})", "torch.optim.Adamax({p}, 0.01, eps=1e-2)", "torch.optim.NAdam({p}, 0.01, eps=1e-2)",
)  # fmt: skip
PARAM_HOOKS = (
    "{p}.register_hook(lambda g: g * 0.5)", "{p}.register_hook(lambda g: note('{n}', g))", "{p}.register_hook(lambda g: g.clamp(-0.1, 0.1))",
    "{p}.register_post_accumulate_grad_hook(lambda p: note('{n} after', p.grad))", "{p}.register_post_accumulate_grad_hook(lambda p: halve(p.grad))",
    "{p}.register_post_accumulate_grad_hook(lambda p: stepped(p))",
)  # fmt: skip
MODULE_HOOKS = (
    "NET.register_full_backward_hook(lambda m, gi, go: note('net', go[0]))", "NET.register_full_backward_pre_hook(lambda m, go: tuple(g * 0.5 for g in go))",
    "NET.register_forward_hook(lambda m, args, out: out * 1.5)", "NET.register_forward_pre_hook(lambda m, args: (args[0] * 0.5, *args[1:]))",
    "next(NET.children(), NET).register_full_backward_hook(lambda m, gi, go: note('child', go[0]))", "next(NET.children(), NET).register_forward_hook(lambda m, args, out: SEEN['forward'].append(1))",
)  # fmt: skip


class _Program:
    """One program as it is written."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.lines: list[str] = []

    def put(self, indent: int, *texts: str) -> None:
        """Add lines; a text may hold several."""
        for text in texts:
            for part in text.split("\n"):
                self.lines.append("    " * indent + part)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def fill(self, text: str, **named: object) -> str:
        """Fill in a table's text with draws."""
        while "{bool}" in text:
            text = text.replace("{bool}", str(self.chance(0.5)), 1)
        words = {
            "r": self.draw.choice([0.1, 0.25, 0.5, 0.7]), "m": self.draw.choice([0, 0.5, 0.9]), "act": self.draw.choice(ACTIVATIONS), "pad": self.draw.choice([None, 0]),
            "row": self.draw.randrange(ROWS), "row2": self.draw.randrange(ROWS), **named,
        }  # fmt: skip
        return text.format(**words)

    # -- the model ----------------------------------------------------------------------

    def model(self) -> None:
        """A class of layers drawn from the table, frozen and tied in places; layers may be used twice."""
        rows = self.draw.choices(LAYERS, [row[0] for row in LAYERS], k=self.draw.randint(2, 6))
        if not any("Linear" in row[1] for row in rows):
            rows[0] = LAYERS[0]
        self.once = any("context_fn" in row[2] for row in rows)  # eager has one backward under a policy
        self.again = any("checkpoint(" in row[2] for row in rows)
        self.put(0, "class Net(nn.Module):", "    def __init__(self):", "        super().__init__()")
        for i, (_, inits, _) in enumerate(rows):
            self.put(2, *[self.fill(text, i=i) for text in inits.split("; ") if text])
        if self.chance(0.25):
            linears = [i for i, row in enumerate(rows) if row[1].startswith("self.l{i} = nn.Linear(W, W)")]
            if len(linears) > 1:
                self.put(2, f"self.l{linears[0]}.weight = self.l{linears[-1]}.weight")
        self.put(0, "", "    def forward(self, x, tokens):", "        h = x")
        for i, (_, _, body) in enumerate(rows):
            text = self.fill(body, i=i)
            self.put(2, *([text] if "\n" in text else text.split("; ")))
        if self.chance(0.2):
            i = self.draw.randrange(len(rows))
            text = self.fill(rows[i][2], i=i)
            self.put(2, *([text] if "\n" in text else text.split("; ")))
        self.put(2, "return h")
        self.put(0, "", "", "torch.set_default_dtype(D)", "NET = Net()", "torch.set_default_dtype(torch.float32)")
        if self.chance(0.3):
            self.put(0, f"for p in list(NET.parameters())[{self.draw.choice(['::2', '1::2', ':1', '-1:'])}]:", "    p.requires_grad_(False)")  # fmt: skip

    # -- the steps ----------------------------------------------------------------------

    def hooks(self) -> None:
        for _ in range(self.draw.choice([0, 0, 1, 1, 2])):
            k = self.draw.randrange(6)
            target, name = f"TRAINED[{k} % len(TRAINED)]", f"p{k}"
            self.put(0, "if TRAINED:")
            self.put(1, self.draw.choice(PARAM_HOOKS).format(p=target, n=name))
        if self.chance(0.2):  # a checkpoint calls forward hooks again in eager mode, and once where it is compiled
            self.put(0, self.draw.choice(MODULE_HOOKS[:-1] if self.again else MODULE_HOOKS))

    def losses(self, y: str = "y") -> str:
        count = self.draw.choice([1, 1, 1, 2])
        return " + ".join(self.draw.choice(LOSSES).format(y=y) for _ in range(count))

    def backward(self, indent: int, second: bool) -> None:
        """What computes gradients of `y`, the result of the forward."""
        draw = self.draw
        kinds = ["plain"] * 5 + [
            "two",
            "sum",
            "twice",
            "some",
            "grad",
            "given",
            "inputs",
            "again",
            "written",
            "retained",
            "accumulated",
            "saved",
            "input",
        ]
        if self.once:
            kinds, second = ["plain", "sum", "some", "given", "inputs"], False
        if self.again:  # a checkpoint computes with the weights that it finds, a graph raises where they were written
            kinds = [k for k in kinds if k != "written"]
        if any("use_reentrant=True" in line for line in self.lines):  # a part of a backward passes these by
            kinds, second = [k for k in kinds if k not in ("some", "grad", "inputs")], False
        kind = draw.choice(kinds + ["penalty"] * 3 if second else kinds)
        put = self.put
        if self.chance(0.15):
            put(
                indent,
                self.draw.choice(["y.register_hook(lambda g: note('y', g))", "y.register_hook(lambda g: g * 2)"]),
            )
        if kind == "plain":
            put(indent, f"loss = {self.losses()}", "loss.backward()")
        elif kind == "two":
            put(
                indent,
                f"loss, other = {self.losses()}, {self.losses()}",
                "loss.backward(retain_graph=True)",
                "other.backward()",
            )
        elif kind == "sum":
            put(
                indent,
                f"loss = {self.losses()}",
                f"aux = {self.losses('y.detach()')}",
                f"(loss + 0.1 * aux * {self.losses()}).backward()",
            )
        elif kind == "twice":
            put(indent, f"loss = {self.losses()}", "loss.backward(retain_graph=True)", "loss.backward()")
        elif kind == "some":
            put(indent, f"loss = {self.losses()}", "for p, g in zip(TRAINED[:2], torch.autograd.grad(loss, TRAINED[:2], allow_unused=True)):",
                "    p.grad = g")  # fmt: skip
        elif kind == "grad":
            put(indent, f"loss = {self.losses()}", "grads = torch.autograd.grad(loss, TRAINED + [x] * x.requires_grad, allow_unused=True, retain_graph=True)",
                "for p, g in zip(TRAINED, grads):", "    p.grad = g", "note('last', grads[-1])")  # fmt: skip
        elif kind == "given":
            put(indent, "loss = y.mean()", "y.backward(gradient=target)")
        elif kind == "inputs":
            put(indent, f"loss = {self.losses()}", "loss.backward(inputs=TRAINED[:2])")
        elif kind == "again":
            put(indent, f"loss = {self.losses()}", "loss.backward()", "try:", "    loss.backward()", "except RuntimeError as error:", "    SEEN['again'].append('second time' in str(error))", "    OPT.zero_grad()")  # fmt: skip
        elif kind == "written":
            put(indent, f"loss = {self.losses('(y * y).exp()' if self.chance(0.3) else 'y')}", "with torch.no_grad():", f"    {draw.choice(['y.mul_(2)', 'TRAINED[0].add_(0.01)', 'TRAINED[-1].mul_(0.9)'])}",
                "try:", "    loss.backward()", "except RuntimeError as error:", "    SEEN['written'].append('inplace' in str(error))", "    OPT.zero_grad()")  # fmt: skip
        elif kind == "retained":
            put(
                indent,
                "if y.requires_grad:",
                "    y.retain_grad()",
                f"loss = {self.losses()}",
                "loss.backward()",
                "note('retained', y.grad)",
            )
        elif kind == "accumulated":
            put(
                indent,
                f"loss = {self.losses()} / 2",
                "loss.backward()",
                "y = forward(x.detach() * 0.5, tokens)",
                f"({self.losses()} / 2).backward()",
            )
        elif kind == "saved":
            put(
                indent,
                "with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):",
                "    y = forward(x, tokens)",
                f"    loss = {self.losses()}",
                "loss.backward()",
            )
        elif kind == "input":
            put(
                indent,
                "x.grad = None",
                f"loss = {self.losses()}",
                "loss.backward(retain_graph=True)",
                "note('x', x.grad)",
            )
        else:
            self.penalty(indent)

    def penalty(self, indent: int) -> None:
        """Gradients of gradients."""
        of = self.draw.choice(["x", "TRAINED[0]", "y"])
        self.put(indent, f"of = {of} if {of}.requires_grad else y")
        self.put(indent, f"loss = {self.losses()}",
                 f"g, = torch.autograd.grad({'y.square().sum()' if of != 'y' else 'loss'}, [of], create_graph=True, allow_unused=True)",
                 f"loss = loss + (0.1 * {self.draw.choice(['(g.norm() - 1).square()', 'g.square().mean()', 'g.sin().sum()'])} if g is not None else 0)")  # fmt: skip
        if self.chance(0.2):
            self.put(indent, "if g is not None and g.requires_grad:",
                     "    g2, = torch.autograd.grad(g.sin().sum(), [of], create_graph=True, allow_unused=True)",
                     "    loss = loss + (0 if g2 is None else 0.1 * g2.square().mean())")  # fmt: skip
        self.put(indent, "loss.backward()")

    def step(self, indent: int, second: bool, inside: str) -> None:
        """Zero, forward, backward, clip, step. inside: what the backward runs in."""
        self.put(
            indent,
            self.draw.choice(
                [
                    "OPT.zero_grad()",
                    "OPT.zero_grad()",
                    "OPT.zero_grad(set_to_none=False)",
                    "if call % 2 == 0:\n" + "    " * indent + "    OPT.zero_grad()",
                ]
            ),
        )
        self.put(indent, "y = forward(x, tokens)")
        if inside:
            self.put(indent, inside)
        self.backward(indent + bool(inside), second)
        if self.chance(0.3):
            self.put(
                indent,
                self.draw.choice(
                    [
                        "torch.nn.utils.clip_grad_norm_(TRAINED, 0.5)",
                        "torch.nn.utils.clip_grad_value_(TRAINED, 0.05)",
                        "torch.nn.utils.clip_grad_norm_(TRAINED, 0.5, foreach=False)",
                    ]
                ),
            )
        self.put(indent, "OPT.step()")
        if self.schedule:
            self.put(indent, "SCHEDULE.step()")

    def text(self) -> str:
        """The program."""
        draw = self.draw
        backend = "firebrick" if self.chance(0.04) else "aot_eager"
        double = self.chance(0.8)
        self.lines += [PRELUDE.format(backend=backend).replace("import contextlib, copy", "import collections, contextlib, copy"), HEAD,
                       f"W, R, D = {WIDTH}, {ROWS}, torch.float{64 if double else 32}"]  # fmt: skip
        self.put(0, "", "")
        self.model()
        optimizer = self.fill(draw.choice(OPTIMIZERS), p="TRAINED")
        self.schedule = self.chance(0.2)
        self.put(
            0,
            "TRAINED = [p for p in NET.parameters() if p.requires_grad] or [nn.Parameter(torch.ones(W, dtype=D))]",
            f"OPT = {optimizer}",
        )
        if self.schedule:
            self.put(
                0,
                draw.choice(
                    [
                        "SCHEDULE = torch.optim.lr_scheduler.StepLR(OPT, 2, 0.5)",
                        "SCHEDULE = torch.optim.lr_scheduler.CosineAnnealingLR(OPT, 5)",
                        "SCHEDULE = torch.optim.lr_scheduler.LambdaLR(OPT, lambda e: 0.9 ** e)",
                    ]
                ),
            )
        self.hooks()
        whole, block = self.chance(0.3), "with BLOCK():" if self.chance(0.3) else ""
        state = "note('y', y), note('loss', loss)"
        self.put(0, "", "")
        rows = "R" if self.chance(0.85) else "(R if call != 1 else R - 1)"
        data = [f"x = given(call, {rows}, W, dtype=D)" + ".requires_grad_()" * self.chance(0.4), f"tokens = given(50 + call, {rows}, dtype=torch.int64) % 5", f"target = given(90 + call, {rows}, W, dtype=D)"]  # fmt: skip
        if whole:
            self.put(0, "def main(x, tokens, target, call):", "    forward = NET")
            self.step(1, double, "")
            self.put(1, "return y.detach(), loss.detach()")
            self.put(0, "", "", "def drive(main, call):")
            self.put(1, *data)
            if block:
                self.put(1, block, "    out = main(x, tokens, target, call % 2)")
            else:
                self.put(1, "out = main(x, tokens, target, call % 2)")
        else:
            self.put(
                0,
                "def main(x, tokens):",
                "    return NET(x, tokens)",
                "",
                "",
                "def drive(main, call):",
                "    forward = main",
            )
            self.put(1, *data)
            for _ in range(draw.choice([1, 1, 2])):
                self.step(1, double, block)
            self.put(1, f"out = y.detach(), loss.detach(), {state}")
        if self.chance(0.2):
            call = "main" if not whole else "COMPILE(NET)"
            self.put(
                1, "NET.eval()", "with torch.no_grad():", f"    out = out, {call}(x.detach(), tokens)", "NET.train()"
            )
        self.put(1, "hooked = sorted(SEEN.items())", "SEEN.clear()", "SEEN.update(hooked)")
        self.put(1, "return out, [p.grad for p in NET.parameters()], x.grad, OPT.state_dict()['state'], torch.rand(1)")
        return "\n".join(self.lines) + "\n"


def generate(seed: int) -> str:
    """The program of a seed; the same text each time."""
    return _Program(random.Random(f"{NAME} {seed}")).text()
