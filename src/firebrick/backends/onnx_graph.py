"""ATen graphs as ONNX models: one row an operator, for the engines that read ONNX.

PyTorch's own exporter takes seconds and needs `torch.export`; a claimed group is functional ATen with known shapes
already, so a table of a function an operator is enough. What has no row is not claimed.
"""

from __future__ import annotations

import importlib
import operator
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from firebrick.errors import BackendError, LoweringError
from firebrick.extend import call_of, value_of

OPSET = 20

_DTYPES = {
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int16: 5, torch.int32: 6, torch.int64: 7, torch.bool: 9,
    torch.float16: 10, torch.float64: 11,
}  # fmt: skip
"""torch dtype -> ONNX TensorProto.DataType."""


def library(name: str, fix: str) -> Any:
    """The one place that imports an engine's package.

    Raises:
        BackendError: it is not installed, or can't be loaded.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise BackendError(f"the package {name} is missing or can't be loaded: {error}", fix=fix) from error


LOOKUPS = frozenset({"embedding", "gather"})
"""Ops that must raise on an index out of range: not for engines that read past the table or put zeros instead."""


def onnx_refuses(node: fx.Node) -> str:
    """Why an ATen call has no ONNX form; empty when it has one."""
    call = call_of(node)
    if call is None:
        return "not a call"
    if call.name not in _ROWS:
        return "no ONNX form"
    for value in (value_of(node), *map(value_of, node.all_input_nodes)):
        for tensor in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(tensor, torch.Tensor) and tensor.dtype not in _DTYPES:
                return f"no ONNX dtype for {tensor.dtype}"
    if isinstance(value_of(node), (tuple, list)):
        for user in node.users:
            if user.target is operator.getitem and user.args[1] != 0:
                return "only its first result has an ONNX form"
    checks = _CHECKS.get(call.name)
    return checks(call.arguments) if checks is not None else ""


def to_onnx(
    gm: fx.GraphModule,
    name: str = "group",
    *,
    foreign: bool = False,
    about: Callable[[fx.Node], tuple[str, dict[str, str]]] | None = None,
) -> Any:
    """The ONNX ModelProto of a functional ATen graph; placeholders are its inputs, get_attr nodes its initializers.

    foreign: ops without an ONNX form become nodes of the domain `aten`, which can be looked at but not run.
    about: gives the name of the ONNX nodes that are made of a node, and facts to keep with them.

    Raises:
        LoweringError: an operator has no row.
        BackendError: onnx is not installed.
    """
    return _Model(gm, foreign, about).build(name)


class _Model:
    def __init__(
        self,
        gm: fx.GraphModule,
        foreign: bool = False,
        about: Callable[[fx.Node], tuple[str, dict[str, str]]] | None = None,
    ) -> None:
        self.gm, self.foreign, self.about = gm, foreign, about
        self.onnx = library("onnx", "pip install onnx")
        self.names: dict[fx.Node, Any] = {}
        self.taken: Counter[str] = Counter()
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.constants: dict[Any, str] = {}

    def build(self, name: str) -> Any:
        helper = self.onnx.helper
        inputs, outputs = [], []
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                self.names[node] = node.name
                inputs.append(self._info(node.name, value_of(node)))
            elif node.op == "get_attr":
                self.names[node] = self._initializer(node.name, attrgetter(str(node.target))(self.gm))
            elif node.op == "output":
                for i, result in enumerate(r for r in node.args[0] if isinstance(r, fx.Node)):
                    # Of its own name, so that an input or a value that is returned twice is legal too.
                    named = self.op("Identity", self.names[result], output=f"out_{i}")
                    outputs.append(self._info(named, value_of(result)))
            else:
                start = len(self.nodes)
                self._call(node)
                self._note(node, self.nodes[start:])
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.initializers)
        domains = sorted({n.domain for n in self.nodes if n.domain})
        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(d, 1) for d in domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source: Any = self.names[node.args[0]]  # type: ignore[index]
            self.names[node] = source[int(str(node.args[1]))] if isinstance(source, list) else source
            return
        call = call_of(node)
        row = _ROWS.get(call.name) if call is not None else None
        if self.foreign and onnx_refuses(node):
            self.names[node] = self._foreign(node)
            return
        if row is None or call is None:
            raise LoweringError(f"{node.target} has no ONNX form")
        self.names[node] = row(self, node, call.arguments)

    def _foreign(self, node: fx.Node) -> str | list[str]:
        """An op that ONNX does not have; numbers among its arguments are told in its text."""
        many = isinstance(value_of(node), (tuple, list))
        outputs = [f"{node.name}_{i}" for i in range(len(value_of(node)))] if many else [node.name]
        inputs = [n for source in node.all_input_nodes if isinstance(n := self.names[source], str)]
        kind = str(getattr(node.target, "_opname", node.target))
        proto = self.onnx.helper.make_node(kind, inputs, outputs, domain="aten", doc_string=str(node.format_node()))
        self.nodes.append(proto)
        return outputs if many else outputs[0]

    def _note(self, node: fx.Node, protos: list[Any]) -> None:
        if self.about is None or not protos:
            return
        name, facts = self.about(node)
        for proto in protos:
            proto.name = f"{name}.{self.taken[name]}" if self.taken[name] else name
            self.taken[name] += 1
            for key, value in facts.items():
                proto.metadata_props.add(key=key, value=value)

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add an ONNX node with one output."""
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def value(self, argument: Any, like: Any = None) -> str:
        """The name of an argument: a node's value, or a constant of the dtype of `like`."""
        if isinstance(argument, fx.Node):
            return self.names[argument]
        dtype = like.dtype if isinstance(like, torch.Tensor) else None
        return self.constant(torch.tensor(argument, dtype=dtype))

    def ints(self, values: Any) -> str:
        """A constant vector of int64."""
        return self.constant(torch.tensor([int(v) for v in values], dtype=torch.int64))

    def constant(self, tensor: torch.Tensor) -> str:
        """A small constant; equal ones are one."""
        key = (str(tensor.dtype), tuple(tensor.shape), repr(tensor.tolist()))
        if key not in self.constants:
            self.constants[key] = self._initializer(f"c{len(self.constants)}", tensor)
        return self.constants[key]

    def cast(self, name: str, dtype: torch.dtype) -> str:
        """The value at another dtype."""
        return self.op("Cast", name, to=_DTYPES[dtype])

    def _initializer(self, name: str, tensor: torch.Tensor) -> str:
        array = tensor.detach().cpu().contiguous().numpy()
        self.initializers.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def _info(self, name: str, value: Any) -> Any:
        return self.onnx.helper.make_tensor_value_info(name, _DTYPES[value.dtype], [int(s) for s in value.shape])


