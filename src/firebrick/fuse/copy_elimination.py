"""Removes buffers that only pass through: a whole copy of a temporary is the temporary itself.

n1 for i in 8: y[i] = t[i]        everything that reads y reads t

A copy that is made to be updated is the original itself, if nobody needs that any more:

n1 for i in 8: t[i] = x[i]                        n2 for i in 3: x[x0, x0 := ...] = v[i]
n2 for i in 3: t[x0, x0 := ...] = v[i]
n3 for i in 8: x[i] = t[i]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from firebrick.fuse.dependencies import analyze, extern_writes
from firebrick.ir.index.expr import ONE, ZERO, Expr
from firebrick.ir.kernels.schedule import rename_arg
from firebrick.ir.loops.program import Buffer, Extern, Load, LoopProgram, Nest, Node, Ref, Value
from firebrick.ir.loops.values import Rewriter


def forward_copies(program: LoopProgram) -> LoopProgram:
    """The program without copies of temporaries that are written once."""
    writers = Counter[str]()
    for node in program.nodes:
        writers.update(extern_writes(node) if isinstance(node, Extern) else [s.buffer for s in node.stores])
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
    return replace(program, nodes=nodes, outputs=rename_arg(program.outputs, same.get))


def update_in_place(program: LoopProgram) -> LoopProgram:
    """The program without copies that are made only to be updated."""
    while True:
        update = _updated_copy(program)
        if update is None:
            return program
        same, gone = update
        nodes = tuple([_renamed(n, same) for k, n in enumerate(program.nodes) if k not in gone])
        program = replace(program, nodes=nodes, outputs=rename_arg(program.outputs, same.get))


def _updated_copy(program: LoopProgram) -> tuple[dict[str, str], set[int]] | None:
    """A copy that may be its original, as a renaming, and the nodes that are then idle."""
    updates = [k for k, n in enumerate(program.nodes) if isinstance(n, Nest) and any(s.binds for s in n.stores)]
    if not updates:
        return None
    facts = analyze(program.nodes)
    buffers = {b.name: b for b in program.buffers}
    returned = {o.buffer for o in program.outputs if isinstance(o, Ref)}
    for first in updates:
        nest = program.nodes[first]
        if not isinstance(nest, Nest) or len(nest.stores) != 1:
            continue
        copy = nest.stores[0].buffer
        writers = [f.position for f in facts if copy in f.makes]
        start = program.nodes[writers[0]]
        if writers[0] == first or writers[1] != first or not isinstance(start, Nest):
            continue
        source = _whole(start, buffers)
        if source is None or any(isinstance(program.nodes[k], Extern) for k in writers):
            continue
        gone = {writers[0]}
        later = [f.position for f in facts if source in f.makes and f.position > writers[0]]
        if buffers[source].kind in ("input", "const"):
            # The updated copy must be all that becomes of it.
            back = program.nodes[later[0]] if len(later) == 1 else None
            if copy in returned or not isinstance(back, Nest) or later[0] < writers[-1]:
                continue
            if back.stores[0].buffer != source or _whole(back, buffers) != copy:
                continue
            gone.add(later[0])
        elif later or buffers[source].kind != "temp" or source in returned:
            continue
        if all(f.position < first for f in facts if source in f.uses):
            return {copy: source}, gone
    return None


def _whole(node: Nest, buffers: dict[str, Buffer]) -> str | None:
    """The buffer that a nest copies as a whole to another of the same layout, element for element."""
    (s,) = node.stores[:1] if len(node.stores) == 1 else (None,)
    if s is None or s.binds or s.mode != "set" or not isinstance(s.value, Load) or s.value.binds:
        return None
    source, target = buffers[s.value.buffer], buffers[s.buffer]
    if s.value.index is not s.index or source.dtype != target.dtype or source.device != target.device:
        return None
    if source.shape != target.shape or _stepping(source) != _stepping(target) or s.index is not _address(node, target):
        return None
    return source.name


def _stepping(b: Buffer) -> list[Expr]:
    return [stride for n, stride in zip(b.shape, b.strides, strict=True) if n is not ONE]


def _target(node: Node) -> str:
    assert isinstance(node, Nest)
    return node.stores[0].buffer


def _copied(node: Nest, buffers: dict[str, Buffer], writers: dict[str, int]) -> str | None:
    """The temporary that a nest copies as a whole, if both are written once."""
    name = _whole(node, buffers)
    if name is None:
        return None
    source, target = buffers[name], buffers[node.stores[0].buffer]
    if source.kind not in ("temp", "output") or target.kind not in ("temp", "output"):
        return None
    return name if writers.get(name) == writers.get(target.name) == 1 and source.strides == target.strides else None


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
        return replace(node, args=rename_arg(node.args, same.get), kwargs=rename_arg(node.kwargs, same.get))

    def load(v: Load) -> Value:
        return Load(v.dtype, same[v.buffer], v.index, v.binds) if v.buffer in same else v

    rewrite = Rewriter(lambda e: e, load)
    stores = tuple([rewrite.store(s, same.get(s.buffer, "")) for s in node.stores])
    return node if stores == node.stores else replace(node, stores=stores)
