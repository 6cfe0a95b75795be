"""Random programs of tensor operations, as lines of Python: shapes, strides, dtypes, views, reductions, mutations.

A program is a function body over arguments a0, a1, ... Each line is run as it is made, and one that eager refuses is
dropped. Results that decide something (comparisons, positions, whole numbers) are only taken from values that are
exact in every precision, so that a difference is a mistake and not a rounding.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tests.ops.cases import copies, short

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = [0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17, 33]
FLOATS = ["float32"] * 5 + ["float64", "bfloat16", "float16"]
OTHERS = ["int64", "int64", "int32", "uint8", "bool"]
MOST = 4096
"""Elements of the largest tensor."""


@dataclass
class Program:
    """Lines over arguments. arguments: the tensors to call it with. results: names that it returns."""

    seed: int
    arguments: list[torch.Tensor]
    lines: list[str]
    results: list[str]

    def text(self, lines: list[str] | None = None) -> str:
        """The function as Python."""
        names = ", ".join(f"a{k}" for k in range(len(self.arguments)))
        body = "".join(f"    {line}\n" for line in (self.lines if lines is None else lines))
        return f"def f({names}):\n{body}    return ({', '.join(self.results)},)\n"

    def describe(self) -> str:
        """The function and what it is called with."""
        rows = [f"# a{k}: {short(a)}" for k, a in enumerate(self.arguments)]
        return "\n".join([*rows, self.text()])

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """The function itself."""
        return compiled(self.text())


def _weights(size: int) -> torch.Tensor:
    return torch.linspace(-1, 1, size * size + 1)[1:].reshape(size, size).sin()


WEIGHTS = {size: _weights(size) for size in SIZES if size}
"""The matrix of a linear layer for each size: a constant of the graphs."""


def dense(x: torch.Tensor) -> torch.Tensor:
    """A linear layer on the last dimension."""
    weight = WEIGHTS[x.shape[-1]].to(x.dtype)
    return torch.nn.functional.linear(x, weight, weight[0])


def norm(x: torch.Tensor) -> torch.Tensor:
    """A layer norm of the last dimension."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


NAMES: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "dense": dense, "norm": norm}


def compiled(text: str) -> Callable[..., tuple[Any, ...]]:
    """The function that a text defines."""
    scope: dict[str, Any] = {**NAMES, "__name__": __name__}
    exec(compile(text, "<program>", "exec"), scope)
    return scope["f"]


