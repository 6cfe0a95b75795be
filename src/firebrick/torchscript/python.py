"""TorchScript graphs back to Python: a module whose `forward` is plain Python, to which all of Firebrick applies.

The interpreter's control flow (prim::If, prim::Loop), lists and strings become Python's; every operator on tensors is
called by its overload (`torch.ops.aten.conv1d.default`); attributes are read from and written to a tree of modules
that shares the parameters with the original.
"""

from __future__ import annotations

import itertools
import keyword
import linecache
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from firebrick.errors import Unsupported
from firebrick.torchscript.operations import PYTHON, TENSOR_FACTS
from firebrick.torchscript.rewriting import overload_of

_numbers = itertools.count()


class ScriptModule(nn.Module):
    """A converted module or one of its children: parameters, buffers and attributes under their own names."""

    source: str = ""

    def extra_repr(self) -> str:
        """What print shows."""
        return "converted from TorchScript" if self.source else ""


def to_module(module: torch.jit.ScriptModule) -> ScriptModule:
    """Convert a scripted, traced or loaded module to a module in plain Python.

    Parameters and buffers are shared with `module`; other attributes (state kept between calls) are copied. All
    methods that the file exports are there, except those that have no Python form. `source` holds the Python text.

    Raises:
        Unsupported: the graph of `forward` holds an operation without a Python form; it is named with its place.
    """
    root = ScriptModule()
    writer = _Writer(module, root)
    names = [n for n in module._c._method_names() if not n.startswith("__")]
    if "forward" not in names:
        raise Unsupported("the TorchScript module has no forward", fix="convert one that can be called")
    texts = []
    for method in list(names):
        try:
            texts.append(writer.method(method))
        except Unsupported:
            if method == "forward":
                raise
            names.remove(method)
    text = "\n\n".join(texts)
    name = str(getattr(module, "original_name", type(module).__name__))
    file = f"<torchscript {name} {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, [line + "\n" for line in text.splitlines()], file)
    scope = writer.scope()
    exec(compile(text, file, "exec"), scope)
    cls = type(name, (ScriptModule,), {n: scope[n] for n in names})
    root.__class__ = cls
    root.source = text
    root.train(module.training)
    return root


def to_source(module: torch.jit.ScriptModule) -> str:
    """The Python text of `to_module`."""
    return to_module(module).source


def dtype_number(tensor: torch.Tensor) -> int:
    """TorchScript's number of a dtype."""
    return _DTYPES[tensor.dtype]


def layout_number(tensor: torch.Tensor) -> int:
    """TorchScript's number of a layout."""
    return 0 if tensor.layout == torch.strided else 1


_NUMBERED = "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool"
_DTYPES = {getattr(torch, name): number for number, name in enumerate(_NUMBERED.split())} | {torch.bfloat16: 15}
"""Dtype -> its number in TorchScript (c10's ScalarType)."""


class _Writer:
    """Writes the methods of one module."""

    def __init__(self, module: torch.jit.ScriptModule, root: ScriptModule) -> None:
        self.module, self.root = module, root
        self.constants: dict[str, Any] = {}
        self.ops: dict[str, Any] = {}

    def scope(self) -> dict[str, Any]:
        """The globals of the generated functions."""
        names = {
            "torch": torch, "math": math, "operator": operator, "dtype_number": dtype_number,
            "dtype_of_number": dtype_of_number, "layout_number": layout_number, "__name__": "torchscript_as_python",
        }  # fmt: skip
        return {**names, **self.constants, **self.ops}

    def method(self, name: str) -> str:
        """The text of one method, with everything that it calls inlined."""
        graph = self.module._c._get_method(name).graph.copy()
        torch._C._jit_pass_inline(graph)
        torch._C._jit_pass_inline_fork_wait(graph)
        torch._C._jit_pass_dce(graph)
        schema = self.module._c._get_method(name).schema
        return _Method(self, graph, schema).text(name)


