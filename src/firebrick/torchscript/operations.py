"""TorchScript's own operations as Python: one row each. Operators on tensors are called by their overload instead."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "remainder": "%", "pow": "**", "eq": "==",
    "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "__and__": "&", "__or__": "|", "__xor__": "^",
    "__lshift__": "<<", "__rshift__": ">>",
}  # fmt: skip
_CALLS = {
    "neg": "-{0}", "__not__": "not {0}", "__is__": "{0} is {1}", "__isnot__": "{0} is not {1}", "len": "len({0})",
    "Bool": "bool({0})", "Int": "int({0})", "Float": "float({0})", "IntImplicit": "int({0})",
    "FloatImplicit": "float({0})", "ScalarImplicit": "{0}.item()", "str": "str({0})", "ord": "ord({0})",
    "chr": "chr({0})", "abs": "abs({0})", "round": "round({0})", "floor": "math.floor({0})", "ceil": "math.ceil({0})",
    "sqrt": "math.sqrt({0})", "log": "math.log({0})", "exp": "math.exp({0})", "sin": "math.sin({0})",
    "cos": "math.cos({0})", "tanh": "math.tanh({0})", "isnan": "math.isnan({0})", "isinf": "math.isinf({0})",
    "list": "list({0})", "dict": "dict({0})", "keys": "list({0}.keys())", "values": "list({0}.values())",
    "items": "list({0}.items())", "__getitem__": "{0}[{1}]", "__contains__": "{1} in {0}",
    "_set_item": "operator.setitem({0}, {1}, {2})", "append": "{0}.append({1})", "extend": "{0}.extend({1})",
    "insert": "{0}.insert({1}, {2})", "remove": "{0}.remove({1})", "reverse": "{0}.reverse()", "clear": "{0}.clear()",
    "copy": "{0}.copy()", "Delete": "operator.delitem({0}, {1})", "sorted": "sorted({0})",
    "slice": "{0}[{1}:{2}:{3}]", "__range_length": "len(range({0}, {1}, {2}))", "__derive_index": "{1} + {0} * {2}",
    "lower": "{0}.lower()", "upper": "{0}.upper()", "strip": "{0}.strip({1})", "split": "{0}.split({1}, {2})",
    "join": "{0}.join({1})", "startswith": "{0}.startswith({1})", "endswith": "{0}.endswith({1})",
}  # fmt: skip
_VARIADIC = {
    "format": "{0}.format({rest})", "percentFormat": "{0} % ({rest},)", "pop": "{0}.pop({rest})",
    "get": "{0}.get({rest})", "index": "{0}.index({rest})", "count": "{0}.count({rest})",
    "setdefault": "{0}.setdefault({rest})", "max": "max({all})", "min": "min({all})", "any": "any({all})",
    "all": "all({all})", "sum": "sum({all})",
}  # fmt: skip

PYTHON: Mapping[str, str] = MappingProxyType(
    {
        **{f"aten::{name}": f"({{0}} {sign} {{1}})" for name, sign in _INFIX.items()},
        **{f"aten::{name}": f"({text})" if " " in text else text for name, text in _CALLS.items()},
        **{f"aten::{name}": text for name, text in _VARIADIC.items()},
        "prim::max": "max({all})",
        "prim::min": "min({all})",
        "prim::abs": "abs({0})",
        "prim::unchecked_cast": "{0}",
        "prim::unchecked_unwrap_optional": "{0}",
        "aten::_unwrap_optional": "{0}",
        "prim::Uninitialized": "None",
        "prim::ListConstruct": "[{all}]",
        "prim::TupleConstruct": "({all},)",
        "prim::TupleIndex": "{0}[{1}]",
        "prim::NumToTensor": "torch.tensor({0})",
        "prim::Print": "print({all})",
        "prim::rangelist": "list(range({0}))",
        "aten::tensor": "torch.tensor({0}, dtype=dtype_of_number({1}), device={2}, requires_grad={3})",
        "aten::wait": "{0}",
    }
)
"""Kind of node -> Python expression; used where no argument is a tensor. {0} is an argument, {all} all of them."""

TENSOR_FACTS: Mapping[str, str] = MappingProxyType(
    {
        "aten::dim": "{0}.dim()",
        "aten::numel": "{0}.numel()",
        "aten::is_floating_point": "{0}.is_floating_point()",
        "aten::len": "len({0})",
        "aten::Bool": "bool({0})",
        "aten::Int": "int({0})",
        "aten::Float": "float({0})",
        "aten::IntImplicit": "int({0})",
        "aten::FloatImplicit": "float({0})",
        "aten::ScalarImplicit": "{0}.item()",
        "aten::item": "{0}.item()",
        "prim::device": "{0}.device",
        "prim::dtype": "dtype_number({0})",
        "prim::layout": "layout_number({0})",
        "prim::data": "{0}.detach()",
        "prim::shape": "list({0}.shape)",
        "prim::is_cuda": "{0}.is_cuda",
        "prim::requires_grad": "{0}.requires_grad",
        "prim::tolist": "{0}.tolist()",
    }
)
"""Questions about one tensor, written as Python so that capture can answer them."""