class _Maker:
    """Makes one program."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.torch_rng = torch.Generator("cpu").manual_seed(seed)
        self.values: dict[str, Any] = {**NAMES}
        self.exact: dict[str, bool] = {}
        self.lines: list[str] = []
        self.count = 0

    # ------------------------------------------------------------ arguments

    def argument(self, shape: list[int], dtype: str) -> torch.Tensor:
        """A tensor with odd strides every other time."""
        rng = self.rng
        base = list(shape)
        kind = rng.choice(["plain"] * 4 + ["step", "turned", "turned", "offset", "expanded", "negated"])
        if kind == "step" and base:
            base[-1] = 2 * base[-1] + 1
        order = list(range(len(base)))
        if kind == "turned":
            rng.shuffle(order)
            base = [base[d] for d in order]
        if kind == "offset" and base:
            base[0] += 2
        if kind == "expanded" and base:
            base[rng.randrange(len(base))] = 1
        made = self.data(base, dtype)
        if kind == "step" and base:
            made = made[..., 1::2]
        if kind == "turned":
            made = made.permute([order.index(d) for d in range(len(order))])
        if kind == "offset" and base:
            made = made[2:]
        if kind == "negated" and made.dtype.is_floating_point:
            return torch._neg_view(made)
        return made.expand(shape) if kind == "expanded" else made

    def data(self, shape: list[int], dtype: str) -> torch.Tensor:
        """Numbers of which every second tensor is exact, the same on all devices."""
        kind, where = getattr(torch, dtype), torch.get_default_device()
        drawn = {"generator": self.torch_rng, "device": "cpu"}
        if kind is torch.bool:
            return torch.rand(shape, **drawn).to(where) < 0.5
        low = 0 if kind is torch.uint8 else -4
        whole = torch.randint(low, 5, shape, **drawn)
        if not kind.is_floating_point or self.rng.random() < 0.5:
            return whole.to(where, kind)
        return torch.randn(shape, **drawn).to(where, kind)

    def make(self) -> Program:
        """The whole program."""
        rng = self.rng
        shape = [rng.choice(SIZES) for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4]))]
        while _product(shape) > MOST // 4:
            shape.pop()
        arguments = []
        for k in range(rng.randint(1, 4)):
            own = list(shape)
            if k and rng.random() < 0.4:
                own = [rng.choice([n, 1]) for n in own][rng.randrange(len(own) + 1) :]
            dtype = rng.choice(FLOATS if rng.random() < 0.7 else OTHERS)
            arguments.append(self.argument(own, dtype if k == 0 or rng.random() < 0.4 else str(arguments[0].dtype)[6:]))
            name = f"a{k}"
            self.values[name] = copies([arguments[-1]])[0]
            self.exact[name] = whole(arguments[-1])
        for _ in range(rng.randint(1, 14)):
            for _ in range(6):
                if self.step():
                    break
        names = [n for n in self.exact if n.startswith("v")] or ["a0"]
        results = rng.sample(names, min(len(names), rng.randint(1, 4)))
        results += [names[-1]] * (names[-1] not in results)
        if rng.random() < 0.1:
            results.append("a0")
        return Program(0, arguments, self.lines, results)

    # ------------------------------------------------------------ lines

    def step(self) -> bool:
        """Try one line."""
        rng = self.rng
        template = rng.choice(TABLES[rng.choice(MIX)])
        text, used = self.fill(template)
        if text is None:
            return False
        needs_exact = template in DISCRETE
        if needs_exact and not all(self.exact[n] for n in used):
            return False
        if not _is_defined(template, [self.values[n] for n in used], used):
            return False
        mutates = template in MUTATIONS
        target = f"v{self.count}"
        line = text if mutates else f"{target} = {text}"
        before = {n: v.clone() for n, v in self.values.items() if isinstance(v, torch.Tensor)} if mutates else {}
        try:
            exec(line, self.values)
        except Exception:
            for n, v in before.items():
                with torch.no_grad():
                    if self.values[n].shape == v.shape and not _overlaps(self.values[n]):
                        self.values[n].copy_(v)
            self.values.pop(target, None)
            return False
        if mutates:
            self.lines.append(line)
            exact = all(self.exact[n] for n in used)
            for n in self.exact:
                self.exact[n] = self.exact[n] and (exact or not self._share(n, used)) and whole(self.values[n])
            return True
        made = self.values[target]
        if not isinstance(made, torch.Tensor) or made.numel() > MOST or made.is_complex():
            del self.values[target]
            return False
        rounded = any(self.values[n].dtype.is_floating_point and not self.exact[n] for n in used)
        if rounded and not made.dtype.is_floating_point and template in ROUNDING:
            # Which whole number it is would depend on rounding, and for infinities and NaN on the machine.
            del self.values[target]
            return False
        self.lines.append(line)
        self.count += 1
        self.exact[target] = all(self.exact[n] for n in used) and whole(made) if made.dtype.is_floating_point else True
        return True

    def _share(self, name: str, used: list[str]) -> bool:
        mine = self.values[name].untyped_storage().data_ptr()
        return any(self.values[n].untyped_storage().data_ptr() == mine for n in used)

    def fill(self, template: str) -> tuple[str | None, list[str]]:
        """A template with names and numbers in its places."""
        rng = self.rng
        names = list(self.exact)
        used: list[str] = []
        text = template
        while "{" in text:
            start = text.index("{")
            end = text.index("}", start)
            word = text[start + 1 : end]
            if word in "xyz":
                recent = names[-3:] if rng.random() < 0.6 else names
                pool = [n for n in recent if _fits(self.values[n], template)] or names
                name = rng.choice(pool)
                used.append(name)
                text = text.replace("{" + word + "}", name)
                continue
            first = self.values[used[0]] if used else None
            made = self.number(word, first)
            if made is None:
                return None, used
            text = text[:start] + made + text[end + 1 :]
        return text, used

    def number(self, word: str, x: Any) -> str | None:
        """A parameter that suits the tensor `x`."""
        rng = self.rng
        rank = x.dim() if x is not None else 0
        if word == "n":
            return rng.choice(["2", "-1", "0.5", "3", "0", "1.5", "-2"])
        if word == "i":
            return rng.choice(["2", "-1", "3", "1"])
        if word == "s":
            return str([rng.choice(SIZES[1:8]) for _ in range(rng.randint(0, 3))])
        if word == "dtype":
            return f"torch.{rng.choice(FLOATS + OTHERS)}"
        if word == "float":
            return f"torch.{rng.choice(FLOATS)}"
        if word == "shape":
            return str(self._reshaped(x))
        if word == "bool":
            return rng.choice(["True", "False"])
        if not rank:
            return None
        d = rng.randrange(rank)
        size = x.shape[d]
        if word == "d":
            return str(rng.choice([d, d - rank]))
        if word == "dims":
            return str(rng.sample(range(rank), rng.randint(1, rank)))
        if word == "order":
            return str(rng.sample(range(rank), rank))
        if word == "at":
            return f"{d}, {rng.randrange(-size, size)}" if size else None
        if word == "cut":
            low = rng.randint(0, size)
            return f"{d}, {low}, {rng.randint(0, size - low)}"
        if word == "items":
            return self._items(x)
        if word == "index":
            if not size:
                return None
            many = [rng.randrange(size) for _ in range(rng.choice([0, 1, 3, 6]))]
            return f"{d}, torch.tensor({many}, dtype=torch.int64)"
        if word == "places":
            size = x.shape[0]
            if not size:
                return None
            return f"torch.tensor({[rng.randrange(-size, size) for _ in range(rng.choice([1, 3, 5]))]})"
        if word == "pad":
            return str([rng.choice([0, 1, 2]) for _ in range(2 * rng.randint(1, min(rank, 3)))])
        raise AssertionError(word)

    def _reshaped(self, x: torch.Tensor) -> list[int]:
        rest, shape = x.numel(), []
        if rest == 0:
            return list(x.shape)[::-1]
        while rest > 1 and len(shape) < 3:
            n = self.rng.choice([n for n in range(1, rest + 1) if rest % n == 0][:12])
            shape.append(n)
            rest //= n
        shape.append(rest)
        self.rng.shuffle(shape)
        return shape

    def _items(self, x: torch.Tensor) -> str:
        rng = self.rng
        parts = []
        for n in x.shape[: rng.randint(1, x.dim())]:
            kind = rng.randrange(5)
            if kind == 0 and n:
                parts.append(str(rng.randrange(-n, n)))
            elif kind == 1:
                parts.append(":")
            elif kind == 2:
                parts.append(f"{rng.randint(0, n)}:")
            elif kind == 3:
                parts.append(f"{rng.randint(0, 2)}::{rng.choice([1, 2, 3])}")
            else:
                parts.append(f":{rng.randint(-n, n)}")
        if rng.random() < 0.15:
            parts.insert(rng.randrange(len(parts) + 1), "None")
        return ", ".join(parts)


def _product(shape: list[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _overlaps(t: torch.Tensor) -> bool:
    reach = 0
    for step, n in sorted((s, n) for n, s in zip(t.shape, t.stride()) if n > 1):
        if step <= reach:
            return True
        reach += step * (n - 1)
    return False


def whole(t: torch.Tensor) -> bool:
    """Whether all numbers are small and whole, which every dtype holds."""
    if t.numel() == 0:
        return True
    wide = t.double()
    return bool((wide.isfinite() & (wide == wide.round()) & (wide.abs() <= 64)).all())


def _is_defined(template: str, given: list[torch.Tensor], names: list[str]) -> bool:
    """Whether PyTorch says what the line does: what is resized and what lies in a result's gaps is left open."""
    if template.endswith("out={z})"):
        x, y, z = given
        apart = z.untyped_storage().data_ptr() not in (t.untyped_storage().data_ptr() for t in (x, y) if t is not z)
        try:
            return apart and torch.broadcast_shapes(x.shape, y.shape) == z.shape
        except RuntimeError:
            return False
    if template.startswith("torch.as_strided"):
        return given[0].numel() > 1 and (
            names[0].startswith("a") or given[0].untyped_storage().nbytes() == given[0].nbytes
        )
    if template.startswith("F.embedding"):  # on a GPU an index out of range ends the process' use of it
        return given[1].shape[:1].numel() > 0
    if "_scatter(" in template and any(_overlaps(t) for t in given):
        return False  # eager keeps the layout, in which elements of the result share memory
    if template == "{x}.copy_({y})" and given[1].dtype.is_floating_point and not given[0].dtype.is_floating_point:
        # Numbers beyond the whole numbers of a type become what the machine makes of them.
        limits = torch.iinfo(given[0].dtype) if given[0].dtype != torch.bool else torch.finfo(given[1].dtype)
        if not bool(((given[1] >= limits.min) & (given[1] <= limits.max)).all()):
            return False
    if template in MUTATIONS and len(given) > 1:
        # A write to memory that is read in another order: which of the two comes first is not said.
        memory = [t.untyped_storage().data_ptr() for t in given]
        return memory.count(memory[0]) == 1 or all(t is given[0] for t in given)
    return True


