"""What the settings `stages` and `check` ask of graphs: how far they go, and each beside eager as it runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_map

from firebrick import pipeline
from firebrick.api.switches import OFF, Switch
from firebrick.backends.aot_eager import aot_eager, eager
from firebrick.config import Config
from firebrick.errors import FirebrickError, VerificationError
from firebrick.extend.verify import relative_error, shared_memory, tolerance_of
from firebrick.ir.graph.labels import user_place
from firebrick.report import recorder
from firebrick.trace import graph_key

Run = Callable[..., Any]

_ROUNDING = 8
"""Compiled code may be this many times as far from float64 as eager is: sums in another order have other errors."""
_UNDECIDED = 50
"""Of the tolerance of a dtype: what is no error where float64 can't tell, since the graph draws random numbers."""
_NOISE = 0.1
"""Of the tolerance of the largest gradient: what cancels to nothing, as of a bias before a batch norm, is noise."""
_TOLD = 0.1
"""Where eager is nearer to float64 than this, both compute the same, not for example with other random numbers."""
_WIDE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
_WIDE |= {torch.complex64: torch.complex128}
_WIDE_METHODS = dict.fromkeys(("float", "half", "bfloat16"), "double")
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Case:
    """A graph of a program with copies of what a call gave it. compile: what makes it callable, under a `Config`."""

    number: int
    gm: fx.GraphModule
    inputs: Sequence[Any]
    config: Config
    passes: Sequence[Any] = ()
    recording: bool = field(default_factory=torch.is_grad_enabled)

    @property
    def title(self) -> str:
        """Number and name, as messages have it."""
        name = str(self.gm.meta.get("name") or "graph")
        return f"graph {self.number}" + (f" ({name})" if name != "graph" else "")


@dataclass(frozen=True, slots=True)
class Finding:
    """Where compiled code is not what eager is.

    node: the result of the graph in which that shows. rounds: float64 may tell that it is rounding.
    """

    text: str
    node: fx.Node | None = None
    rounds: bool = False


watchers: list[Callable[[str, Case, str], None]] = []
"""Told of each step (compile, run, differs, raises) of each graph under `check=accuracy`; tools add themselves."""


def compile_graph(gm: fx.GraphModule, inputs: Sequence[Any], config: Config, passes: Sequence[Any] = ()) -> Run:
    """Compile a graph as far as `stages` wants, and have it compared as `check` wants."""
    if "accuracy" not in config.check:
        return compile_unchecked(gm, inputs, config, passes)
    case = Case(next(_numbers), gm, list(inputs), config, passes)
    _tell("compile", case)
    try:
        return Checked(compile_unchecked(gm, inputs, config, passes), replace(case, inputs=()))
    except Exception as error:
        _tell("raises", case, f"{type(error).__name__}: {error}")
        raise


def compile_unchecked(gm: fx.GraphModule, inputs: Sequence[Any], config: Config, passes: Sequence[Any] = ()) -> Run:
    """Compile a graph as far as `stages` wants."""
    if config.stages == "all":
        return pipeline.compile_graph(gm, inputs, config, passes)
    gm = fx.GraphModule(gm, gm.graph)
    return (aot_eager if config.stages == "trace" else eager)(gm, inputs)


def _tell(step: str, case: Case, text: str = "") -> None:
    for watcher in watchers:
        watcher(step, case, text)