# ------------------------------------------------------------------ rows


def _unary(kind: str) -> Any:
    return lambda m, node, a: m.op(kind, m.value(a["self"]))


def _binary(kind: str) -> Any:
    def row(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
        left, right = a["self"], a["other"]
        wide = _operand_dtype(left, right, value_of(node))
        names = [_typed(m, x, wide) for x in (left, right)]
        if kind in ("Add", "Sub") and a.get("alpha", 1) != 1:
            names[1] = m.op("Mul", names[1], m.constant(torch.tensor(a["alpha"], dtype=wide)))
        result = m.op(kind, *names)
        return (
            result if kind not in _ARITHMETIC or value_of(node).dtype == wide else m.cast(result, value_of(node).dtype)
        )

    return row


_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"})


def _operand_dtype(left: Any, right: Any, result: Any) -> torch.dtype:
    """The dtype that eager computes in: the result's for arithmetic, the operands' common one for comparisons."""
    if result.dtype != torch.bool:
        return result.dtype
    kinds = [value_of(x) if isinstance(x, fx.Node) else torch.tensor(x) for x in (left, right)]
    return torch.result_type(*[torch.empty(k.shape, dtype=k.dtype, device="cpu") if k.dim() else k for k in kinds])


def _typed(m: _Model, argument: Any, dtype: torch.dtype) -> str:
    if not isinstance(argument, fx.Node):
        return m.constant(torch.tensor(argument, dtype=dtype))
    name = m.names[argument]
    return name if value_of(argument).dtype == dtype else m.cast(name, dtype)


def _bitwise(logical: str, arithmetic: str) -> Any:
    def row(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
        return _binary(logical if value_of(node).dtype == torch.bool else arithmetic)(m, node, a)

    return row


def _shape(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    return m.op("Reshape", m.value(a["self"]), m.ints(value_of(node).shape))


def _transpose(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    rank = value_of(node).dim()
    order = list(range(rank))
    i, j = a["dim0"] % rank, a["dim1"] % rank
    order[i], order[j] = order[j], order[i]
    return m.op("Transpose", m.value(a["self"]), perm=order)


def _same(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    return m.value(a["self"])


def _to_copy(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    return m.cast(m.value(a["self"]), value_of(node).dtype)


def _addmm(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    product = m.op("MatMul", m.value(a["mat1"]), m.value(a["mat2"]))
    return m.op("Add", product, m.value(a["self"]))


def _matmul(other: str = "other") -> Any:
    return lambda m, node, a: m.op("MatMul", m.value(a["self"]), m.value(a[other]))


def _linear(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    product = m.op("MatMul", m.value(a["self"]), m.op("Transpose", m.value(a["weight"]), perm=[1, 0]))
    return m.op("Add", product, m.value(a["bias"])) if a.get("bias") is not None else product


def _layer_norm(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    shape = a["normalized_shape"]
    like = value_of(a.get("self", a.get("input")))
    weight = a.get("weight")
    scale = m.value(weight) if weight is not None else m.constant(torch.ones(list(shape), dtype=like.dtype))
    rest = [m.value(a["bias"])] if a.get("bias") is not None else []
    return m.op(
        "LayerNormalization", m.value(a["self"]), scale, *rest, axis=-len(shape), epsilon=float(a.get("eps", 1e-5))
    )


def _softmax(kind: str) -> Any:
    return lambda m, node, a: m.op(kind, m.value(a["self"]), axis=int(a["dim"]))


def _attention(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    query, key = value_of(a["query"]), value_of(a["key"])
    scale = a.get("scale")
    factor = float(scale) if scale is not None else float(query.shape[-1]) ** -0.5
    turned = list(range(key.dim() - 2)) + [key.dim() - 1, key.dim() - 2]
    scaled = m.op("Mul", m.value(a["query"]), m.constant(torch.tensor(factor, dtype=query.dtype)))
    scores = m.op("MatMul", scaled, m.op("Transpose", m.value(a["key"]), perm=turned))
    mask = a.get("attn_mask")
    if mask is not None:
        fake_mask = value_of(mask)
        if fake_mask.dtype == torch.bool:
            zeros = m.constant(torch.zeros((), dtype=query.dtype))
            low = m.constant(torch.tensor(float("-inf"), dtype=query.dtype))
            scores = m.op("Add", scores, m.op("Where", m.value(mask), zeros, low))
        else:
            scores = m.op("Add", scores, m.value(mask))
    if a.get("is_causal"):
        length, keys = query.shape[-2], key.shape[-2]
        causal = torch.full((length, keys), float("-inf"), dtype=query.dtype).triu(1)
        scores = m.op("Add", scores, m.constant(causal))
    return m.op("MatMul", m.op("Softmax", scores, axis=-1), m.value(a["value"]))


def _select(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    return m.op("Gather", m.value(a["self"]), m.constant(torch.tensor(int(a["index"]))), axis=int(a["dim"]))


def _slice(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    dim = int(a.get("dim", 0))
    start, end = a.get("start"), a.get("end")
    ends = m.ints([min(int(end), 2**62) if end is not None else 2**62])
    return m.op("Slice", m.value(a["self"]), m.ints([start or 0]), ends, m.ints([dim]), m.ints([a.get("step", 1)]))


def _cat(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    parts = [x for x in a["tensors"] if value_of(x).numel() or value_of(x).dim() > 1]
    wide = value_of(node).dtype
    return m.op("Concat", *[_typed(m, x, wide) for x in parts], axis=int(a.get("dim", 0)))


def _reduce(kind: str) -> Any:
    def row(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
        source, dims = a["self"], a.get("dim")
        name = _typed(m, source, value_of(node).dtype)
        keep = int(bool(a.get("keepdim", False)))
        dims = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
        rest = [m.ints(dims)] if dims else []
        return m.op(kind, name, *rest, keepdims=keep)

    return row


def _where(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    wide = value_of(node).dtype
    return m.op("Where", m.value(a["condition"]), _typed(m, a["self"], wide), _typed(m, a["other"], wide))


def _pow(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    wide = value_of(node).dtype
    if a["exponent"] == 2:
        name = _typed(m, a["self"], wide)
        return m.op("Mul", name, name)
    return m.op("Pow", _typed(m, a["self"], wide), _typed(m, a["exponent"], wide))


def _clamp(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    like = value_of(node)
    low, high = (a.get(k) for k in ("min", "max"))
    bounds = [m.constant(torch.tensor(b, dtype=like.dtype)) if b is not None else "" for b in (low, high)]
    return m.op("Clip", m.value(a["self"]), *bounds)


def _convolution(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    inputs = [m.value(a["self"]), m.value(a["weight"])]
    if a.get("bias") is not None:
        inputs.append(m.value(a["bias"]))
    padding = list(a["padding"])
    return m.op(
        "Conv",
        *inputs,
        strides=list(a["stride"]),
        pads=padding + padding,
        dilations=list(a["dilation"]),
        group=int(a["groups"]),
    )


def _max_pool(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    kernel = list(a["kernel_size"])
    padding = list(a.get("padding", [0, 0]))
    return m.op(
        "MaxPool",
        m.value(a["self"]),
        kernel_shape=kernel,
        strides=list(a.get("stride", []) or kernel),
        pads=padding + padding,
        dilations=list(a.get("dilation", [1, 1])),
        ceil_mode=int(bool(a.get("ceil_mode", False))),
    )


def _full(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    like = value_of(node)
    fill = a.get("fill_value", a.get("s", 0))
    one = m.constant(torch.tensor(fill, dtype=like.dtype))
    return m.op("Expand", one, m.ints(like.shape)) if like.dim() else one


def _arange(m: _Model, node: fx.Node, a: dict[str, Any]) -> str:
    like = value_of(node)
    start, step = a.get("start", 0), a.get("step", 1)
    return m.constant(torch.arange(start, a["end"], step, dtype=like.dtype))


_ROWS: dict[str, Any] = {
    **{
        name: _unary(kind)
        for name, kind in {
            "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
            "neg": "Neg", "abs": "Abs", "erf": "Erf", "sin": "Sin", "cos": "Cos", "floor": "Floor", "ceil": "Ceil",
            "reciprocal": "Reciprocal", "logical_not": "Not", "isnan": "IsNaN", "hardswish": "HardSwish",
        }.items()
    },
    **{
        name: _binary(kind)
        for name, kind in {
            "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min",
            "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
            "logical_and": "And", "logical_or": "Or",
        }.items()
    },
    "bitwise_and": _bitwise("And", "BitwiseAnd"),
    "bitwise_or": _bitwise("Or", "BitwiseOr"),
    "view": _shape, "unsqueeze": _shape, "squeeze": _shape, "flatten": _shape,
    "transpose": _transpose,
    "clone": _same, "alias": _same, "detach": _same, "lift_fresh_copy": _same, "_to_copy": _to_copy,
    "addmm": _addmm, "mm": _matmul("mat2"), "bmm": _matmul("mat2"), "matmul": _matmul(), "linear": _linear,
    "native_layer_norm": _layer_norm, "layer_norm": _layer_norm,
    "_softmax": _softmax("Softmax"), "softmax": _softmax("Softmax"), "_log_softmax": _softmax("LogSoftmax"),
    "silu": lambda m, node, a: m.op("Mul", m.value(a["self"]), m.op("Sigmoid", m.value(a["self"]))),
    "scaled_dot_product_attention": _attention, "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "select": _select, "slice": _slice, "cat": _cat,
    "mean": _reduce("ReduceMean"), "sum": _reduce("ReduceSum"),
    "amax": _reduce("ReduceMax"), "amin": _reduce("ReduceMin"),
    "where": _where, "pow": _pow, "clamp": _clamp, "convolution": _convolution,
    "max_pool2d_with_indices": _max_pool, "full": _full, "scalar_tensor": _full, "arange": _arange,
    "permute": lambda m, node, a: m.op("Transpose", m.value(a["self"]), perm=[d % len(a["dims"]) for d in a["dims"]]),
    "expand": lambda m, node, a: m.op("Expand", m.value(a["self"]), m.ints(value_of(node).shape)),
    "gelu": lambda m, node, a: m.op("Gelu", m.value(a["self"]), approximate=a.get("approximate", "none")),
    "embedding": lambda m, node, a: m.op("Gather", m.value(a["weight"]), m.value(a["indices"]), axis=0),
    "gather": lambda m, node, a: m.op("GatherElements", m.value(a["self"]), m.value(a["index"]), axis=int(a["dim"])),
    "rsqrt": lambda m, node, a: m.op("Reciprocal", m.op("Sqrt", m.value(a["self"]))),
}  # fmt: skip
"""ATen op, by the name of `call_of` -> how it is written in ONNX."""


_CHECKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "div": lambda a: "division with rounding" if "rounding_mode" in a else "",
    "convolution": lambda a: "transposed convolution" if a.get("transposed") else "",
    "addmm": lambda a: "scaled addmm" if {"alpha", "beta"} & set(a) else "",
    "sum": lambda a: "sum at another dtype" if "dtype" in a else "",
    "mean": lambda a: "mean at another dtype" if "dtype" in a else "",
    "embedding": lambda a: "sparse embedding" if a.get("sparse") else "",
    "clamp": lambda a: "clamp by tensors" if any(isinstance(a.get(k), fx.Node) for k in ("min", "max")) else "",
    "scaled_dot_product_attention": lambda a: "dropout" if a.get("dropout_p") else "",
    "_scaled_dot_product_flash_attention_for_cpu": lambda a: "dropout" if a.get("dropout_p") else "",
    "slice": lambda a: "negative step" if a.get("step", 1) < 1 else "",
}
"""Arguments that a row can't express."""
