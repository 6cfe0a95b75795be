"""Removes buffers that only pass through: a whole copy of a temporary is the temporary itself.

n1 for i in 8: y[i] = t[i]        everything that reads y reads t
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from firebrick.loops.ir import Extern, Load, Nest, Ref, Store
from firebrick.scheduling.nodes import extern_writes
from firebrick.scheduling.values import Rewriter
from firebrick.symbolic.expr import ONE, ZERO

if TYPE_CHECKING:
    from firebrick.loops.ir import Buffer, LoopProgram, Node, Value
    from firebrick.symbolic.expr import Expr

__all__ = ["forward_copies"]


def forward_copies(program: LoopProgram) -> LoopProgram:
    """The program without copies of temporaries that are written once."""
    writers: dict[str, int] = {}
    for node in program.nodes:
        names = extern_writes(node) if isinstance(node, Extern) else [s.buffer for s in node.stores]
        for name in names:
            writers[name] = writers.get(name, 0) + 1
    buffers = {b.name: b for b in program.buffers}
    returned = {o.buffer for o in program.outputs if isinstance(o, Ref)}
    same: dict[str, str] = {}
    gone: set[int] = set()
    for k, node in enumerate(program.nodes):
        source = _copied(node, buffers, writers) if isinstance(node, Nest) else None
        # Two results must not become one tensor.
        if source is not None and not (same.get(source, source) in returned and _target(node) in returned):
            target = _target(node)
            same[target] = same.get(source, source)
            if target in returned:
                returned.add(same[target])
            gone.add(k)
    if not same:
        return program
    nodes = tuple([_renamed(n, same) for k, n in enumerate(program.nodes) if k not in gone])
    outputs = tuple([_argument(o, same) for o in program.outputs])
    return replace(program, nodes=nodes, outputs=outputs)


def _target(node: Node) -> str:
    assert isinstance(node, Nest)
    return node.stores[0].buffer


def _copied(node: Nest, buffers: dict[str, Buffer], writers: dict[str, int]) -> str | None:
    """The buffer that a nest copies as a whole, element for element, if it does nothing else."""
    if len(node.stores) != 1:
        return None
    (s,) = node.stores
    v = s.value
    if not isinstance(v, Load) or v.binds or s.binds or s.mode != "set" or v.index is not s.index:
        return None
    source, target = buffers[v.buffer], buffers[s.buffer]
    if source.kind not in ("temp", "output") or target.kind not in ("temp", "output") or source.dtype != target.dtype:
        return None
    if source.device != target.device or writers.get(source.name) != 1 or writers.get(target.name) != 1:
        return None
    if source.shape != target.shape or source.strides != target.strides or s.index is not _address(node, target):
        return None
    return source.name


def _address(node: Nest, b: Buffer) -> object:
    """The address of an element, if the axes of the nest are those of the buffer."""
    wide = [(n, stride) for n, stride in zip(b.shape, b.strides, strict=True) if n is not ONE]
    axes = [a for a in node.axes if a.size is not ONE]
    if [a.size for a in axes] != [n for n, _ in wide]:
        return None
    index: Expr = ZERO
    for a, (_, stride) in zip(axes, wide, strict=True):
        index = index + stride * a.var
    return index


def _renamed(node: Node, same: dict[str, str]) -> Node:
    if isinstance(node, Extern):
        args = tuple([_argument(a, same) for a in node.args])
        return replace(node, args=args, kwargs=tuple([(k, _argument(a, same)) for k, a in node.kwargs]))

    def load(v: Load) -> Value:
        return Load(v.dtype, same[v.buffer], v.index, v.binds) if v.buffer in same else v

    rewrite = Rewriter(lambda e: e, load)
    stores = [
        Store(s.buffer, s.index, rewrite(s.value), s.mode, tuple([(v, rewrite(b)) for v, b in s.binds]))
        for s in node.stores
    ]
    if all(a.value is b.value and a.binds == b.binds for a, b in zip(stores, node.stores, strict=True)):
        return node
    return replace(node, stores=tuple(stores))


def _argument(arg: object, same: dict[str, str]) -> object:
    if isinstance(arg, Ref):
        return replace(arg, buffer=same[arg.buffer]) if arg.buffer in same else arg
    if isinstance(arg, tuple):
        return tuple([_argument(a, same) for a in arg])
    return arg
