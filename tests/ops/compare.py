"""Compiles cases and compares them with eager PyTorch; floating-point results by their errors against float64."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tests.ops.cases import Case, copies, device, generator
from torch import fx
from torch.utils import _pytree as pytree

import firebrick
from firebrick import host, pipeline, runtime
from firebrick.config import Config
from firebrick.targets.by_device import find_targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from firebrick.artifact import Artifact

CONFIG = Config(strict=True, cache=False, check=frozenset({"ir"}))
HALF = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
RELATIVE = {torch.float32: 1e-6, torch.float64: 1e-12, **HALF}
"""What the numerics allow beyond 1.1 times eager's error, by dtype of the result: for half types, four roundings,
since an operator made of several rounds several times."""


@dataclass
class Expected:
    """What eager gives: results and the arguments afterwards, flat, and which of them share memory with arguments.

    random: draws numbers. undefined: is another thing each time, since eager reads what nobody wrote.
    """

    outputs: list[Any]
    after: list[torch.Tensor]
    shared: list[int | None]
    random: bool
    undefined: bool
    reference: list[Any] | None
    scale: float
    extra: float = 0.0
    unwritten: frozenset[int] = frozenset()


@dataclass
class Outcome:
    """What became of cases. failed: name and reason; wrong: name and difference; calls: library ops by name; kinds: how
    many cases of each kind, the first words of their names."""

    done: int = 0
    loops: int = 0
    called: int = 0
    left: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)


# ---------------------------------------------------------------- eager


def expect(case: Case) -> Expected | None:
    """Run a case eagerly; None if eager refuses it."""
    tensors = case.tensors()
    try:
        first = run_seeded(case, tensors, 0)
        drawn = generator().get_state()
        generator().manual_seed(0)
        random = not torch.equal(drawn, generator().get_state())
        again = run_seeded(case, case.tensors(), 0) if random else first
    except Exception:
        return None
    undefined = any(not same_bits(a, b) for a, b in zip(first, again, strict=False))
    floats = [t for t in case.tensors() if t.dtype.is_floating_point and t.numel() and t.layout == torch.strided]
    numbers = [t.abs().max().item() for t in floats]
    scale = max((n for n in numbers if n < 1e4), default=0.0)
    wide = None if random else reference(case, first)
    return Expected(first, tensors, shares(first, tensors), random, undefined, wide, scale)


def run_seeded(case: Case, tensors: list[torch.Tensor], seed: int) -> list[Any]:
    """The results of a case; its random numbers come from the seed."""
    generator().manual_seed(seed)  # as torch.manual_seed, which takes a millisecond for its other devices
    return flat(case.call(tensors))


def flat(result: Any) -> list[Any]:
    """The results in order."""
    return pytree.tree_leaves(result)


def shares(outputs: list[Any], tensors: list[torch.Tensor]) -> list[int | None]:
    """For each output the first argument whose memory it uses."""
    found: list[int | None] = []
    for out in outputs:
        place = None
        if isinstance(out, torch.Tensor) and out.layout == torch.strided and out.numel():
            for k, t in enumerate(tensors):
                if t.layout == torch.strided and t.untyped_storage()._cdata == out.untyped_storage()._cdata:
                    place = k
                    break
        found.append(place)
    return found


def reference(case: Case, outputs: list[Any]) -> list[Any] | None:
    """The results in float64 (of complex numbers complex128), for cases that compute in narrower floating point."""
    if not any(isinstance(o, torch.Tensor) and o.dtype in (torch.float32, *HALF) for o in outputs):
        return None
    wide = {**dict.fromkeys((torch.float32, *HALF), torch.float64), torch.complex64: torch.complex128}
    leaves = [x.to(wide.get(x.dtype)) if isinstance(x, torch.Tensor) else x for x in case.leaves]
    leaves = [wide.get(x, x) if isinstance(x, torch.dtype) else x for x in leaves]
    try:
        with torch.random.fork_rng(), whole_numbers_become(torch.float64):
            args, kwargs = pytree.tree_unflatten(leaves, case.spec)
            return flat(case.function(*args, **kwargs))
    except Exception:
        return None


@contextlib.contextmanager
def whole_numbers_become(dtype: torch.dtype) -> Iterator[None]:
    """Functions that make floating point of whole numbers make this one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two results are equal, NaN included."""
    if not isinstance(a, torch.Tensor):
        return repr(a) == repr(b)
    if not isinstance(b, torch.Tensor) or (a.layout, a.shape, a.dtype) != (b.layout, b.shape, b.dtype):
        return True
    if a.layout != torch.strided or a.is_quantized:
        return True
    return bool(((a == b) | ((a != a) & (b != b))).all())


# ---------------------------------------------------------------- ours


def module_of(cases: list[Case], counts: list[int]) -> tuple[fx.GraphModule, list[list[int]]]:
    """A graph that does all cases; for each case the places of its tensors among the inputs."""
    graph = fx.Graph()
    places: list[list[int]] = []
    total = 0
    placeholders: list[fx.Node] = []
    for case in cases:
        known: dict[int, int] = {}
        row = []
        for leaf in case.leaves:
            if isinstance(leaf, torch.Tensor):
                if id(leaf) not in known:
                    known[id(leaf)] = total
                    placeholders.append(graph.placeholder(f"a{total}"))
                    total += 1
                row.append(known[id(leaf)])
        places.append(row)
    results: list[fx.Node] = []
    for case, row, count in zip(cases, places, counts, strict=True):

        def run(*tensors: torch.Tensor, case: Case = case) -> list[Any]:
            return flat(case.call(list(tensors)))

        node = graph.call_function(run, tuple(placeholders[k] for k in row))
        results += [graph.call_function(operator.getitem, (node, k)) for k in range(count)]
    graph.output(tuple(results))
    return fx.GraphModule({}, graph), places


def build(stages: pipeline.Stages) -> tuple[Any, Artifact]:
    """The executable of a graph and what it was loaded from."""
    artifact = runtime.build(host.generate(stages.schedule, find_targets((device(),), CONFIG), CONFIG), CONFIG)
    artifact = artifact.with_extra(bits=stages.aten.bits_by_place()) if stages.aten.bits else artifact
    return runtime.load(artifact, stages.aten.constants), artifact


def compile_and_run(cases: list[Case], expected: list[Expected]) -> tuple[list[tuple[list[Any], list[Any]]], set, int]:
    """Results and arguments afterwards for each case; the library calls made, and the number of kernels."""
    counts = [len(e.outputs) for e in expected]
    gm, places = module_of(cases, counts)
    tensors = [case.tensors() for case in cases]
    inputs: dict[int, torch.Tensor] = {}
    for row, given in zip(places, tensors, strict=True):
        inputs.update(zip(row, given, strict=True))
    flat_inputs = [inputs[k] for k in range(len(inputs))]
    generator().manual_seed(0)
    with torch.no_grad():
        executable, artifact = build(pipeline.inspect_graph(gm, flat_inputs, CONFIG))
        generator().manual_seed(0)
        results = list(executable(*flat_inputs))
    found = []
    for given, count in zip(tensors, counts, strict=True):
        found.append((results[:count], given))
        results = results[count:]
    steps = artifact.table["steps"]
    return found, {s[1] for s in steps if s[0] == "call"}, sum(s[0] == "kernel" for s in steps)


# ---------------------------------------------------------------- comparison


def difference(expected: Expected, outputs: list[Any], after: list[torch.Tensor], uninitialized: bool) -> str:
    """What differs from eager, in one line; empty if nothing does."""
    if len(outputs) != len(expected.outputs):
        return f"{len(outputs)} results, not {len(expected.outputs)}"
    references = expected.reference or [None] * len(outputs)
    if len(references) != len(outputs):
        references = [None] * len(outputs)
    for k, (want, got, ref) in enumerate(zip(expected.outputs, outputs, references, strict=True)):
        unwritten = uninitialized or expected.undefined or k in expected.unwritten
        found = differs(want, got, ref, unwritten, (expected.scale, expected.extra))
        if found:
            return f"result {k}: {found}"
    for k, (want, got) in enumerate(zip(expected.after, after, strict=True)):
        ref = references[0] if references else None
        same = isinstance(ref, torch.Tensor) and ref.shape == want.shape
        found = differs(want, got, ref if same else None, uninitialized, (expected.scale, expected.extra))
        if found:
            return f"argument {k} afterwards: {found}"
    if shares(outputs, after) != expected.shared:
        return f"results share memory with arguments {shares(outputs, after)}, not {expected.shared}"
    return ""


def differs(want: Any, got: Any, ref: Any, uninitialized: bool, loose: tuple[float, float] = (0.0, 0.0)) -> str:
    """How two results differ beyond what rounding allows."""
    if not isinstance(want, torch.Tensor):
        return "" if repr(want) == repr(got) or want == got else f"{got!r}, not {want!r}"
    if not isinstance(got, torch.Tensor):
        return f"{got!r}, not a tensor"
    if (want.dtype, want.shape, want.layout) != (got.dtype, got.shape, got.layout):
        return f"{got.dtype} {tuple(got.shape)}, not {want.dtype} {tuple(want.shape)}"
    if uninitialized or want.numel() == 0 or want.layout != torch.strided:
        return ""
    if want.dtype.is_complex:
        ref = torch.view_as_real(ref.resolve_conj()) if isinstance(ref, torch.Tensor) and ref.is_complex() else None
        return differs(
            torch.view_as_real(want.resolve_conj()), torch.view_as_real(got.resolve_conj()), ref, False, loose
        )
    if want.is_quantized:
        return ""
    if not want.dtype.is_floating_point:
        wrong = want != got
        if not bool(wrong.any()):
            return ""
        at = tuple(int(i) for i in wrong.nonzero()[0])
        return f"{got[at].item()} at {at}, not {want[at].item()}; {int(wrong.sum())} of {want.numel()}"
    return float_difference(want, got, ref, *loose)


def layout_difference(expected: Expected, outputs: list[Any]) -> str:
    """The first result whose strides are not eager's, where sizes are above one."""
    for k, (want, got) in enumerate(zip(expected.outputs, outputs, strict=True)):
        if not isinstance(want, torch.Tensor) or want.layout != torch.strided or want.numel() == 0:
            continue
        if any(n > 1 and a != b for n, a, b in zip(want.shape, want.stride(), got.stride(), strict=True)):
            return f"result {k}: strides {got.stride()}, not {want.stride()}"
    return ""