class Checked:
    """A compiled graph; the same calls are made of the captured graph on eager kernels, on copies."""

    def __init__(self, compiled: Run, case: Case) -> None:
        self.compiled, self.case = compiled, case

    def __call__(self, *inputs: Any) -> Any:
        """Call it, and say where it differs.

        Raises:
            VerificationError: it differs, under `strict`.
        """
        results, finding, case = self.run(inputs)
        if finding is not None:
            _tell("differs", case, finding.text)
            self._report(finding)
        return results

    def _report(self, finding: Finding) -> None:
        nodes = [finding.node] if finding.node is not None else list(self.case.gm.graph.nodes)
        where = next((place for place in map(user_place, nodes) if place is not None), None)
        text = f"{self.case.title} differs from eager: {finding.text}"
        recorder.count("graphs that differ from eager")
        recorder.reason("differs from eager", f"{text}, at {where}")
        if self.case.config.strict:
            raise VerificationError(text, where=where, fix="`firebrick bisect` finds what makes it differ")
        recorder.warn_once(f"accuracy {self.case.number}", f"firebrick: {text}\n  at {where}", stacklevel=4)

    def run(self, inputs: Sequence[Any]) -> tuple[Any, Finding | None, Case]:
        """Results, what is wrong with them, and the case with copies of the inputs as they were."""
        constants = graph_key.constants_of(self.case.gm)
        arguments = [*inputs, *constants.values()]
        before = _copies(arguments)
        if before is None:
            recorder.count("calls that check=accuracy can't compare")
            return self.compiled(*inputs), None, self.case
        case = replace(self.case, inputs=before[: len(inputs)])
        _tell("run", case)
        side = _Side(arguments)
        start = _random_state(), torch.is_grad_enabled()
        failure, results = None, None
        try:
            results = self.compiled(*inputs)
        except Exception as error:  # noqa: BLE001  it goes on once it is known whether eager raises too
            failure = error
        after = _random_state(), torch.is_grad_enabled()
        inner = [i for i, t in enumerate(inputs) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        compare = _Comparison(case.gm, list(constants), before, inner, start)
        with Switch(OFF):
            finding = compare.after_failure(failure) if failure else compare.after(side, results)
        _restore(after)
        if failure is not None:
            if finding is not None:
                _tell("raises", case, finding.text)
            raise failure
        return results, finding, case


class _Side:
    """One of the programs that are compared: what it was given and returns, and the gradients that follow."""

    def __init__(self, arguments: list[Any]) -> None:
        self.arguments, self.failure = arguments, ""
        leaves = [(i, t) for i, t in enumerate(arguments) if isinstance(t, torch.Tensor) and t.requires_grad]
        self.nodes = {i: t.grad_fn for i, t in leaves}
        self.edges = {i: get_gradient_edge(t) for i, t in leaves if torch.is_grad_enabled()}
        behind = _behind([node for node in self.nodes.values() if node is not None])
        observed = any(t._backward_hooks or t.retains_grad for _, t in leaves)  # asking for gradients would show
        self.edges = {i: edge for i, edge in self.edges.items() if not observed and edge.node not in behind}
        self.results: list[Any] = []
        self.grads: dict[int, Any] = {}

    def finish(self, results: Any) -> _Side:
        """Take the results, and the gradients of random tangents."""
        self.results = list(results) if isinstance(results, (tuple, list)) else [results]
        outs = [(k, t) for k, t in enumerate([*self.results, *self.arguments]) if _has_gradient(t)]
        first = len(self.results)
        outs = [(k, t) for k, t in outs if k < first or t.grad_fn is not self.nodes.get(k - first)]
        if outs and self.edges:
            tangents = [_tangent(k, t) for k, t in outs]
            edges = list(self.edges.values())
            try:
                grads = torch.autograd.grad([t for _, t in outs], edges, tangents, retain_graph=True, allow_unused=True)
                dense = [g if g is None or g.layout == torch.strided else g.to_dense() for g in grads]
                self.grads = dict(zip(self.edges, dense, strict=True))
            except Exception as error:  # noqa: BLE001  it is compared as well
                self.failure = f"{type(error).__name__}: {error}".partition("\n")[0]
        return self


def _behind(nodes: list[Any]) -> set[Any]:
    """All nodes of autograd's graph that gradients come to from these: by other ways than through the graph alone."""
    seen, todo = set[Any](), list(nodes)
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                todo.append(node)
    return seen


@dataclass(frozen=True)
class _Comparison:
    """A captured graph beside the compiled one.

    names: of its constants, which are the last of what it is given. inner: inputs that are no leaves of autograd's
    graph. start: random state and grad mode before the call.
    """

    gm: fx.GraphModule
    names: list[str]
    before: list[Any]
    inner: list[int]
    start: tuple[Any, bool]

    def after_failure(self, failure: Exception) -> Finding | None:
        """What is wrong with an exception of compiled code: nothing if eager raises too."""
        if isinstance(failure, FirebrickError):
            return None
        try:
            self._eager()
        except Exception:  # noqa: BLE001  the program's own
            return None
        return Finding(f"raises {type(failure).__name__}: {failure}".partition("\n")[0])

    def after(self, compiled: _Side, results: Any) -> Finding | None:
        """What is wrong with results of compiled code, and with the gradients that flow through them."""
        try:
            plain = self._eager()
        except Exception as error:  # noqa: BLE001  the program's own
            return Finding(f"returns, where eager raises {type(error).__name__}: {error}".partition("\n")[0])
        drawn = not all(map(torch.equal, self.start[0], _random_state()))
        finding = self._difference(compiled.finish(results), plain, None, 1)
        if finding is None or not finding.rounds:
            return finding
        try:
            exact = self._eager(wide=True)
        except Exception:  # noqa: BLE001  it has no form in float64
            exact = None
        return self._difference(compiled, plain, exact, _UNDECIDED if drawn or exact is None else 0)

    def _eager(self, *, wide: bool = False) -> _Side:
        _restore(self.start)
        values = _copies(self.before, wide=wide)
        assert values is not None
        side = _Side(values)
        count = len(values) - len(self.names)
        for i in self.inner:
            with torch.enable_grad():
                values[i] = _Moved.apply(values[i])  # type: ignore[no-untyped-call]
            side.nodes[i] = values[i].grad_fn
        constants = dict(zip(self.names, values[count:], strict=True))
        return side.finish(_Eager(self.gm, constants, wide).run(*values[:count]))

    def _difference(self, one: _Side, plain: _Side, exact: _Side | None, loose: int) -> Finding | None:
        if len(one.results) != len(plain.results):
            return Finding(f"{len(one.results)} results instead of {len(plain.results)}")
        steep = max((float(t.abs().max()) for t in plain.grads.values() if t is not None and t.numel()), default=0.0)
        for title, node, part, i in self._rows(one, plain):
            a, b, c = (None if side is None else getattr(side, part)[i] for side in (one, plain, exact))
            finding = _difference(title, a, b, c, loose, steep * _NOISE if part == "grads" else 0.0)
            if finding is not None:
                return replace(finding, node=node)
        if one.failure and not plain.failure:
            return Finding(f"the backward raises {one.failure}")
        for what, others in (("an argument or parameter", "arguments"), ("another result", "results")):
            pairs = [shared_memory(side.results, getattr(side, others)) for side in (one, plain)]
            if pairs[0] != pairs[1]:
                who = "compiled" if pairs[0] - pairs[1] else "eager"
                i = min(pairs[0] ^ pairs[1])[0]
                return Finding(f"result {i} shares memory with {what} in {who} code only", self._node(i))
        return None

    def _rows(self, one: _Side, plain: _Side) -> Iterator[tuple[str, fx.Node | None, str, int]]:
        """What is compared: how it is called, its node, and where both sides have it."""
        for i in range(len(plain.results)):
            node = self._node(i)
            yield f"result {i}" + (f" ({node.name})" if node else ""), node, "results", i
        named = [f"argument {i}" for i in range(len(plain.arguments) - len(self.names))] + self.names
        for i, name in enumerate(named):
            yield f"{name} after the call", None, "arguments", i
        for i in plain.grads:
            if i in one.grads:
                yield f"the gradient of {named[i]}", None, "grads", i

    def _node(self, i: int) -> fx.Node | None:
        results: Any = self.gm.graph.output_node().args[0]
        result = results[i] if isinstance(results, (tuple, list)) else results
        return result if isinstance(result, fx.Node) else None


def _difference(title: str, one: Any, plain: Any, exact: Any, loose: int, floor: float) -> Finding | None:
    """Compare a value of compiled code with eager's, and the distance of both from the same in float64.

    loose: times the tolerance that is rounding where float64 does not tell, 0: it always does. floor: what is noise.
    """
    if not isinstance(plain, torch.Tensor) or not isinstance(one, torch.Tensor):
        same = type(one) is type(plain) and one == plain
        return None if same else Finding(f"{title} is {_short(one)}, eager has {_short(plain)}")
    for what in ("dtype", "shape", "device"):
        if getattr(one, what) != getattr(plain, what):
            return Finding(f"{title} has {what} {getattr(one, what)}, eager has {getattr(plain, what)}")
    if _has_gradient(one) != _has_gradient(plain):  # a leaf is made where results are unpacked
        return Finding(f"{title} has {'no' if _has_gradient(plain) else 'a'} gradient, other than in eager mode")
    one, plain = one.detach(), plain.detach()
    error, limit = relative_error(plain, one), tolerance_of(plain.dtype)
    if error <= limit:
        return None
    if not (plain.dtype.is_floating_point or plain.dtype.is_complex):
        count = int((one != plain).sum())
        undecided = exact is not None and bool((exact.detach() != plain)[one != plain].all())
        return None if undecided else Finding(f"{count} of {plain.numel()} elements of {title} differ", rounds=True)
    if floor and float((one - plain).abs().max()) <= limit * floor:
        return None
    text = f"{title} is off by {error:.1e} of its largest element"
    far, near = 0.0, 1.0
    if exact is not None:
        far, near = (relative_error(exact.detach(), t.to(exact.dtype)) for t in (one, plain))
    if near <= _TOLD or not loose:
        text = f"{title} is off by {far:.1e} of its largest element, eager by {near:.1e}"
        return None if far <= limit + _ROUNDING * near else Finding(text)
    return None if error <= limit * loose else Finding(text, rounds=True)


def _short(value: Any) -> str:
    return f"a tensor of {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


class _Eager(fx.Interpreter):
    """Runs a graph with other constants; `wide` asks for float64 where the graph asks for less."""

    def __init__(self, gm: fx.GraphModule, constants: dict[str, Any], wide: bool) -> None:
        super().__init__(gm)
        self.constants, self.wide = constants, wide

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A constant's copy."""
        name = str(target).replace(".", "_")
        return self.constants[name] if name in self.constants else super().get_attr(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The call, in float64 if wanted."""
        return super().call_function(target, *self._widened(args, kwargs))

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The call, in float64 if wanted."""
        name = _WIDE_METHODS.get(target, target) if self.wide else target
        return super().call_method(name, *self._widened(args, kwargs))

    def _widened(self, args: Any, kwargs: Any) -> Any:
        if not self.wide:
            return args, kwargs
        return tree_map(lambda a: _WIDE.get(a, a) if isinstance(a, torch.dtype) else a, (args, kwargs))


class _Moved(torch.autograd.Function):
    """The same memory behind a node, as a tensor that may be written to."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:  # type: ignore[override]
        """A tensor on the same memory that is no view."""
        return _on(tensor.untyped_storage(), tensor, tensor.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        """The gradient."""
        return grad


def _on(storage: Any, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    view = torch.empty(0, dtype=dtype, device=like.device)
    return view.set_(storage, like.storage_offset(), like.shape, like.stride())  # type: ignore[call-overload, no-any-return]


def _copies(tensors: Sequence[Any], *, wide: bool = False) -> list[Any] | None:
    """Copies that share memory as the tensors do, all leaves of autograd's graph; None if one is no plain tensor."""
    storages: dict[Any, Any] = {}
    out: list[Any] = []
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            out.append(tensor)
            continue
        odd = type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.device.type == "meta"
        if odd or tensor.is_conj() or tensor.is_neg():
            return None
        dtype = _WIDE.get(tensor.dtype, tensor.dtype) if wide else tensor.dtype
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor.dtype if wide else None
        if key not in storages:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)  # type: ignore[call-overload]
            storages[key] = whole.to(dtype, copy=True).untyped_storage()
        out.append(_on(storages[key], tensor, dtype).requires_grad_(tensor.requires_grad))
    return out


def moved_copies(tensors: Sequence[Any]) -> list[Any]:
    """Copies that share memory as the tensors do, and that may be written to where gradients are recorded.

    Raises:
        VerificationError: one is no plain tensor.
    """
    copies = _copies(tensors)
    if copies is None:
        raise VerificationError("it is called with what is no plain tensor")
    return [_Moved.apply(c) if isinstance(c, torch.Tensor) and c.requires_grad else c for c in copies]  # type: ignore[no-untyped-call]


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _tangent(seed: int, like: torch.Tensor) -> torch.Tensor:
    """A random gradient, of numbers that every dtype has."""
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return torch.empty_like(like, requires_grad=False).copy_(noise)  # batch norm is wrong for other strides


def _random_state() -> list[torch.Tensor]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def _restore(start: tuple[list[torch.Tensor], bool]) -> None:
    """Put back a random state and whether gradients are recorded."""
    torch.set_rng_state(start[0][0])
    if start[0][1:]:
        torch.cuda.set_rng_state_all(start[0][1:])
    torch.set_grad_enabled(start[1])
