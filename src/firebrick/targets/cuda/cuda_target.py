"""A GPU as a target: its facts, and the planner and the writer of its kernels behind the calls that targets have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from firebrick.artifact import Unit
from firebrick.config import Config
from firebrick.ir.index.expr import ONE, Expr, as_expr
from firebrick.ir.kernels.groups import GroupPlan, PlannedLaunch, Work
from firebrick.ir.kernels.schedule import Kernel, Param, Schedule
from firebrick.ir.loops.bounds import CHECK
from firebrick.ir.loops.program import Buffer, Extern, Ref
from firebrick.ir.loops.values import Table
from firebrick.targets.base import CALL, Choice, FusionFacts, KernelTable, Target
from firebrick.targets.cuda.attention import Attention, attention_text, plan_attention
from firebrick.targets.cuda.beside import side_by_side, steady_params
from firebrick.targets.cuda.facts import CardFacts, read_facts, tells_state
from firebrick.targets.cuda.launches import plan_group
from firebrick.targets.cuda.product import Product, merges, plan_product, product_text
from firebrick.targets.cuda.search import Search
from firebrick.targets.cuda.triton_functions import TYPES
from firebrick.targets.cuda.triton_text import CHECK_TEXT, DEPENDENT, kernel_text, unit_text

_DEPENDENT = 90
"""Capability from which kernels may start while the one before them still runs."""

_first_card = lru_cache(maxsize=1)(read_facts)


def find_card(config: Config) -> CudaTarget | None:
    """The GPU of this machine; None if it has none."""
    card = _first_card()
    blocks = 0 if card is None or not tells_state() else card.multiprocessors * (card.threads // 256)
    return None if card is None else CudaTarget(card, config.numerics == "eager", blocks)


_BY_ROW = frozenset((torch.float32, torch.float16, torch.bfloat16))
_UPDATED_AS = dict.fromkeys(("u8", "i8", "i16"), "i32") | dict.fromkeys(("bf16", "f16"), "f32")
"""Types for which there is no atomic operation, or not on every card."""


@dataclass(frozen=True, slots=True)
class Check:
    """The body of a kernel that stops the card unless the greatest and the least of some indices are in range."""

    warps: int = 1


@dataclass(frozen=True, slots=True)
class CudaTarget(Target):
    """A GPU: kernels are Triton text. exact: matmuls and attention have the library's bits."""

    card: CardFacts
    exact: bool = False
    draws: int = 0

    name = "cuda"
    shares_memory = True
    adds_bias = False
    masks_parts = True
    numbers = frozenset({"f32", "f64", "i64", "i32"})
    updated_as = _UPDATED_AS

    def fusion(self) -> FusionFacts:
        """One iteration is enough: a group whose rows are few is split over programs when it is planned."""
        return FusionFacts(independent=1, alignment=128)

    def key(self) -> str:
        """Text that belongs into cache keys."""
        return self.card.key() + "-draws" * (self.draws > 0)

    def level(self) -> str:
        """Cubins are for one capability; plans, and the numbers of dropout, for as many multiprocessors."""
        return f"sm_{self.card.capability} of {self.card.multiprocessors} multiprocessors"

    def computes(self, dtype: str) -> bool:
        """Whether Triton has a short dtype on this card."""
        return dtype in self.card.dtypes

    def choices(self, op: str, args: tuple[Any, ...]) -> tuple[Choice, ...]:
        """Of convolutions see `convolutions`; other matmuls stay with the library until they are planned. A matrix in
        rows of whole loads is read at the memory's rate by loops, not by the library's product with a vector."""
        if op == "aten::mv":
            matrix, (across, along), size = args[0], args[0].stride(), args[0].element_size()
            fixed = matrix.dtype in _BY_ROW and isinstance(across, int)
            return (Choice("loops", 0.7), CALL) if fixed and along == 1 and size * across % 16 == 0 else (CALL,)
        if op == "aten::convolution":
            return convolution_form(*args), CALL
        return (Choice("merged", 0.5) if op == "firebrick::products" and merges(*args) else CALL,)

    def plan(self, work: Work, facts: Table) -> GroupPlan:
        """The kernels that do a group's work, as tiles."""
        del facts
        return plan_group(work, self.card)

    def side_by_side(self, steps: list[Any], kernels: KernelTable, device: str, choose: Any = None) -> list[Any]:
        """The steps, with small launches of one kernel as one, and matmuls in the forms that `choose` measures."""
        if choose and not self.exact:
            steps = Search(steps, kernels, self, device).chosen(choose)
        return side_by_side(steps, kernels, self.card, device)

    def plan_call(self, call: Extern, buffers: Mapping[str, Buffer]) -> PlannedLaunch | None:
        """Matmuls and attention that the library does slowly. A check of indices stops the card where they lie, as in
        eager mode: to read them would mean to wait."""
        if call.op != CHECK:
            product = None if self.exact else plan_product(call, buffers, self.card)
            return product if product or self.exact else plan_attention(call, buffers, self.card)
        extremes, low, high, *_ = call.args
        assert isinstance(extremes, Ref)
        sizes = tuple([as_expr(n) for n in (low, high) if isinstance(n, int | Expr)])
        return PlannedLaunch("check", (Param("a0", "i64", False),), Check(), (extremes.buffer,), sizes, (ONE,))

    def kernel(self, kernel: Kernel, name: str = "", steady: frozenset[str] = frozenset()) -> str:
        """Text of one kernel, less what `source` puts before it; `steady`: parameters that nothing writes."""
        waits = DEPENDENT if self._is_dependent else ()
        if isinstance(kernel.body, Check):
            return CHECK_TEXT.replace("def check", f"def {name or kernel.name}", 1)
        if isinstance(kernel.body, Product | Attention):
            write: Any = product_text if isinstance(kernel.body, Product) else attention_text
            return write(name or kernel.name, kernel.body, waits)  # type: ignore[no-any-return]
        return kernel_text(name or kernel.name, kernel.body, kernel.params, kernel.sizes, self._is_dependent, steady)  # type: ignore[arg-type]

    def source(self, schedule: Schedule, config: Config) -> list[str]:
        """A module of Triton text for each kernel, since each becomes machine code of its own."""
        del config
        steady = steady_params(schedule)
        return [unit_text([self.kernel(k, "", steady[k.name])]) for k in schedule.kernels if k.device == self.name]

    def units(self, schedule: Schedule, config: Config) -> tuple[Unit, ...]:
        """The kernels as they are built, under names that say nothing of the graph: equal ones are built once."""
        del config
        units, steady = [], steady_params(schedule)
        for k in schedule.kernels:
            name = k.name.partition("_")[2]
            signature = [f"{p.name}:{'*' * (not p.number)}{_element(p.dtype)}" for p in k.params]
            signature += [f"{s}:i64" for s in k.sizes]
            alone = isinstance(k.body, Product) or not self._is_dependent
            rest = ["asserts"] if isinstance(k.body, Check) else [] if alone else ["dependent"]
            rest += ["maps"] * (isinstance(k.body, Product) and k.body.tile.programs > 0)
            flags = (str(self.card.capability), str(k.body.warps), name, ",".join(signature), *rest)
            text = unit_text([self.kernel(k, name, steady[k.name])])
            units.append(Unit(f"cuda_{k.name}", text, (k.name,), flags, "triton"))
        return tuple(units)

    @property
    def _is_dependent(self) -> bool:
        return self.card.capability >= _DEPENDENT