def float_difference(want: torch.Tensor, got: torch.Tensor, ref: Any, scale: float, extra: float) -> str:
    """Errors against float64: ours may be 1.1 times the largest of eager's, and a rest relative to the number beyond,
    or, where numbers cancel, a quarter of that relative to the largest argument; `extra` comes from TOLERANCE."""
    relative = RELATIVE.get(want.dtype, 1e-6)
    w, g = want.double(), got.double()
    usable = isinstance(ref, torch.Tensor) and (ref.shape, ref.layout) == (want.shape, want.layout)
    r = ref.double() if usable and not ref.is_complex() else w
    finite = r.isfinite() & w.isfinite()
    worst = (w - r)[finite].abs().max() if bool(finite.any()) else torch.zeros((), dtype=torch.float64)
    if r is w:
        worst = worst + 4 * relative * (w[finite].abs().max() if bool(finite.any()) else 0.0)
    tiny = torch.finfo(want.dtype).tiny
    allowed = 1.1 * worst + relative * (r.abs() + scale / 4) + extra * r.abs() + tiny
    bad = ((g - r).abs() > allowed) & ((g - w).abs() > allowed)
    special = ~finite | ~g.isfinite()
    same = (w == g) | (w.isnan() & g.isnan()) | (g == r.to(want.dtype).double()) | (g.isnan() & r.isnan())
    bad = torch.where(special, ~same, bad)
    if not bool(bad.any()):
        return ""
    at = tuple(int(i) for i in bad.nonzero()[0])
    return (
        f"{got[at].item()} at {at}, eager {want[at].item()}, float64 {r[at].item()}; {int(bad.sum())} of {want.numel()}"
    )


