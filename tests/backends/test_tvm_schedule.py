"""TVM's loops on a CPU: tiles in registers, lanes and threads, and what does not fit left alone."""

import pytest

pytest.importorskip("tvm")

import tvm
from tvm import relax, s_tir

from firebrick.backends.tvm import scheduled


def _module(build):
    block = relax.BlockBuilder()
    build(block)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    with target:
        return relax.get_pipeline("zero")(block.get())


def _one_op(op, *shapes):
    def build(block):
        given = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
        with block.function("main", given):
            block.emit_func_output(block.emit(op(*given)))

    return _module(build)


def _text(module):
    return "\n".join(
        function.script() for _, function in module.functions_items() if type(function).__name__ == "PrimFunc"
    )


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((128, 64), (64, 256)), ("T.parallel", "T.vectorized", "T.unroll", "local")),
        (((1, 64), (64, 32)), ("T.parallel", "T.vectorized", "local")),
        (((128, 64), (64, 4)), ("T.parallel",)),
    ],
)
def test_matmuls_are_tiled_by_their_columns(shapes, words):
    text = _text(scheduled(s_tir, _one_op(relax.op.matmul, *shapes)))
    assert [w for w in words if w not in text] == []


def test_pointwise_loops_use_lanes_and_threads_when_large():
    large = _text(scheduled(s_tir, _one_op(relax.op.exp, (128, 128))))
    small = _text(scheduled(s_tir, _one_op(relax.op.exp, (8, 8))))
    assert "T.parallel" in large and "T.vectorized" in large
    assert "T.parallel" not in small