def _element(dtype: str) -> str:
    """The type of a pointer's elements in a signature."""
    name = TYPES[dtype].removeprefix("tl.")
    return "u8" if name == "uint8" else name.replace("bfloat", "bf").replace("float", "fp").replace("int", "i")


_FEW_STEPS = 32_000_000
"""Products of a convolution with one channel a group up to which loops are quicker than the library's kernel, which
takes 3 us for windows of 3 x 3, 6 for 5 x 5 and 11 for 7 x 7 however small the image is. On an H100, us, the library's
and loops': 96 x 56 x 56, 7 x 7: 14.8, 6.3; 384 x 14 x 14, 7 x 7: 11.8, 4.4; 672 x 14 x 14, 5 x 5: 6.1, 3.8; a batch
of 32 of the second: 23, 32."""
_LOOPED = 64
"""Elements of the largest window that one thread folds."""
_FEW_CHANNELS = 16
_SMALL = 8 << 20
"""Bytes of an image whose copy in the order of patches costs less than the library loses by its window. On an H100, us,
the library's, the copy and the matmul: 3 x 224 x 224 by 16 x 16: 63, 2.8, 4.8, a batch of 32 of it 270, 13, 14;
192 x 28 x 28 by 2 x 2: 8.3, 2.7, 4.1; a batch of 32 of 96 x 56 x 56 by 2 x 2: 35, 27, 11."""


def convolution_form(x: Tensor, weight: Tensor, *how: Any) -> Choice:
    """The library convolves images in short types channels last, and would turn them around at each call; there it adds
    a vector and another image, and cuts off below zero, on the way."""
    stride, padding, dilation, groups, out = how
    if out.dtype not in (torch.float16, torch.bfloat16) or out.dim() != 4:
        return CALL
    sizes: list[Any] = [*x.shape, *weight.shape, *out.shape]
    if not all(isinstance(n, int) for n in sizes):
        return CALL
    window = list(weight.shape[2:])
    if groups == weight.shape[0] == x.shape[1] and 1 < math.prod(window) <= _LOOPED:
        return Choice("loops" if out.numel() * math.prod(window) <= _FEW_STEPS else "call", 0.5)
    beside = list(stride) == window == [window[0]] * 2 and window[0] > 1 and not any(padding)
    whole = groups == 1 and set(dilation) == {1} and not any(n % window[0] for n in x.shape[2:])
    copied = x.shape[1] <= _FEW_CHANNELS or x.numel() * x.element_size() <= _SMALL
    return Choice("patches" if beside and whole and copied else "fused", 0.5)