# ---------------------------------------------------------------- everything


UNINITIALIZED = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
EMPTY_UNINITIALIZED = frozenset(
    {"nn.functional.multilabel_margin_loss", "nn.functional.multi_margin_loss", "resize_", "resize_as_"}
)
"""Operators whose result for no rows is memory that eager's kernel doesn't write."""
BROADCAST_UNINITIALIZED = frozenset({"masked.median", "median", "nanmedian"})
"""Operators whose result along an expanded dim is memory that eager's kernel doesn't write."""
UNWRITTEN_RESULTS = dict.fromkeys(
    ("torch.ops.aten._efficient_attention_forward", "torch.ops.aten._flash_attention_forward"), frozenset({2, 3})
)
"""Operators -> results that eager's kernel doesn't write: the state of dropout's numbers, where nothing is dropped."""


def is_unwritten(name: str, case: Case) -> bool:
    """Whether eager's result is memory that it doesn't write."""
    return (
        name in UNINITIALIZED
        or (name in EMPTY_UNINITIALIZED and case.name.startswith("empty"))
        or (name in BROADCAST_UNINITIALIZED and case.name.startswith("broadcast"))
    )


OTHER_LAYOUT = frozenset({"nn.functional.max_pool1d", "nn.functional.one_hot"})
"""Operators whose layout depends on more than ATen sees: firebrick looks at them before (tests/repros)."""
TOLERANCE = {
    # LAPACK's singular values differ between a decomposition with vectors, which a trace asks for, and one without.
    "linalg.cond": 1e-5,
}
"""Operators -> relative error that is allowed beyond eager's, for a reason."""


