"""C++ text of scalar values, for one iteration or for the lanes of a vector.

Each distinct value becomes one C++ constant in the block where it is first needed. A value that doesn't depend on the
lane variable stays scalar and is spread over the lanes where it meets one that does.
"""

from __future__ import annotations

from firebrick.errors import InternalError
from firebrick.ir.index.expr import ONE, Expr, Var
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Const, Index, Load, Masked, Op, Value
from firebrick.ir.loops.scalar_ops import SCALAR_OPS
from firebrick.targets.cpu.casts import cast
from firebrick.targets.cpu.cpp_types import MASK, SCALAR, SIGNED, constant_text, lane_type
from firebrick.targets.cpu.plan import is_near
from firebrick.targets.cpu.scalar_functions import HELPERS, OF_NUMBER, ROWS, SLEEF, WITH_NUMBERS
from firebrick.targets.cpu.transpose import picking_helper
from firebrick.targets.cpu.tree_facts import narrow_place
from firebrick.targets.cpu.unit_writer import Text, Unit, Writer
from firebrick.targets.cpu.vector_math import INLINE


class Values(Writer):
    """Writes values of one kernel as C++ constants.

    turned: loads that are read from a block that was turned, and where.
    """

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit)
        self.turned: dict[Load, str] = {}

    # ------------------------------------------------------------ values

    def value(self, v: Value) -> Text:
        """The C++ constant that holds a value."""
        for scope in reversed(self.scopes):
            name = scope.get(v)
            if name is not None:
                return name
        # Arguments first, from a list: the chains of pointwise programs are deeper than Python's stack.
        stack = [(v, False)]
        while stack:
            value, ready = stack.pop()
            if ready or not isinstance(value, Op) or value.name == "where":
                if all(value not in scope for scope in self.scopes):
                    self.scopes[-1][value] = self._make(value)
            elif all(value not in scope for scope in self.scopes):
                stack.append((value, True))
                stack.extend([(a, False) for a in reversed(value.args)])
        return self.scopes[-1][v]

    def _make(self, v: Value) -> Text:
        if isinstance(v, Const):
            return Text(constant_text(v.value, v.dtype), False)
        if isinstance(v, Index):
            return self._index_value(v)
        if isinstance(v, Load):
            return self._load(v)
        if isinstance(v, Masked):
            return self._masked(v)
        if isinstance(v, Op):
            if v.name == "where":
                return self._where(v)
            x = v.args[0]
            return cast(self, self.value(x), x.dtype, v.dtype) if v.name == "to" else self._op(v)
        raise InternalError("a reduction was left in a kernel's values")

    def _index_value(self, v: Index) -> Text:
        lanes = self.lanes
        if lanes is None or lanes.var not in v.expr.vars():
            return Text(f"({SCALAR[v.dtype]})({self.index(v.expr)})", False)
        stride = v.expr.coeff(lanes.var)
        vector = self.type_of(v.dtype, True)
        if stride is None:
            listed = ", ".join(f"({SCALAR[v.dtype]})({self.index(v.expr, k)})" for k in range(lanes.width))
            return self.name(v.dtype, f"{vector}{{{listed}}}", True)
        listed = ", ".join(str(k) for k in range(lanes.width))
        base = f"{vector}_of({self.unit.hidden(self.index(v.expr))})"
        step = "" if stride is ONE else f" * {vector}_of({self.index(stride)})"
        return self.name(v.dtype, f"{base} + {vector}{{{listed}}}{step}", True)

    # ------------------------------------------------------------ loads

    def _load(self, v: Load) -> Text:
        local = self.locals.get(v.buffer)
        if local is not None and not local.scratch:
            return Text(local.code, local.varying)
        base = local.code if local is not None else v.buffer
        bound = [(x, self.value(narrow_place(b))) for x, b in v.binds]
        lanes = self.lanes
        if local is not None and local.private:
            assert lanes is not None
            address = f"{base} + ({self.index(v.index)}) * {lanes.width}"
            return self.name(v.dtype, self._from_memory(v.dtype, address, None), True)
        for x, t in bound:
            self.names[x] = f"(int64_t){t.code}"
        if lanes is not None and (lanes.var in v.index.vars() or any(t.varying for _, t in bound)):
            return self._load_lanes(v, base, bound)
        code = f"{base}[{self.index(v.index)}]"
        return self.name(v.dtype, f"{code} != 0" if v.dtype == "b8" else code, False)

    def _load_lanes(self, v: Load, base: str, bound: list[tuple[Var, Text]]) -> Text:
        lanes = self.lanes
        assert lanes is not None
        gathered = any(t.varying for _, t in bound)
        stride = None if gathered else v.index.coeff(lanes.var)
        if v in self.turned:
            return self.name(v.dtype, self._lanes_of_memory(v.dtype, self.turned[v]), True)
        if stride is ONE and self.guard is None:
            address = f"{base} + {self.index(v.index)}"
            return self.name(v.dtype, self._from_memory(v.dtype, address, lanes.count), True)
        stored = self.unit.vector("u8" if v.dtype == "b8" else lane_type(v.dtype), lanes.width)
        if is_near(stride) and self.guard is None and lanes.count is None:
            code = f"{self._picked(v.dtype, stored, stride)}({base} + {self.index(v.index)})"
            return self.name(v.dtype, self._lanes_of_memory(v.dtype, code), True)
        items = []
        for k in range(lanes.width):
            for x, t in bound:
                self.names[x] = f"(int64_t){t.code}[{k}]" if t.varying else f"(int64_t){t.code}"
            item = f"{base}[{self.index(v.index, k)}]"
            if self.guard is not None and self.guard.varying:
                item = f"{self.guard.code}[{k}] ? {item} : 0"
            if lanes.count is not None:
                if not lanes.count.isdigit():
                    item = f"{k} < {lanes.count} ? {item} : 0"
                elif k >= int(lanes.count):
                    item = "0"
            items.append(item)
        scalar = "uint8_t" if v.dtype == "b8" else SCALAR[v.dtype]
        listed = ", ".join(f"({scalar})({i})" if "?" in i else i for i in items)
        code = f"{stored}{{{listed}}}"
        if stride is ONE and self.guard is not None and lanes.count is None:
            address = f"{base} + {self.index(v.index)}"
            code = f"{self._every(self.guard.code)} ? ({stored})*(const {stored}u*)({address}) : {code}"
        if v.dtype == "b8":
            code = f"__builtin_convertvector({code}, {self.type_of('b8', True)}) != 0"
        return self.name(v.dtype, code, True)

    def _picked(self, dtype: str, vector: str, stride: Expr) -> str:
        """Name of the function that reads elements a few places apart."""
        name = f"fb_each{stride.const}_{vector}".replace("-", "m")
        scalar = "uint8_t" if dtype == "b8" else SCALAR[dtype]
        self.unit.helpers[name] = picking_helper(name, vector, scalar, self.width, stride.const)
        return name

    def _from_memory(self, dtype: str, address: str, count: str | None) -> str:
        stored = self.unit.vector("u8" if dtype == "b8" else lane_type(dtype), self.width)
        code = f"*(const {stored}u*)({address})" if count is None else f"{stored}_load({address}, {count})"
        return self._lanes_of_memory(dtype, f"({stored}){code}" if dtype == "b8" else code)

    def _lanes_of_memory(self, dtype: str, code: str) -> str:
        return f"__builtin_convertvector({code}, {self.type_of('b8', True)}) != 0" if dtype == "b8" else code

    def _every(self, mask: str) -> str:
        """Whether all lanes of a mask hold."""
        return f"{self.unit.fold('every', 'a & b', MASK, self.width)}({mask})"

    def some(self, mask: str) -> str:
        """Whether any lane of a mask holds."""
        return f"{self.unit.fold('some', 'a | b', MASK, self.width)}({mask})"

    # ------------------------------------------------------------ functions

    def _op(self, v: Op) -> Text:
        text = self._erf_and_one(v)
        if text is not None:
            return text
        args = [self.value(a) for a in v.args]
        return self.apply(v.name, [a.dtype for a in v.args][-1], args)

    def _erf_and_one(self, v: Op) -> Text | None:
        """erf(x) + 1 as one function."""
        if v.name != "add" or v.dtype != "f32" or self.unit.exact:
            return None
        a, b = v.args if isinstance(v.args[1], Const) else v.args[::-1]
        if not (isinstance(a, Op) and a.name == "erf" and isinstance(b, Const) and b.value == 1.0):
            return None
        x = self.value(a.args[0])
        if not x.varying:
            return self.name("f32", f"__builtin_erfcf(-{x.code})", False)
        if not self.unit.fits("f32", self.width):
            return None
        return self.name("f32", f"{self.unit.inline('erf1p', self.width)}({x.code})", True)

    def apply(self, name: str, dtype: str, args: list[Text]) -> Text:
        """A scalar function of values of `dtype`."""
        varying = any(a.varying for a in args)
        result = "b8" if SCALAR_OPS[name].result == "bool" else dtype
        is_wide = varying and dtype in ("f32", "f64")
        alone = not varying or (is_wide and name in WITH_NUMBERS)
        codes = [a.code if alone else self.spread(a, dtype) for a in args]
        by_number = is_wide and name in OF_NUMBER and args[0].code.lstrip("(-")[0].isdigit()
        fill, text = (self._fill, OF_NUMBER[name]) if by_number else (self.op_text, name)
        code = fill(text, dtype, codes, varying)
        if result != dtype and varying and DTYPES[lane_type(dtype)].nbytes != 4:
            code = f"__builtin_convertvector({code}, {self.type_of('b8', True)})"
        return self.name(result, code, varying)

    def op_text(self, name: str, dtype: str, codes: list[str], varying: bool) -> str:
        """The expression of a scalar function; comparisons of lanes stay in the width of their arguments."""
        row = ROWS[DTYPES[dtype].kind].get(name)
        if row is None:
            raise InternalError(f"no C++ for {name} of {dtype}")
        if row.helper:
            self.unit.helpers[row.helper] = HELPERS[row.helper]
        if not varying:
            code = self._fill(row.scalar, dtype, codes, False)
            # C++ computes narrow integers as int.
            return f"({SCALAR[dtype]})({code})" if DTYPES[dtype].nbytes < 4 and dtype == lane_type(dtype) else code
        if name in SLEEF or name == "sigmoid":
            text = self._library(name, dtype, codes)
            if text:
                return text
        text = self._hardware(name, dtype, codes)
        if text:
            return text
        if row.vector:
            return self._fill(row.vector, dtype, codes, True)
        vector = self.type_of(dtype, True)
        items = [self._fill(row.scalar, dtype, [f"{c}[{k}]" for c in codes], False) for k in range(self.width)]
        return f"{vector}{{{', '.join(f'({SCALAR[lane_type(dtype)]})({i})' for i in items)}}}"

    def _fill(self, text: str, dtype: str, codes: list[str], varying: bool) -> str:
        lane = lane_type(dtype)
        row = DTYPES[lane]
        signed = SIGNED[row.nbytes]
        fields = dict(zip("abc", codes, strict=False))
        fields |= {"t": self.type_of(dtype, varying), "i": self.type_of(signed, varying)}
        low = "(int32_t)0x80000000" if row.nbytes == 4 else "INT64_MIN"
        return text.format(f="f" if dtype == "f32" else "", bits=8 * row.nbytes, low=low, **fields)

    def _hardware(self, name: str, dtype: str, codes: list[str]) -> str:
        """A function that is one instruction, or made of one; empty if it isn't."""
        base = {"rsqrt": "sqrt", "truncdiv": "trunc"}.get(name, name)
        function = self.unit.hardware(base, dtype, self.width) if dtype in ("f32", "f64") else ""
        if not function:
            return ""
        call = f"{function}({' / '.join(codes)})"
        return f"1 / {call}" if name == "rsqrt" else call

    def _library(self, name: str, dtype: str, codes: list[str]) -> str:
        """A call of SLEEF; empty if it has no function of this width."""
        if not self.unit.fits(dtype, self.width):
            return ""
        if name in INLINE and dtype == "f32" and not self.unit.exact:
            return f"{self.unit.inline(name, self.width)}({codes[0]})"
        if name == "sigmoid":
            inner = self._library("exp", dtype, [f"-{codes[0]}"])
            return inner and f"1 / (1 + {inner})"
        return f"{self.unit.library(SLEEF[name], dtype, self.width, len(codes))}({', '.join(codes)})"

    def _where(self, v: Op) -> Text:
        cond, a, b = [self.value(x) for x in v.args]
        if not (cond.varying or a.varying or b.varying):
            return self.name(v.dtype, f"{cond.code} ? {a.code} : {b.code}", False)
        x, y = self.spread(a, v.dtype), self.spread(b, v.dtype)
        return self.name(v.dtype, f"{self._mask_for(cond, v.dtype)} ? {x} : {y}", True)

    def _mask_for(self, cond: Text, dtype: str) -> str:
        """A condition in the width of `dtype`; a scalar one stays scalar."""
        nbytes = DTYPES[lane_type(dtype)].nbytes
        if not cond.varying or nbytes == 4:
            return cond.code
        return f"__builtin_convertvector({cond.code}, {self.type_of(SIGNED[nbytes], True)})"

    def _masked(self, v: Masked) -> Text:
        cond = self.value(v.cond)
        lanes = self.lanes
        name = self.fresh()
        fill = Text(constant_text(v.other.value, v.dtype), False)
        outer = self.guard
        if lanes is None:
            self.line(f"{SCALAR[v.dtype]} {name} = {fill.code};")
            with self.block(f"if ({cond.code})"):
                self.line(f"{name} = {self.value(v.body).code};")
            return Text(name, False)
        self.line(f"{self.type_of(v.dtype, True)} {name} = {self.spread(fill, v.dtype)};")
        with self.block(f"if ({self.some(cond.code) if cond.varying else cond.code})"):
            if cond.varying:
                both = outer is not None and outer.varying
                self.guard = self.name("b8", f"{outer.code} & {cond.code}", True) if outer and both else cond
            body = self.spread(self.value(v.body), v.dtype)
            self.guard = outer
            picked = f"{self._mask_for(cond, v.dtype)} ? {body} : {name}" if cond.varying else body
            self.line(f"{name} = {picked};")
        return Text(name, True)