def _fits(t: torch.Tensor, template: str) -> bool:
    return t.dtype.is_floating_point or template not in FLOAT_ONLY


FLOAT_ONLY = frozenset(
    f"torch.{name}({{x}})"
    for name in "exp log1p sqrt sigmoid tanh erf sin cos expm1 log atan asinh exp2 erfc lgamma log2".split()
) | frozenset(
    f"F.{name}({{x}})" for name in "gelu silu softplus mish elu hardswish logsigmoid hardsigmoid softsign selu".split()
)
UNARY = [
    *sorted(FLOAT_ONLY),
    "torch.rsqrt({x}.abs())",  # maxima of zeros have either sign
    *(f"torch.{name}({{x}})" for name in "neg abs relu square sign sgn positive".split()),
    "torch.clamp({x}, -1, 2)",
    "F.leaky_relu({x}, 0.25)",
    "{x} * {n}",
    "{x} + {n}",
    "{n} - {x}",
    "{x} / 2",
    "{x}.to({dtype})",
    "{x}.to({float})",
    "{x}.clone()",
    "{x}.contiguous()",
    "torch.zeros_like({x})",
    # The largest number, which is the default, overflows in what follows, and where depends on the order of a sum:
    # eager's layer_norm gives NaN for rows of up to 16 of them, and zeros for longer ones.
    "torch.nan_to_num({x}, posinf=50, neginf=-50)",
    "torch.tril({x})",
    "torch.triu({x}, 1)",
]
BINARY = [
    "{x} + {y}",
    "{x} - {y}",
    "{x} * {y}",
    "torch.maximum({x}, {y})",
    "torch.minimum({x}, {y})",
    "{x} / ({y}.abs() + 1)",
    "torch.atan2({x}, {y})",
    "torch.add({x}, {y}, alpha={i})",
    "torch.where({x} == {x}, {x}, {y})",
    "torch.addcmul({x}, {y}, {z}, value=0.5)",
    "torch.lerp({x}, {y}, 0.25)",
    "torch.hypot({x}, {y})",
    "torch.logaddexp({x}, {y})",
]
DISCRETE_LIST = [
    "torch.copysign({x}, {y})",
    "{x} < {y}",
    "{x} >= {y}",
    "{x} == {y}",
    "{x} != {n}",
    "torch.logical_and({x}, {y})",
    "torch.logical_not({x})",
    "torch.floor({x})",
    "torch.ceil({x} * 0.5)",
    "torch.round({x} * 0.5)",
    "torch.trunc({x} * 0.25)",
    "torch.remainder({x}, {i})",
    "torch.fmod({x}, {i})",
    "torch.div({x}, {i}, rounding_mode='floor')",
    "torch.div({x}, {i}, rounding_mode='trunc')",
    "{x} // {i}",
    "{x} & {y}",
    "{x} | {y}",
    "{x} ^ {y}",
    "~{x}",
    "{x} << 1",
    "{x} >> 1",
    "{x}.argmax({d})",
    "{x}.argmin({d}, keepdim={bool})",
    "{x}.argmax()",
    "{x}.max({d})[1]",
    "{x}.any({d})",
    "{x}.all()",
    "{x}.any({d}, keepdim=True)",
    "({x} > 0).sum({d})",
    "torch.where({x} > {y}, {x}, {y})",
    "{x}.masked_fill({x} > 1, {i})",
    "{x}.sort({d}, stable=True)[1]",
    "{x}.to(torch.int64) % 7",
    "torch.sign({x})",
    "F.threshold({x}, 1, 2)",
    "torch.heaviside({x}, {y})",
    "torch.isnan({x})",
    "torch.bucketize({x}.float(), torch.tensor([-2.0, 0.0, 3.0]))",
]
REDUCTIONS = [
    "{x}.sum({d})",
    "{x}.sum({dims}, keepdim={bool})",
    "{x}.sum()",
    "{x}.float().mean({d}, keepdim={bool})",
    "{x}.mean({dims})",
    "{x}.amax({dims}, keepdim={bool})",
    "{x}.amin({d})",
    "{x}.max({d})[0]",
    "{x}.min()",
    "{x}.var({d}, unbiased=False)",
    "{x}.std({dims}, keepdim={bool})",
    "torch.logsumexp({x}, {d})",
    "torch.softmax({x}, {d})",
    "torch.log_softmax({x}, {d})",
    "F.layer_norm({x}, {x}.shape[-1:])",
    "{x}.norm(dim={d})",
    "{x}.abs().sum({d}, keepdim=True)",
    "torch.cumsum({x}, {d})",
    "({x} * 0.5).prod({d})",
    "F.normalize({x}, dim={d})",
    "torch.cummax({x}, {d})[0]",
    "{x}.diff(dim={d})",
    "F.rms_norm({x}, {x}.shape[-1:])",
    "torch.linalg.vector_norm({x}, ord=1, dim={d})",
    "torch.count_nonzero({x} == {x}, {d})",
    "{x}.sum({d}, dtype=torch.float64)",
]
VIEWS = [
    "{x}.permute({order})",
    "{x}.transpose({d}, {d})",
    "{x}.reshape({shape})",
    "{x}.view({shape})",
    "{x}.select({at})",
    "{x}.narrow({cut})",
    "{x}[{items}]",
    "{x}[{items}]",
    "{x}.unsqueeze({d})",
    "{x}.squeeze()",
    "{x}.squeeze({d})",
    "{x}.expand(2, *{x}.shape)",
    "{x}.flatten()",
    "{x}.flip({dims})",
    "{x}.roll({i}, {d})",
    "{x}.diagonal()",
    "{x}.unfold({d}, 2, 1)",
    "{x}.movedim({d}, 0)",
    "{x}.chunk(2, {d})[0]",
    "{x}.split(2, {d})[-1]",
    "{x}.unbind({d})[-1]",
    "{x}.t()",
    "{x}.view_as({x})",
    "{x}.expand_as({y})",
    "{x}.detach()",
    "{x}.swapaxes(0, -1)",
    "{x}.mT",
    "torch.as_strided({x}, (2,), (1,))",
    "{x}.ravel()",
    "torch.broadcast_to({x}, (3, *{x}.shape))",
]
LAYERS = [
    "dense({x})",
    "{x} + dense(norm({x}))",
    "dense({x}) + {y}",
    "norm({x})",
    "dense({x}).transpose(-1, -2)",
    "({x} + dense({x})).transpose(-1, -2).contiguous()",
]
JOINS = [
    "torch.cat([{x}, {y}], {d})",
    "torch.cat([{x}, {x}], {d})",
    "torch.stack([{x}, {y}], {d})",
    "torch.stack([{x}, {x}])",
    "F.pad({x}, {pad})",
    "F.pad({x}, {pad}, value=2)",
    "F.pad({x}, (1, 1), mode='reflect')",
    "F.pad({x}, (1, 2), mode='replicate')",
    "F.pad({x}, (1, 1), mode='circular')",
    "{x}.repeat(2, *[1] * {x}.dim())",
    "{x}.repeat_interleave(2, {d})",
    "torch.index_select({x}, {index})",
    "{x}[{places}]",
    "{x}[:, {places} % max({x}.shape[1], 1)]",
    "torch.gather({x}, 0, torch.zeros_like({x}, dtype=torch.int64))",
    "torch.take_along_dim({x}, ({x}.nan_to_num(0, 0, 0) * 0).to(torch.int64), {d})",
    "F.embedding(({y}.nan_to_num(0, 0, 0) * 0).to(torch.int64), {x})",
    "torch.scatter({x}, 0, torch.zeros_like({x}[:1], dtype=torch.int64), {x}[:1] + 1)",
    "torch.index_add({x}, {index}, {x})",
    "{x}.index_put(({places},), {x}[0], accumulate=True)",
    "{x}.index_fill({index}, 2)",
    "torch.select_scatter({x}, {x}.select({at}) + 1, {at})",
    "torch.slice_scatter({x}, {x}[:1] * 2, 0, 0, 1)",
    "torch.tensor_split({x}, 2, {d})[1]",
    "{x} @ {x}.mT",
    "torch.outer({x}.flatten()[:5], {y}.flatten()[:4])",
    "F.avg_pool1d({x}, 2)",
    "F.max_pool1d({x}, 2, 1)",
    "F.avg_pool2d({x}, 2, 1, 1)",
    "F.max_pool2d({x}, 3, 2, 1)",
    "F.adaptive_avg_pool2d({x}, 2)",
    "F.interpolate({x}, scale_factor=2)",
    "F.interpolate({x}, scale_factor=2, mode='bilinear')",
    "F.pixel_shuffle({x}, 2)",
    "torch.full({s}, {n})",
    "torch.arange({i} + 3)",
    "torch.meshgrid(torch.arange(3), torch.arange(2), indexing='ij')[0]",
    "F.one_hot({x}.to(torch.int64).abs() % 4, 4)",
    "F.cross_entropy({x}, ({x}.detach()[:, 0].nan_to_num(0, 0, 0) * 0).to(torch.int64))",
    "F.mse_loss({x}, {y})",
    "F.smooth_l1_loss({x}, {y}, reduction='none')",
    "F.kl_div({x}, {y}, reduction='sum')",
    "F.group_norm({x}, 1)",
    "F.glu({x}, {d})",
    "torch.cumsum({x}, {d}).flip({d})",
    "torch._foreach_add([{x}, {y}], 1)[1]",
]
MUTATIONS_LIST = [
    "{x}.add_({y})",
    "{x}.mul_({n})",
    "{x}.copy_({y})",
    "{x}.fill_({i})",
    "{x}.zero_()",
    "{x}.sub_({x})",
    "{x}.relu_()",
    "{x}[{items}] = {n}",
    "{x}[{items}] += {y}",
    "{x}[{items}].mul_(2)",
    "{x}.select({at}).add_(1)",
    "{x}.narrow({cut}).zero_()",
    "{x}.transpose({d}, 0).add_({y})",
    "{x}.view({shape}).neg_()",
    "{x}.masked_fill_({y} != {y}, 1)",
    "{x}.diagonal().fill_(3)",
    "{x}[{places}] = 1",
    "{x}.clamp_(-1, 1)",
    "{x}.t().mul_({n})",
    "{x}.addcmul_({y}, {z})",
    "{x}.index_fill_({index}, 1)",
    "{x}.index_add_({index}, {x}[:0])",
    "{x}.tril_()",
    "{x}.squeeze().add_(1)",
    "{x}.unsqueeze(0).sub_(1)",
    "{x}.flatten().mul_(2)",
    "torch.add({x}, {y}, out={z})",
    "torch.mul({x}, 2, out={x})",
    "{x}.exp_()",
    "{x}.logical_not_()",
    "{x}.swapaxes_(0, -1)",
    "{x}.unsqueeze_({d})",
    "{x}.squeeze_()",
    "torch._foreach_mul_([{x}, {y}], 2)",
]
DISCRETE = frozenset(DISCRETE_LIST)
ROUNDING = ("{x}.to({dtype})", "F.one_hot({x}.to(torch.int64).abs() % 4, 4)")
"""What makes whole numbers of its argument."""
MUTATIONS = frozenset(MUTATIONS_LIST)
TABLES = {
    "unary": UNARY,
    "binary": BINARY,
    "discrete": DISCRETE_LIST,
    "reduction": REDUCTIONS,
    "view": VIEWS,
    "join": JOINS,
    "layer": LAYERS,
    "mutation": MUTATIONS_LIST,
}
MIX = ["unary", "unary", "binary", "binary", "discrete", "reduction", "reduction", "view", "view", "view"] + [
    *("join", "join", "mutation", "mutation", "layer")
]


def generate(seed: int) -> Program:
    """The program of a seed."""
    made = _Maker(seed).make()
    made.seed = seed
    return made
