"""Matmul with a constant factor and a constant addition on another library: OpenBLAS or Eigen.

    div(mm(x, w), c)            becomes  one call with factor 1 / c
    add(mm(x, w), b)            becomes  one call with a bias
    addmm(b, x, t(w))           becomes  one call on w as it is

Run: python examples/blas/blas_engine.py openblas     (Debian: apt-get install libopenblas-dev, or libeigen3-dev)
"""

import ctypes
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import firebrick
from firebrick.backends.engines import engine_backend
from firebrick.errors import CompileError
from firebrick.extend import SubgraphCompiler, call_of, value_of

SOURCE = Path(__file__).parent / "matmul.cpp"
BUILD = Path(tempfile.gettempdir()) / "firebrick-blas"
FLAGS = {"openblas": ["-DUSE_OPENBLAS", "-lopenblas"], "eigen": ["-I/usr/include/eigen3", "-fopenmp"]}
PACKAGES = {"openblas": "libopenblas-dev", "eigen": "libeigen3-dev"}


def load_library(engine):
    """Build matmul.cpp for one engine (seconds, once) and load it.

    Raises:
        CompileError: the compiler or the engine's Debian package is missing.
    """
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise CompileError("no C++ compiler is installed", fix="Debian: apt-get install g++")
    key = hashlib.blake2b(SOURCE.read_bytes() + engine.encode(), digest_size=8).hexdigest()
    target = BUILD / f"{engine}-{key}.so"
    if not target.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        flags = FLAGS[engine]
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", str(SOURCE), "-o", str(part), *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            missing = "cblas.h" in done.stderr or "Eigen/Dense" in done.stderr or "-lopenblas" in done.stderr
            fix = f"Debian: apt-get install {PACKAGES[engine]}" if missing else ""
            raise CompileError(f"{engine} could not be built: {done.stderr.splitlines()[0]}", fix=fix)
        part.replace(target)
    function = ctypes.CDLL(str(target)).matmul
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [pointer] * 4 + [size] * 3 + [ctypes.c_float, ctypes.c_int]
    function.restype = None
    return function


@dataclass
class Step:
    """out = factor * left @ right + bias; a factor or bias that comes later in the graph is added to the step."""

    left: str
    right: str
    transposed: bool
    out: str
    factor: float = 1.0
    bias: str = ""


class Blas(SubgraphCompiler):
    """Claims float32 matmuls of two matrices and the constant division, product or bias after them."""

    dtypes = frozenset({torch.float32})
    devices = frozenset({"cpu"})
    contiguous = True
    tolerance = 1e-4

    def __init__(self, engine="openblas"):
        self.name = engine
        self.function = load_library(engine)

    def supports(self, node):
        """mm and addmm; t of a weight; div and mul by a number, add of a bias vector, directly after them."""
        call = call_of(node)
        if call.name in ("mm", "addmm"):
            return not {"alpha", "beta"} & set(call.arguments) or "scaled addmm"
        if call.name == "transpose":
            return node.args[0].op == "get_attr" or "only weights can be transposed"
        source, other = call.arguments.get("self"), call.arguments.get("other")
        follows = isinstance(source, torch.fx.Node) and call_of(source) is not None and call_of(source).name == "mm"
        if call.name in ("div", "mul") and isinstance(other, (int, float)):
            return (follows and len(source.users) == 1) or "not directly after a matmul"
        if call.name == "add" and isinstance(other, torch.fx.Node) and follows:
            return (len(source.users) == 1 and other.op == "get_attr" and value_of(other).dim() == 1) or "no bias"
        return "no matmul"

    def compile(self, graph, example_inputs):
        """A list of steps, each one call of the library."""
        steps, places, constants = [], {}, {}
        for node in graph.graph.nodes:
            call = call_of(node)
            if node.op == "get_attr":
                constants[node.name] = getattr(graph, node.target).detach().contiguous()
            elif call is None:
                continue
            elif call.name == "transpose":
                places[node.name] = (node.args[0].name, True)
            elif call.name == "mm":
                right, transposed = places.get(call.arguments["mat2"].name, (call.arguments["mat2"].name, False))
                steps.append(Step(call.arguments["self"].name, right, transposed, node.name))
            elif call.name == "addmm":
                right, transposed = places.get(call.arguments["mat2"].name, (call.arguments["mat2"].name, False))
                bias = call.arguments["self"].name
                steps.append(Step(call.arguments["mat1"].name, right, transposed, node.name, bias=bias))
            else:
                step = next(s for s in steps if s.out == call.arguments["self"].name)
                step.out = node.name
                if call.name == "add":
                    step.bias = call.arguments["other"].name
                else:
                    number = call.arguments["other"]
                    step.factor = 1 / number if call.name == "div" else number
        inputs = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
        outputs = [n.name for n in graph.graph.output_node().args[0]]
        return lambda *tensors: self._run(steps, constants, inputs, outputs, tensors)

    def _run(self, steps, constants, inputs, outputs, tensors):
        known = {**constants, **dict(zip(inputs, tensors, strict=True))}
        for step in steps:
            left, right = known[step.left], known[step.right]
            n = right.shape[0] if step.transposed else right.shape[1]
            out = known[step.out] = torch.empty(left.shape[0], n)
            bias = known[step.bias].expand(n).contiguous() if step.bias else None
            self.function(
                left.data_ptr(),
                right.data_ptr(),
                bias.data_ptr() if bias is not None else None,
                out.data_ptr(),
                *left.shape,
                n,
                step.factor,
                int(step.transposed),
            )
        return tuple(known[name] for name in outputs)


def main():
    """Claim BERT's matmuls and compare."""
    engine = sys.argv[1] if len(sys.argv) > 1 else "openblas"
    from firebrick.tools.models import build_model

    model, inputs = build_model("bert")
    model = model.eval()
    compiled = firebrick.compile(model, backend=engine_backend(Blas(engine), report=print))
    with torch.no_grad():
        wanted, found = model(**inputs)[0], compiled(**inputs)[0]
        for name, call in (("eager", model), (engine, compiled)):
            start = time.perf_counter()
            for _ in range(5):
                call(**inputs)
            print(f"{name}: {(time.perf_counter() - start) / 5 * 1e3:.1f} ms")
    print(f"largest difference {(wanted - found).abs().max():.1e} of {wanted.abs().max():.1f}")


if __name__ == "__main__":
    main()