def check(name: str, cases: list[Case], batch: int = 64) -> Outcome:
    """Compile and compare the cases of one operator."""
    outcome = Outcome()
    ready = [(c, e) for c in cases for e in [expect(c)] if e is not None]
    for c, e in ready:
        e.extra, e.unwritten = TOLERANCE.get(name, 0.0), UNWRITTEN_RESULTS.get(name, frozenset())
        outcome.kinds[c.name.partition(":")[0]] += 1
    alone = [p for p in ready if p[1].random]
    many = [p for p in ready if not p[1].random]
    groups = [[p] for p in alone] + [many[k : k + batch] for k in range(0, len(many), batch)]
    for group in groups:
        _check_group(name, group, outcome)
    return outcome


def _check_group(name: str, group: list[tuple[Case, Expected]], outcome: Outcome) -> None:
    try:
        found, calls, kernels = compile_and_run([c for c, _ in group], [e for _, e in group])
    except Exception as error:
        if len(group) > 1:
            half = len(group) // 2
            for part in [group] if half == 0 else (group[:half], group[half:]):
                _check_group(name, part, outcome)
            return
        outcome.done += 1
        left_to_eager(name, group[0][0], group[0][1], error, outcome)
        return
    outcome.calls |= calls
    for (case, expected), (outputs, after) in zip(group, found, strict=True):
        outcome.done += 1
        wrong = difference(expected, outputs, after, is_unwritten(name, case))
        if wrong and (right_by_values(case, outputs, after) or nearer_than_eager(case, expected, outputs)):
            wrong = ""
        if name not in OTHER_LAYOUT:
            wrong = wrong or layout_difference(expected, outputs)
        if wrong:
            outcome.wrong.append((case.describe(), wrong))
        elif calls:
            outcome.called += 1
        else:
            outcome.loops += 1


def right_by_values(case: Case, outputs: list[Any], after: list[torch.Tensor]) -> bool:
    """Whether our result is what eager gives for contiguous copies of the arguments: a few of eager's kernels read
    or write other strides wrongly."""
    leaves = [x.contiguous().clone() if isinstance(x, torch.Tensor) else x for x in case.leaves]
    expected = expect(Case(case.name, case.function, tuple(leaves), case.spec))
    if expected is None or not {
        "strided",
        "broadcast",
        "permuted",
        "expanded",
        "channels",
        "offset",
        "negated",
        "conjugated",
    } & set(case.name.replace(",", "").split()):
        return False
    expected.shared = shares(outputs, after)
    return not difference(expected, outputs, after, False)


def nearer_than_eager(case: Case, expected: Expected, outputs: list[Any]) -> bool:
    """Whether a random case's results are nowhere further from float64's, of the same random numbers, than eager's."""
    generator().manual_seed(0)
    exact = reference(case, expected.outputs) if expected.random else None
    if exact is None or len(exact) != len(outputs):
        return False
    for want, got, ref in zip(expected.outputs, outputs, exact, strict=True):
        if not isinstance(got, torch.Tensor) or (want.dtype, want.shape) != (got.dtype, got.shape):
            return False
        ours, eagers = (got.double() - ref).abs(), (want.double() - ref).abs()
        if not bool((ours <= eagers + RELATIVE.get(want.dtype, 1e-6) * ref.abs()).all()):
            return False
    return True


def left_to_eager(name: str, case: Case, expected: Expected, error: Exception, outcome: Outcome) -> None:
    """A call that is no graph: the whole of firebrick must give eager's result all the same."""
    reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    tensors = copies([leaf for leaf in case.leaves if isinstance(leaf, torch.Tensor)])
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = firebrick.compile(case.call, options={"strict": False, "cache": False})
            generator().manual_seed(0)
            outputs = flat(compiled(tensors))
    except Exception as second:
        outcome.failed.append((case.describe(), f"{reason}; then {type(second).__name__}: {second}"[:300]))
        return
    finally:
        firebrick.reset()
    wrong = difference(expected, outputs, tensors, is_unwritten(name, case)) or layout_difference(expected, outputs)
    if wrong:
        outcome.wrong.append((case.describe(), f"left to eager: {wrong}"))
    else:
        outcome.left.append((case.describe(), reason))