class _Method:
    def __init__(self, writer: _Writer, graph: Any, schema: Any) -> None:
        self.writer, self.graph, self.schema = writer, graph, schema
        self.names: dict[int, str] = {}
        self.paths: dict[int, str] = {}
        self.taken: set[str] = set()
        self.lines: list[str] = []

    def text(self, name: str) -> str:
        inputs = list(self.graph.inputs())
        self.paths[inputs[0].unique()] = ""
        parameters = ["self"]
        for value, argument in zip(inputs[1:], self.schema.arguments[1:], strict=True):
            parameter = self._name(value, argument.name)
            if argument.has_default_value():
                parameter += f"={self._constant(argument.default_value)}"
            parameters.append(parameter)
        outputs = list(self.graph.outputs())
        self._block(self.graph, 1)
        self._line(1, f"return {', '.join(self._use(v) for v in outputs)}")
        return "\n".join([f"def {name}({', '.join(parameters)}):", *self.lines])

    # ------------------------------------------------------------ names and values

    def _name(self, value: Any, wanted: str = "") -> str:
        existing = self.names.get(value.unique())
        if existing is not None:
            return existing
        base = re.sub(r"\W", "_", wanted or value.debugName()).strip("_") or "v"
        if base[0].isdigit() or keyword.iskeyword(base) or base in ("self", "torch", "math", "operator"):
            base = f"v{base}"
        name = base if base not in self.taken else f"{base}_u{value.unique()}"
        self.taken.add(name)
        self.names[value.unique()] = name
        return name

    def _use(self, value: Any) -> str:
        node = value.node()
        if value.unique() in self.paths:
            return _path_text(self.paths[value.unique()])
        if node.kind() == "prim::Constant" and value.unique() not in self.names:
            return self._constant(None if node.mustBeNone() else value.toIValue())
        return self._name(value)

    def _constant(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
        if isinstance(value, list) and all(isinstance(v, (bool, int, float, str)) for v in value):
            return f"[{', '.join(map(self._constant, value))}]"
        if isinstance(value, tuple) and value:
            return f"({', '.join(map(self._constant, value))},)"
        for name, constant in self.writer.constants.items():
            if constant is value:
                return name
        name = f"constant_{len(self.writer.constants)}"
        self.writer.constants[name] = value
        return name

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # ------------------------------------------------------------ blocks

    def _block(self, block: Any, depth: int) -> None:
        start = len(self.lines)
        for node in block.nodes():
            writer = _WRITERS.get(node.kind(), _Method._operation)
            writer(self, node, depth)
        if len(self.lines) == start:
            self._line(depth, "pass")

    def _assign(self, depth: int, targets: list[Any], sources: list[Any]) -> None:
        if targets:
            left, right = ", ".join(map(self._name, targets)), ", ".join(map(self._use, sources))
            if left != right:
                self._line(depth, f"{left} = {right}")

    def _if(self, node: Any, depth: int) -> None:
        then, otherwise = node.blocks()
        self._line(depth, f"if {self._use(node.input())}:")
        self._branch(then, list(node.outputs()), depth + 1)
        self._line(depth, "else:")
        self._branch(otherwise, list(node.outputs()), depth + 1)
        if self.lines[-1].strip() == "pass" and self.lines[-2].strip() == "else:":
            del self.lines[-2:]

    def _branch(self, block: Any, outputs: list[Any], depth: int) -> None:
        self._block(block, depth)
        if outputs and self.lines[-1].strip() == "pass" and self.lines[-1].startswith("    " * depth + "pass"):
            self.lines.pop()
        self._assign(depth, outputs, list(block.outputs()))

    def _loop(self, node: Any, depth: int) -> None:
        limit, condition, *initial = node.inputs()
        (body,) = node.blocks()
        counter, *carried = body.inputs()
        going, *results = body.outputs()
        outputs = list(node.outputs())
        if any(v.unique() in self.paths for v in initial):
            raise Unsupported(f"a loop carries a module: {node.sourceRange()}")
        self._assign(depth, carried, initial)
        always = self._is_true(condition) and self._is_true(going)
        forever = limit.toIValue() == 9223372036854775807
        name = self._name(counter)
        if always:
            self._line(depth, f"for {name} in range({self._use(limit)}):")
        else:
            self._line(depth, f"{name} = 0")
            going_name = f"{name}_on"
            self._line(depth, f"{going_name} = {self._use(condition)}")
            bound = "" if forever else f" and {name} < {self._use(limit)}"
            self._line(depth, f"while {going_name}{bound}:")
        self._block(body, depth + 1)
        self._assign(depth + 1, carried, results)
        if not always:
            self._line(depth + 1, f"{going_name} = {self._use(going)}")
            self._line(depth + 1, f"{name} += 1")
        self._assign(depth, outputs, carried)

    @staticmethod
    def _is_true(value: Any) -> bool:
        return value.node().kind() == "prim::Constant" and value.toIValue() is True

    # ------------------------------------------------------------ nodes

    def _skip(self, node: Any, depth: int) -> None:
        """Constants are written where they are used."""

    def _raise(self, node: Any, depth: int) -> None:
        message, *kind = node.inputs()
        name = kind[0].toIValue() if kind and kind[0].node().kind() == "prim::Constant" else None
        error = str(name or "builtins.RuntimeError").rpartition(".")[2]
        raisable = {"ValueError", "RuntimeError", "AssertionError", "TypeError", "IndexError", "KeyError"}
        self._line(depth, f"raise {error if error in raisable else 'RuntimeError'}({self._use(message)})")

    def _get_attribute(self, node: Any, depth: int) -> None:
        owner, name, value = node.input(), node.s("name"), node.output()
        if owner.unique() not in self.paths:
            self._line(depth, f"{self._name(value)} = {self._use(owner)}.{name}")
            return
        path = self.paths[owner.unique()]
        child = _submodule(self.writer.module, path)._c.getattr(name)
        full = f"{path}.{name}" if path else name
        if isinstance(child, torch._C.ScriptModule):
            self.paths[value.unique()] = full
            return
        self._provide(path, name)
        self._line(depth, f"{self._name(value)} = {_path_text(full)}")

    def _set_attribute(self, node: Any, depth: int) -> None:
        owner, value = node.inputs()
        path, name = self.paths[owner.unique()], node.s("name")
        self._provide(path, name)
        self._line(depth, f"{_path_text(path)}.{name} = {self._use(value)}")

    def _provide(self, path: str, name: str) -> None:
        """Give the converted module the attribute that the graph reads."""
        target: nn.Module = self.writer.root
        for part in filter(None, path.split(".")):
            if part not in target._modules:
                target.add_module(part, ScriptModule())
            target = target.get_submodule(part)
        if name in vars(target) or name in target._parameters or name in target._buffers:
            return
        owner = _submodule(self.writer.module, path)
        value = owner._c.getattr(name)
        if isinstance(value, torch.Tensor):
            if name in dict(owner.named_parameters(recurse=False)):
                # A loaded file's parameters are plain tensors to Python; the new Parameter shares their memory.
                target.register_parameter(name, nn.Parameter(value.detach(), requires_grad=value.requires_grad))
                return
            if name in dict(owner.named_buffers(recurse=False)):
                target.register_buffer(name, value)
                return
        setattr(target, name, value)

    def _unpack(self, node: Any, depth: int) -> None:
        names = ", ".join(map(self._name, node.outputs()))
        self._line(depth, f"{names}{',' if node.outputsSize() == 1 else ''} = {self._use(node.input())}")

    def _dictionary(self, node: Any, depth: int) -> None:
        values = [self._use(v) for v in node.inputs()]
        pairs = ", ".join(f"{k}: {v}" for k, v in zip(values[::2], values[1::2], strict=True))
        self._line(depth, f"{self._name(node.output())} = {{{pairs}}}")

    def _size(self, node: Any, depth: int) -> None:
        source, *dim = map(self._use, node.inputs())
        text = f"{source}.size({dim[0]})" if dim else f"list({source}.size())"
        self._line(depth, f"{self._name(node.output())} = {text}")

    def _operation(self, node: Any, depth: int) -> None:
        inputs = list(node.inputs())
        values = [self._use(v) for v in inputs]
        tensors = [_holds_tensor(v) for v in inputs]
        row = TENSOR_FACTS.get(node.kind()) if any(tensors) else PYTHON.get(node.kind())
        if row is None and _is_generic(node):
            row = PYTHON.get(node.kind())
        if row is not None:
            text = row.format(*values, all=", ".join(values), rest=", ".join(values[1:]))
        else:
            text = self._overload(node, values)
        outputs = ", ".join(map(self._name, node.outputs()))
        self._line(depth, f"{outputs} = {text}" if outputs else text)

    def _move(self, node: Any, overload: str, values: list[str]) -> str:
        """`aten::to` in the forms that only TorchScript has."""
        device = values[1] if overload == "prim_Device" else "None"
        rest = values[2:] if overload == "prim_Device" else values[1:]
        source = list(node.inputs())[2 if overload == "prim_Device" else 1]
        if source.node().kind() == "prim::Constant":
            number = None if source.node().mustBeNone() else source.toIValue()
            dtype = str(dtype_of_number(number))
        else:
            dtype = f"dtype_of_number({rest[0]})"
        return f"{values[0]}.to(device={device}, dtype={dtype}, non_blocking={rest[1]}, copy={rest[2]})"

    def _overload(self, node: Any, values: list[str]) -> str:
        schema_text = node.schema()
        if schema_text == "(no schema)":
            raise Unsupported(
                f"TorchScript operation {node.kind()} has no Python form", fix=f"it is used at {_place(node)}"
            )
        schema = torch._C.parse_schema(schema_text)
        namespace, _, name = schema.name.partition("::")
        if name == "to" and schema.overload_name in ("prim_Device", "prim_dtype"):
            return self._move(node, schema.overload_name, values)
        op = overload_of(node)
        if op is None:
            raise Unsupported(f"TorchScript operation {schema_text} is no operator", fix=f"used at {_place(node)}")
        short = f"{namespace}_{name}_{schema.overload_name or 'default'}"
        self.writer.ops[short] = op
        words = [
            f"{argument.name}={value}" if argument.kwarg_only else value
            for argument, value in zip(schema.arguments, values, strict=False)
        ]
        return f"{short}({', '.join(words)})"


def dtype_of_number(number: int | None) -> torch.dtype | None:
    """The inverse of `dtype_number`."""
    return None if number is None else next(dtype for dtype, n in _DTYPES.items() if n == number)


def _path_text(path: str) -> str:
    text = "self"
    for part in filter(None, path.split(".")):
        text = f"{text}.{part}" if part.isidentifier() else f"getattr({text}, {part!r})"
    return text


def _place(node: Any) -> str:
    return str(node.sourceRange()).strip().splitlines()[0] if node.sourceRange() else "an unknown place"


def _submodule(module: Any, path: str) -> Any:
    for part in filter(None, path.split(".")):
        module = getattr(module, part)
    return module


def _holds_tensor(value: Any) -> bool:
    kind = str(value.type())
    return (
        not kind.startswith(("List", "Dict", "("))
        and not kind.endswith("[]")
        and ("Tensor" in kind or "Float(" in kind or "Long(" in kind or _tensor_type(value))
    )


def _tensor_type(value: Any) -> bool:
    kind = value.type()
    if kind.kind() == "OptionalType":
        kind = kind.getElementType()
    return kind.kind() == "TensorType"


def _is_generic(node: Any) -> bool:
    """Whether the operation works on values of any type ("t"): PyTorch can't call such a one from Python."""
    if node.schema() == "(no schema)":
        return True
    schema = torch._C.parse_schema(node.schema())
    return any(re.search(r"\bt\d?\b|tVal", str(a.type)) for a in schema.arguments)


_WRITERS: dict[str, Callable[[_Method, Any, int], None]] = {
    "prim::Constant": _Method._skip, "prim::If": _Method._if, "prim::Loop": _Method._loop,
    "prim::RaiseException": _Method._raise, "prim::GetAttr": _Method._get_attribute,
    "prim::SetAttr": _Method._set_attribute, "prim::TupleUnpack": _Method._unpack,
    "prim::ListUnpack": _Method._unpack, "prim::DictConstruct": _Method._dictionary, "aten::size": _Method._size,
}  # fmt: skip
