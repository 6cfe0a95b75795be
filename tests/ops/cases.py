"""Calls of torch's operator database as cases: plain samples, and variants of them with awkward inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.utils import _pytree as pytree

from firebrick.runtime.bits import bits_of, toggled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64", "int64", "bool")}
VARIANTS = ("plain", "inplace", "strided", "broadcast", "empty", "aliased")
FEW = 4
"""Samples of an operator that variants other than plain and strided are made of."""


@dataclass(frozen=True)
class Case:
    """A call: a function of tensors and what else it takes, as a flat list. Never run twice on the same tensors."""

    name: str
    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: Any

    def call(self, tensors: list[torch.Tensor]) -> Any:
        """Run it on these tensors in the place of its own."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)

    def tensors(self) -> list[torch.Tensor]:
        """Copies of its tensors that share memory as the originals do."""
        return copies([leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)])

    def describe(self) -> str:
        """Its arguments in short."""
        args, kwargs = pytree.tree_unflatten([short(leaf) for leaf in self.leaves], self.spec)
        named = [f"{k}={v}" for k, v in kwargs.items()]
        return f"{self.name}({', '.join([*map(str, args), *named])})"[:300]


def short(leaf: Any) -> Any:
    """A tensor by its dtype, sizes and strides."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    strides = "" if leaf.layout != torch.strided or leaf.is_contiguous() else f" | {list(leaf.stride())}"
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{strides}"


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same strides and offsets; what shared memory shares memory again."""
    storages: dict[int, torch.Tensor] = {}
    objects: dict[int, torch.Tensor] = {}
    made = []
    for t in tensors:
        if id(t) not in objects:
            if t.layout != torch.strided or t.is_quantized:
                objects[id(t)] = t.clone()
            else:
                key = t.untyped_storage()._cdata
                if key not in storages:
                    storages[key] = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage().clone())
                whole = torch.empty(0, dtype=t.dtype, device=t.device).set_(storages[key].untyped_storage())
                plain = torch.as_strided(whole, t.shape, t.stride(), t.storage_offset())
                objects[id(t)] = toggled(plain, bits_of(t))
        made.append(objects[id(t)])
    return made


def operators() -> dict[str, Any]:
    """The database by name. Its random operators would seed themselves in each call, which is no part of a graph."""
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in database.op_db}


def product_of_factors(factors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """What a decomposition by singular values says, whose vectors have any sign, and of a singular value of zero, which
    rounding may make of anything, any direction: their product, and the values."""
    u, s, v = factors
    return (u * s) @ v.mT, s


DETERMINED: dict[str, Callable[[Any], Any]] = {"pca_lowrank": product_of_factors, "svd_lowrank": product_of_factors}
"""Operators that compute what they decompose -> what their arguments determine of their results: the last bit of a sum
decides on the rest. (Those that decompose their argument do it with its very bits.)"""


def determined(op: Any) -> Callable[..., Any]:
    """The operator, or a function of it that has one right result."""
    if op.name not in DETERMINED:
        return op.op

    def call(*args: Any, **kwargs: Any) -> Any:
        return DETERMINED[op.name](op.op(*args, **kwargs))

    return call


def generator() -> torch.Generator:
    """What draws random numbers where tensors are made."""
    return torch.default_generator if device() == "cpu" else torch.cuda.default_generators[0]


def device() -> str:
    """Where samples lie: torch's default device."""
    return torch.get_default_device().type


def cases(op: Any, dtype: torch.dtype, first: int = 0, end: int | None = None) -> Iterator[Case]:
    """Cases of an operator for one dtype: of all samples, or of those from `first` on and before `end`."""
    if dtype not in op.supported_dtypes(device()):
        return
    torch.manual_seed(0)
    for k, sample in enumerate(op.sample_inputs(device(), dtype)):
        if k == end:
            return
        if k < first:
            continue
        plain = ((sample.input, *sample.args), sample.kwargs)
        for variant in VARIANTS:
            if variant not in ("plain", "strided") and k >= FEW:
                continue
            function = op.inplace_variant if variant == "inplace" else determined(op)
            if function is None or (variant == "inplace" and sample.broadcasts_input):
                continue
            given = plain if variant in ("plain", "inplace") else _MAKERS[variant](*plain)
            if given is not None:
                leaves, spec = pytree.tree_flatten(given)
                yield Case(f"{variant} {k}", function, tuple(leaves), spec)


def _map(fn: Callable[[torch.Tensor], torch.Tensor], args: Any, kwargs: Any) -> Any:
    """The arguments with another tensor for each that `fn` changes; None if it changes none."""
    changed = []

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        made = fn(leaf)
        changed.append(made is not leaf)
        return made

    made = pytree.tree_map(one, (args, kwargs))
    return made if any(changed) else None


def _strided(args: Any, kwargs: Any) -> Any:
    """Every other element of a larger tensor, last dimension outermost, from an offset on."""

    def one(t: torch.Tensor) -> torch.Tensor:
        if t.dim() == 0 or t.numel() < 2:
            return t
        turned = t.movedim(-1, 0)
        base = turned.new_zeros(*turned.shape[:-1], 2 * turned.shape[-1] + 1)
        view = base[..., 1::2]
        view.copy_(turned)
        return view.movedim(0, -1)

    return _map(one, args, kwargs)


def _broadcast(args: Any, kwargs: Any) -> Any:
    """The first tensor repeats one row without holding it twice."""
    first = []

    def one(t: torch.Tensor) -> torch.Tensor:
        if first or t.dim() == 0 or t.shape[0] < 2:
            return t
        first.append(t)
        return t[:1].clone().expand_as(t)

    return _map(one, args, kwargs)


def _empty(args: Any, kwargs: Any) -> Any:
    """No rows in any tensor that has as many rows as the first."""
    size = []

    def one(t: torch.Tensor) -> torch.Tensor:
        if t.dim() == 0 or (size and size[0] != t.shape[0]):
            return t
        size.append(t.shape[0])
        return t[:0].clone()

    return _map(one, args, kwargs)


def _aliased(args: Any, kwargs: Any) -> Any:
    """A later tensor that looks like the first is the first."""
    first = []

    def one(t: torch.Tensor) -> torch.Tensor:
        if not first:
            first.append(t)
            return t
        return first[0] if (t.shape, t.dtype) == (first[0].shape, first[0].dtype) else t

    return _map(one, args, kwargs)


_MAKERS = {"strided": _strided, "broadcast": _broadcast, "empty": _empty, "aliased": _aliased}
