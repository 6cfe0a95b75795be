"""The joint graph: forward and backward of a torch-level graph as one functional, decomposed ATen graph.

The forward is traced with gradients recorded, on fake tensors; the autograd engine then runs on these, under the
same tracer, so that what it computes lands on the same tape.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functional_call
from torch.utils import _pytree as pytree

from firebrick.config import Config
from firebrick.errors import LoweringError, RefusedBackward, UserLocation
from firebrick.fakes.mode import new_fake_mode
from firebrick.fakes.node_values import acts
from firebrick.ir.graph.aten import Alias, AtenGraph
from firebrick.ir.graph.calls import tensors_in
from firebrick.ir.graph.nested import CHECKPOINT, Body, Hooked, Nested, Transform
from firebrick.ir.index.sizes import expressions, has_symbols, sizes_in
from firebrick.runtime.bits import Bits, bits_of
from firebrick.targets.base import Target
from firebrick.trace.aliasing import Origin, Storage, Value, overlaps
from firebrick.trace.function_recipes import FUNCTIONS
from firebrick.trace.inference_trace import Finish, Trace, trace_alone, tracing_state
from firebrick.trace.linear import nonlinear
from firebrick.trace.recompute import is_random
from firebrick.trace.result_cuts import Cuts, NotApart, cuts_of, ends_of, gradients_in, in_order
from firebrick.trace.selective import MUST_SAVE, selective_contexts
from firebrick.trace.tape import Draws, Record, map_records
from firebrick.trace.tracer import fake_like


@dataclass(slots=True)
class JointGraph:
    """Forward and backward in one graph.

    gm: as an AtenGraph's. Placeholders: the inputs, then one tangent for each position in `tangents`. Output: `count`
      results of the forward (new values of `mutated`, the user's outputs, hidden bases of outputs that alias), then
      one gradient for each of `wrt`, None where no result depends on it.
    tangents: positions of the results that need a gradient.
    wrt: names of the placeholders and constants that need a gradient.
    dirty: names in `mutated` whose new value has a gradient of its own.
    grads: for each user output, whether it requires a gradient; None for one that does, but has no history: a view
      that was made where gradients were not recorded.
    reach: for each of `wrt`, which tangents (positions in `tangents`) lead to it.
    groups: the tangents, those together whose backward functions share what eager PyTorch saves.
    bits: of inputs and constants, as an AtenGraph's.
    boundaries: those of `wrt` that are results, which other results are made of: the position of each.
    cuts: positions of results at which a history can begin, by their numbers among those of the torch-level graph.
    behind: positions in `tangents`, in the order of the graph, of results of which others are made that get values
      from before past them too, and of those others -> the numbers of the results that each is made of.
    of: names of what the results are gradients for, where the forward is gradients.
    hidden: names of the torch-level nodes that are results only to be boundaries, behind those of the caller: what
      custom Functions give whose gradients are not linear, so that the engine adds before it calls these.
    twisted: some such are no boundaries, and second gradients would be wrong.
    own: positions in `tangents` of results whose own backward reads them.
    refused: what eager mode raises where it differentiates a result, by positions in `tangents`.
    held: inputs that eager mode's nodes save, though the gradients may not read them: writes to these are errors.
    """

    gm: fx.GraphModule
    constants: dict[str, torch.Tensor]
    mutated: list[str]
    outputs: list[Alias | None]
    count: int
    tangents: list[int]
    wrt: list[str]
    dirty: frozenset[str]
    grads: list[bool | None]
    reach: list[tuple[int, ...]]
    groups: list[tuple[int, ...]]
    bits: dict[str | int, Bits] = field(default_factory=dict)
    name: str = "graph"
    boundaries: dict[str, int] = field(default_factory=dict)
    cuts: dict[int, int] = field(default_factory=dict)
    behind: dict[int, tuple[int, ...]] = field(default_factory=dict)
    of: list[str] = field(default_factory=list)
    hidden: tuple[str, ...] = ()
    twisted: bool = False
    own: tuple[int, ...] = ()
    refused: dict[int, RuntimeError] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)

    def signature(self) -> tuple[Any, ...]:
        """What passes may not change: inputs, and the number and metadata of results."""
        metas = [_meta(r) for part in self.results() for r in part]
        return [n.name for part in self.placeholders() for n in part], metas

    def placeholders(self) -> tuple[list[fx.Node], list[fx.Node]]:
        """Inputs and tangents."""
        placeholders = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        count = len(placeholders) - len(self.tangents)
        return placeholders[:count], placeholders[count:]

    def results(self) -> tuple[list[Any], list[Any]]:
        """What the forward returns, and the gradients."""
        outputs: Any = self.gm.graph.output_node().args[0]
        return list(outputs[: self.count]), list(outputs[self.count :])


def _meta(result: Any) -> Any:
    val = result.meta["val"] if isinstance(result, fx.Node) else result
    return (val.dtype, expressions(val.shape)) if isinstance(val, torch.Tensor) else val


def trace_joint(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    exact: bool = False,
    above: Sequence[Sequence[int]] = (),
    entered: Sequence[int] | None = None,
    hidden: Sequence[str] = (),
) -> JointGraph:
    """Trace `gm` and its gradients; `exact`: ops are only taken apart where the parts compute the bits of the whole.

    Args:
        above: the forward is not `gm` but its gradients for these of its tangents, or the gradients of those, and so
            on. The tangents come behind the inputs, and each result is the gradient of one of `wrt`.
        entered: at which of the results where a history can begin (`cuts_of`) it does; None: where nothing goes past
            them. Where the forward is gradients, they are inputs too, before the tangents.
        hidden: as the JointGraph's, where the forward is gradients.

    Raises:
        LoweringError: the graph does something that has no functional form.
    """
    cuts = cuts_of(gm.graph, hidden) if entered is None or entered else Cuts({}, {}, {})
    chosen = cuts.stages if entered is None else dict([row for i, row in enumerate(cuts.ends.items()) if i in entered])
    if entered is not None and len(chosen) != len(entered):
        raise LoweringError("fewer results are apart than when the graph was traced first")
    try:
        first = _JointTrace(gm, example_inputs, exact, cuts._replace(stages=chosen), hidden)
        joint = first.run_joint(above)
    except NotApart:
        if above:
            raise LoweringError("results of the graph were apart when it was traced first") from None
        first = _JointTrace(gm, example_inputs, exact, cuts._replace(stages={}))
        joint = first.run_joint(above)
    if above or entered is not None or not first.twisted:
        return replace(joint, twisted=not above and bool(first.twisted))
    ends = [ends_of(node) for node in first.twisted]
    names = [name for row in ends for name in row or ()]
    cuts = cuts_of(gm.graph, names)
    if not first.read_again and None not in ends and {n.name for n in cuts.stages}.issuperset(names):
        with suppress(NotApart):
            return _JointTrace(gm, example_inputs, exact, cuts, names).run_joint(above)
    return replace(joint, twisted=True)


def trace_inference(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, targets: Mapping[str, Target] | None = None
) -> AtenGraph:
    """As `trace_alone`, also where the graph asks for gradients of its own."""
    if not gradients_in(gm.graph):
        return trace_alone(gm, example_inputs, config, targets)
    return _JointTrace(gm, example_inputs, config.numerics == "eager", Cuts({}, {}, {})).run()


class _Entry(torch.autograd.Function):
    """Makes a graph input out of a leaf: unlike a leaf it may be written, as a tensor with a history may."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)  # else it would be a view, whose history ends where it is written to under `no_grad`
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient, None


def _history(
    results: Sequence[torch.Tensor], leaves: Iterable[torch.Tensor]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The results that lead to each leaf in autograd's graph; and the results, in groups that share what it saves."""
    every = range(len(results))
    if len(results) < 2:
        return [tuple(every) for _ in leaves], [(i,) for i in every]
    node_of = [torch.autograd.graph.get_gradient_edge(result).node for result in results]
    below: dict[Any, list[Any]] = {}
    above: Counter[Any] = Counter()
    for node in _nodes_behind(node_of):
        below[node] = [n for n, _ in node.next_functions if n is not None]
        above.update(below[node])
    bits: Counter[Any] = Counter()  # of a node: the results whose gradient it passes on
    for i, node in enumerate(node_of):
        bits[node] |= 1 << i
    waiting = [node for node in below if not above[node]]
    groups = [1 << i for i in every]
    while waiting:
        node = waiting.pop()
        for other in below[node]:
            bits[other] |= bits[node]
            above[other] -= 1
            waiting += [other] * (not above[other])
        touched = [g for g in groups if g & bits[node]]
        if len(touched) > 1 and any(getattr(node, n) != () for n in dir(node) if n.startswith("_raw_saved")):
            groups = [g for g in groups if not g & bits[node]] + [sum(touched)]
    reached = [bits[torch.autograd.graph.get_gradient_edge(leaf).node] for leaf in leaves]
    reach, together = [[tuple([i for i in every if b >> i & 1]) for b in row] for row in (reached, groups)]
    return reach, sorted(together)


def _stop(result: torch.Tensor) -> None:
    """Have gradients that reach a result from now on be for it, and go no further."""
    node, at = result.grad_fn, result.output_nr
    node.register_prehook(lambda given: (*given[:at], None, *given[at + 1 :]))  # type: ignore[union-attr]


def _is_made_of(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether autograd knows one tensor as made of another."""
    return any((other.grad_fn, other.output_nr) in node.next_functions for node in _nodes_behind([one.grad_fn]))


def _nodes_behind(nodes: Iterable[Any]) -> Iterable[Any]:
    """The engine's nodes that these lead to, and these, each once."""
    seen, waiting = {None}, [*nodes]
    while waiting:
        if (node := waiting.pop()) not in seen:
            seen.add(node)
            yield node
            waiting += [other for other, _ in node.next_functions]


class _JointTrace(Trace):
    """One run over the nodes of a torch-level graph, recorded by the autograd engine."""

    def __init__(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], exact: bool, cuts: Cuts, hidden: Sequence[str] = ()
    ) -> None:
        super().__init__(gm, example_inputs, exact)
        self.cuts, self.hidden, self.above, self.records = cuts, hidden, False, True
        self.inner: list[Value] = []  # values of the hidden results
        self.custom: dict[int, fx.Node] = {}  # position of a record -> the call of a Function whose backward makes it
        self.twisted: list[fx.Node] = []  # those calls whose gradients are not linear
        self.read_again = False  # some of these read their own results, whose part the engine would add too
        self.ends: dict[str, tuple[fx.Node, Value, int]] = {}  # results at which a history begins; version of memory
        self.of: list[str] = []
        self.early: set[fx.Node] = set()  # results before the last of the graph's own gradients
        self.refused: dict[int, RuntimeError] = {}  # position of a result -> what its gradient raises in eager mode
        sizes = getattr(self.tracer.fake_mode, "sizes", None)
        self.tracer.fake_mode = new_fake_mode(sizes)  # capture's fake tensors have histories of their own
        self.leaves: dict[str, torch.Tensor] = {}
        self.entries: dict[int, Any] = {}  # id of an input's fake tensor -> the history that it begins with
        self.kept: list[Record] = []  # what policies of checkpoints save
        self.calls: list[int] = []  # autograd's sequence number when each call began
        self.stacks: list[tuple[UserLocation, ...]] = []  # and its place, for what is computed in its backward
        self.called: list[fx.Node] = []
        self.hook: fx.Node | None = None  # the call that registered the hook that runs

    def run_joint(self, above: Sequence[Sequence[int]]) -> JointGraph:
        self.above = bool(above)
        with tracing_state(torch.is_grad_enabled()):
            results = self.walk()
        if any(self.tracer.constants[name].requires_grad for name in self.tracer.literals):
            raise LoweringError("a function of the graph uses a tensor that needs a gradient and is none of its inputs")
        with tracing_state():
            finish = _JointFinish(self, results)
            for present in above:
                finish = _GradientsFinish(self, finish.differentiated(present))
            return finish.run_joint()

    def node(self, node: fx.Node) -> Any:
        value = self.env[node] = super().node(node)
        if node.target is torch.autograd.grad:
            self.early |= self.cuts.ends.keys() & self.env.keys()
        if node.name in self.hidden:
            self.inner.append(value)
        for stage in [s for s, end in self.cuts.stages.items() if end is node]:
            self.env[stage] = self._begun(stage, self.env[stage])
        return self.env[node]

    def returned(self, node: fx.Node) -> Any:
        self.env.update((end, value) for end, value, _ in self.ends.values())
        return super().returned(node)

    def _begun(self, node: fx.Node, value: Value) -> Value:
        """What later calls take for a result: the same memory without its history."""
        name = self.new_name(f"result_{len(self.ends)}")
        if not value.fake.requires_grad or value.fake.is_leaf or any(bits_of(value.fake)):
            raise NotApart
        self.ends[name] = node, value, value.storage.version
        if self.above:
            like = self.example_inputs[len(self.inputs)]
            if (like.shape, like.dtype) != (value.fake.shape, value.fake.dtype):
                raise NotApart
            begun = self._input(name, like)
            if node in self.early:  # gradients of the graph's own go through it, others are for it and go no further
                self.leaves[name], begun = value.fake, value
                _stop(value.fake)
            return begun
        with self.tracer, torch.enable_grad():
            self.leaves[name] = value.fake.detach().requires_grad_()
        return self.tracer.value_of(self.leaves[name])

    def new_name(self, name: str) -> str:
        """A name for another input, which nothing in the graph has."""
        names = {n.name for n in self.gm.graph.nodes}.union(self.tracer.constants, self.leaves)
        names.update(v.storage.origin.name for v in self.inputs if v.storage.origin is not None)
        while name in names:
            name = "_" + name
        return name

    def _placeholder(self, node: fx.Node) -> Any:
        index = len(self.inputs)
        real, val = self.example_inputs[index], node.meta.get("val")
        if not isinstance(real, torch.Tensor):
            raise LoweringError(f"graph input {node.name} is a {type(real).__name__}, not a tensor")
        like = next((t for t in (real, val) if isinstance(t, FakeTensor) and has_symbols(t)), real)
        if isinstance(like, FakeTensor) and sizes_in(like.shape) is None and has_symbols(like):
            raise LoweringError(f"graph input {node.name} has symbolic sizes of another compiler")
        return self._input(node.name, like, real.requires_grad)

    def _input(self, name: str, like: torch.Tensor, grad: bool = True) -> Value:
        fake = fake_like(self.tracer.fake_mode, like)
        if grad:
            with torch.enable_grad():
                leaf = self.leaves[name] = fake_like(self.tracer.fake_mode, like).requires_grad_()
                fake = _Entry.apply(leaf, fake)
            self.entries[id(fake)] = fake.grad_fn
        value = self.tracer.value_from("placeholder", fake, Origin("input", name, len(self.inputs)))
        self.inputs.append(value)
        return value

    def _get_attr(self, node: fx.Node) -> Any:
        value = super()._get_attr(node)
        return self._noted(value) if isinstance(value, Value) else value

    def _noted(self, constant: Value) -> Value:
        if constant.fake.requires_grad and constant.fake.is_leaf:
            self.leaves[constant.storage.origin.name] = constant.fake  # type: ignore[union-attr]
        return constant

    def _call_module(self, node: fx.Node) -> Any:
        """Call the module on fake parameters: the engine must not know the real ones."""
        module = self.gm.get_submodule(str(node.target))
        state: dict[str, torch.Tensor] = {}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            flat_name = f"{node.target}.{name}".replace(".", "_")
            state[name] = self.tracer.bind(self._noted(self.tracer.constant(tensor, flat_name)))
        return self._dispatch(lambda *args, **kwargs: functional_call(module, state, args, kwargs), node)

    def _dispatch(self, target: Any, node: fx.Node) -> Any:
        stack = self.tape.stack
        if stack:
            stack = (*stack[:-1], replace(stack[-1], nodes=tuple([~n for n in stack[-1].nodes])))
        if isinstance(target, Transform) and target.api is CHECKPOINT:
            target = self._checkpointed(target)
        if isinstance(target, Hooked):
            target = Hooked(partial(self._hook, node, target.bodies[0]))  # type: ignore[arg-type]
        if isinstance(target, Nested) and target.saves:
            target = partial(target, keep=self._keep)  # type: ignore[call-arg]
        self.functions = {} if torch._C._autograd._top_saved_tensors_default_hooks(True) else FUNCTIONS
        if target is torch.autograd.grad and self.tracer.turned:
            raise LoweringError("torch.autograd.grad() behind a view that was reshaped in place")
        self.calls.append(torch._C._autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self.stacks.append(stack)
        self.called.append(node)
        return super()._dispatch(target, node)

    def _checkpointed(self, target: Transform) -> Transform:
        """A checkpoint that draws the same numbers when it is computed again, and what its policy has it save."""
        again, body = copy.copy(target), target.bodies[0]
        draws = Draws() if target.options.get("preserve_rng_state", True) else None

        def run(*args: Any) -> Any:
            with self.tape.drawing(draws) if draws is not None else nullcontext():
                return body(*args)

        again.bodies = (run,)  # type: ignore[assignment]
        if "context_fn" in target.options:
            contexts = partial(selective_contexts, target.options["context_fn"], self.tracer, draws, self.kept)
            again.options = {**target.options, "context_fn": contexts}
        return again

    def _keep(self, packed: Any) -> None:
        """Save what hooks on saved tensors have packed."""
        self.kept += [self.tracer.read(self.tracer.value_of(tensor)) for tensor in tensors_in(packed)]

    def _hook(self, node: fx.Node, body: Body, *args: Any) -> Any:
        """A hook inside of the graph, whose calls are noted as those of a custom Function's backward are."""
        self.hook = node
        try:
            return body(*args)
        finally:
            self.hook = None

    def locate(self) -> None:
        """Say of what is recorded next that it is the backward of a call: by the complement of the call's number."""
        node = torch._C._current_autograd_node()  # type: ignore[attr-defined]
        if node is not None and (at := bisect_right(self.calls, node._sequence_nr())):
            self.tape.stack = self.stacks[at - 1]
            self.custom.pop(len(self.tape.records), None)  # of a call that recorded nothing
            if self.hook is not None or issubclass(type(node), torch.autograd.function.BackwardCFunction):
                self.custom[len(self.tape.records)] = self.hook or self.called[at - 1]


class _JointFinish(Finish):
    """Runs the backward of what the forward returns, then makes the graph."""

    trace: _JointTrace
    keeps_bits = False

    def run_joint(self) -> JointGraph:
        names, dirty, tangents = self._differentiable()
        grads = [self._requires_grad(r) for r in self.results]
        leaves = self.trace.leaves
        reach, groups = _history([self.shown[p] for p in tangents], leaves.values())
        boundaries = {} if self.trace.above else self._boundaries(tangents, dirty)
        cuts, behind = self._behind(tangents) if not self.trace.above and not dirty else ({}, {})
        needs = [(tangents.index(boundaries[n]), by) for n, by in zip(leaves, reach, strict=True) if n in boundaries]
        past = [(tangents.index(cuts[k]), (i,)) for i, row in behind.items() for k in row]
        apart = [(t, by) for t, by in past if not any({t, *by} <= {*group} for group in groups)]
        groups = in_order(groups, [*needs, *apart])
        tangent_values = self._tangents(tangents)
        own = tuple([i for i, p in enumerate(tangents) if not dirty and self._reads_itself(p)])
        held = [] if self.trace.above else self._held([self.shown[p].grad_fn for p in tangents])
        computed = self._backward(tangents, tangent_values)
        if self.trace.custom and not self.trace.above:
            twisted = nonlinear(self.tracer.tape.records, [v.record for v in tangent_values], self.trace.custom)
            self.trace.twisted = list(dict.fromkeys(self.trace.custom[i] for i in twisted))
            self.trace.read_again = any(map(self._reads_own_result, self.trace.custom))
        gradients = [None if g is None else self.tracer.read(self.tracer.value_of(g)) for g in computed]
        gm, constants = self.graph([*self.flat, *gradients])
        for record in self.trace.kept:
            if record.node is not None:
                record.node.meta[MUST_SAVE] = True
        refused = {tangents.index(p): error for p, error in self.trace.refused.items()}
        rest = names, self.outputs, len(self.flat), tangents, [*leaves], dirty, grads, reach, groups, self.tracer.bits
        joint = JointGraph(gm, constants, *rest, boundaries=boundaries, of=self.trace.of, own=own, refused=refused)
        return replace(joint, hidden=tuple(self.trace.hidden), cuts=cuts, behind=behind, held=held)

    def _held(self, nodes: Sequence[Any]) -> list[str]:
        """As the JointGraph's; `nodes` make its results."""
        saved: list[torch.Tensor] = []
        for node in _nodes_behind(nodes):
            for name in [n for n in dir(node) if n.startswith("_raw_saved_")]:
                with suppress(RuntimeError):  # freed by a `torch.autograd.grad` of the graph
                    saved += [t for raw in pytree.tree_leaves(getattr(node, name)) if raw for t in tensors_in(raw.data)]
        ids = {id(t) for one in saved for t in (one, one._base)}
        inputs = (*self.trace.inputs, *self.tracer._constant_values.values())
        return [
            v.storage.origin.name for v in inputs if id(v.fake) in ids and v.storage.origin and not v.storage.version
        ]

    def _reads_own_result(self, position: int) -> bool:
        """Whether a call is of the backward of a Function that is not linear, and reads what this returned."""
        node = self.trace.custom[position]
        used: list[Record] = []
        recorded = self.tracer.tape.records[position : position + 1]  # none, if the backward's last call recorded none
        map_records([(r.args, r.kwargs) for r in recorded], used.append)
        results = [v.record for v in pytree.tree_leaves(self.trace.env[node]) if isinstance(v, Value)]
        return node in self.trace.twisted and any(r is own for r in results for own in used)

    def find_results(self) -> None:
        super().find_results()
        for value in self.trace.inner:
            if not any(value is r for r in self.results):
                self.shown[len(self.flat)] = value.fake
                self.flat.append(self._returned(value))

    def _boundaries(self, tangents: Sequence[int], dirty: frozenset[str]) -> dict[str, int]:
        """Positions of the results at which a history begins."""
        boundaries = {}
        for name, (_, value, version) in self.trace.ends.items():
            at = self._position(value, tangents)
            if at < len(self.mutated) or value.storage.version != version or dirty:
                raise NotApart
            boundaries[name] = at
        return boundaries

    def _position(self, value: Any, tangents: Sequence[int]) -> int:
        """The position of a result that has a tangent and memory of its own; -1: it is none."""
        others = (r for r in self.results if isinstance(r, Value) and r is not value and r.fake.requires_grad)
        alone = isinstance(value, Value) and not any(r.storage is value.storage for r in others)
        return next((p for p in tangents if alone and self.shown[p] is value.fake), -1)

    def _behind(self, tangents: Sequence[int]) -> tuple[dict[int, int], dict[int, tuple[int, ...]]]:
        """As the JointGraph's `cuts` and `behind`."""
        (ends, stages, behind), env, early = self.trace.cuts, self.trace.env, self.trace.early
        for n in behind if early else ():
            made_of = {m for m in early if m is not n and _is_made_of(env[n].fake, env[m].fake)}
            behind = {**behind, n: behind[n] - early | made_of}
        at = {n: self._position(self.trace.env[n], tangents) for n in behind}
        numbers = {n: k for k, n in enumerate(ends) if at[n] >= 0 and not any(bits_of(self.trace.env[n].fake))}
        past = {n for n, row in behind.items() if at[n] >= 0 and not row <= stages.keys() and row <= numbers.keys()}
        linked = past.union(*[behind[n] - stages.keys() for n in past])
        rows = {n: sorted([numbers[m] for m in behind[n]]) if n in past else () for n in behind if n in linked}
        return {k: at[n] for n, k in numbers.items()}, {tangents.index(at[n]): tuple(row) for n, row in rows.items()}

    def _differentiable(self) -> tuple[list[str], frozenset[str], list[int]]:
        """Names of what is written, those of them with gradients of their own, and positions that have tangents."""
        self.find_results()
        if any(o.name in self.tracer.bits for o in self.mutated):
            raise LoweringError("a tensor with a negative or conjugate bit is written to, and gradients are needed")
        names = [o.name for o in self.mutated]
        bases = {o.name: s.base for o, s in self.mutated.items()}
        dirty = frozenset(n for n, f in bases.items() if f.grad_fn not in (None, self.trace.entries.get(id(f))))
        tangents = [
            i
            for i, fake in sorted(self.shown.items())
            if fake.requires_grad and not self._is_severed(fake) and (i >= len(names) or names[i] in dirty)
        ]
        return names, dirty, tangents

    def differentiated(self, present: Sequence[int]) -> list[Value | None]:
        """The gradients for these of the tangents, recorded by the engine; the tangents are inputs from now on."""
        trace, (_, dirty, positions) = self.trace, self._differentiable()
        if dirty:
            raise LoweringError("the graph writes to a tensor whose new value has gradients")
        positions = [positions[i] for i in present]
        own = [p for p in positions if self._reads_itself(p)]
        values = self._tangents(own)
        trace.inputs += values
        examples = trace.example_inputs[len(trace.inputs) :]
        tangents = self._tangents(positions)
        for value, example in zip(tangents, examples, strict=False):
            if example.requires_grad:
                trace.leaves[value.storage.origin.name] = value.fake.requires_grad_()  # type: ignore[union-attr]
        trace.inputs += tangents
        trace.of = [name for name, leaf in trace.leaves.items() if not any(leaf is t.fake for t in tangents)]
        computed = self._backward(positions, tangents, again=True)
        for fake, value in zip([self.shown[p] for p in own], values, strict=True):
            trace.leaves[value.storage.origin.name] = fake  # type: ignore[union-attr]
            _stop(fake)
        with self.tracer, torch.enable_grad():  # the parts of a complex number can't be returned as a view of it
            apart = (g is not None and g.dtype != self.tracer.value_of(g).storage.base.dtype for g in computed)
            computed = [g.clone() if other else g for g, other in zip(computed, apart, strict=True)]
        return [None if g is None else self.tracer.value_of(g) for g in computed]

    def _reads_itself(self, position: int) -> bool:
        """Whether the backward of a result of the graph reads this result: second gradients flow to it through that."""
        fake = self.shown[position]
        edge, saved = (fake.grad_fn, fake.output_nr), list[Any]()
        names = [n for n in dir(fake.grad_fn) if n.startswith("_saved_") or n == "saved_tensors"]
        with suppress(RuntimeError):  # it was written to since
            for name in names if type(self) is _JointFinish else ():
                saved += pytree.tree_leaves(getattr(fake.grad_fn, name))
        return any(isinstance(t, torch.Tensor) and (t.grad_fn, t.output_nr) == edge for t in saved)

    def _is_severed(self, fake: torch.Tensor) -> bool:
        """Whether a tensor is a leaf that was none of the graph's inputs."""
        try:
            return fake.is_leaf and not any(fake is leaf for leaf in self.trace.leaves.values())
        except RuntimeError as error:  # one view of several, whose memory was written to: its gradient is an error
            raise RefusedBackward(str(error)) from error

    def _requires_grad(self, result: Any) -> bool | None:
        """Whether an output requires a gradient; what it is rebuilt from must then require one."""
        if not isinstance(result, Value) or not result.fake.requires_grad:
            return False
        if self._is_severed(result.fake):
            return None
        storage, shown = result.storage, any(result.fake is fake for fake in self.shown.values())
        is_view = result.fake is not storage.base and (storage.origin is not None or not shown)
        if is_view and not storage.base.requires_grad:
            raise LoweringError("an output that needs a gradient is a view of memory that needs none")
        return True

    def _tangents(self, positions: Sequence[int]) -> list[Value]:
        """New inputs of the graph: the gradients of the results at `positions`."""
        tracer, inputs = self.tracer, self.trace.inputs
        tangents = []
        for number, position in enumerate(positions):
            name = self.trace.new_name(f"tangent_{number}")
            val = self.flat[position].val
            fake = fake_like(tracer.fake_mode, torch.empty_like(val) if overlaps(val) else val)
            record = tracer.tape.add("placeholder", (name,), {}, fake)
            tangents.append(tracer.fresh(record, fake, Origin("input", name, len(inputs) + number)))
        return tangents

    def _backward(self, positions: Sequence[int], tangents: Sequence[Value], again: bool = False) -> list[Any]:
        """Run the engine for the results at `positions`; `again`: the gradients have gradients."""
        tracer, leaves = self.tracer, list(self.trace.leaves.values())
        leaves = [leaf for leaf in leaves if not again or not any(leaf is t.fake for t in tangents)]
        if not positions or not leaves:
            return [None] * len(leaves)
        if any(fake._version != version for fake, version in tracer.turned.values()):
            raise LoweringError("autograd writes the history of a view anew, as it was before it was reshaped in place")
        shown = [self.shown[p] for p in positions]
        tracer.locate, tracer.tape.in_backward = self.trace.locate, True
        with tracer:
            try:
                gradients: Any = torch.autograd.grad(
                    shown, leaves, [t.fake for t in tangents], True, again, allow_unused=True
                )
            except RuntimeError as error:
                if "modified by an inplace operation" in str(error):
                    raise RefusedBackward("the graph writes to what its backward needs") from error
                freed = "a second time" in str(error)  # by a `torch.autograd.grad` of the graph
                if not freed and ("derivative for" not in str(error) or again):
                    raise
                if not freed and not self.trace.above:
                    raise RefusedBackward(str(error)) from error
                if len(positions) == 1:
                    self.trace.refused[positions[0]] = type(error)(str(error))
                    return [None] * len(leaves)
                alone = [self._backward([p], [t], again) for p, t in zip(positions, tangents, strict=True)]
                gradients = [[g for g in row if g is not None] for row in zip(*alone, strict=True)]
                with tracer:
                    gradients = [reduce(torch.add, row) if row else None for row in gradients]
        if any(g is not None and g.layout != torch.strided for g in gradients):
            raise LoweringError("a gradient is a sparse tensor")
        if any(t.storage.version for t in tangents):
            raise LoweringError("a backward function writes the gradient that it is given")
        tracer.locate, tracer.tape.in_backward = None, False
        return list(gradients)


class _GradientsFinish(_JointFinish):
    """As `_JointFinish`, where what the forward returns are gradients: what the graph writes is written already."""

    def find_results(self) -> None:
        Finish.find_results(self)

    def _mutations(self) -> dict[Origin, Storage]:
        written = super()._mutations()
        if any(isinstance(r, Value) and r.storage.origin in written for r in self.results):
            raise LoweringError("a gradient is a tensor that the graph writes to")
        self.written = {origin.name: storage.record for origin, storage in written.items()}
        return {}

    def graph(self, flat: list[Any]) -> tuple[fx.GraphModule, dict[str, torch.Tensor]]:
        gm, constants = super().graph(flat)
        for node in [n for n in gm.graph.nodes if n.op in ("placeholder", "get_attr") and n.target in self.written]:
            readers, now = [*node.users], self.written[node.target].node
            if now is not None and now is not node:  # the memory holds it
                now.replace_all_uses_with(node)
                gm.graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or acts(n) or is_random(n))
            if not node.users.keys().isdisjoint(readers):
                raise LoweringError(f"gradients of gradients need what {node.target} held before the graph wrote to it")
        gm.recompile()
        return gm, constants
