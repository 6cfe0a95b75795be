"""Writing new code for a frame, in terms that no version of CPython changes.

An `Emitter` appends instructions to a code object that has the signature, cells and free variables of the frame's
own. Which instruction does the work, where a call wants its NULL and how keyword names travel is decided here and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from firebrick.capture.bytecode.assemble import Handler, Instr, Item, Label, Layout, assemble, disassemble
from firebrick.capture.bytecode.code_tables import Position
from firebrick.capture.bytecode.cpython import (
    COMPARE_ARGS,
    HAS_CALL_KW,
    HAS_CHECKED_LOADS,
    HAS_FUNCTION_ATTRIBUTES,
    HAS_PRECALL,
    NULL_BEFORE_CALLABLE,
)
from firebrick.capture.bytecode.opcodes import BINARY_SYMBOLS
from firebrick.capture.guards.sources import Source

_BINARY_ARGS = {symbol: number for number, symbol in enumerate(BINARY_SYMBOLS)}
_TEMP = "__fb"


class _Writer:
    """The list of instructions and what surrounds it."""

    def __init__(self, code: CodeType, parent: _Writer | None = None) -> None:
        self.code = code
        self.items: list[Item] = []
        self.position: Position = (code.co_firstlineno, code.co_firstlineno, None, None)
        self.handler: Handler | None = None
        self.layout: Layout = Layout.of(code) if parent is None else parent.layout
        self._temps: list[int] = [0] if parent is None else parent._temps
        if parent is None:
            del self.layout.consts[1:]  # the first one is the docstring
            self.layout.names.clear()

    def emit(self, op: str, arg: Any = 0, flag: int = 0) -> None:
        """Append one instruction at the current position, under the current handler."""
        self.items.append(Instr(op, arg, flag, self.position, self.handler))

    def prologue(self) -> None:
        """What the frame's own code starts with: cells, free variables, RESUME."""
        for item in disassemble(self.code):
            self.items.append(item)
            if isinstance(item, Instr) and item.op == "RESUME":
                return

    def mark(self) -> Label:
        """Remember the current place for `splice`."""
        label = Label()
        self.items.append(label)
        return label

    def splice(self, mark: Label, other: _Writer) -> None:
        """Insert another emitter's instructions at a place that `mark` remembered."""
        at = self.items.index(mark) + 1
        self.items[at:at] = other.items
        for name in other.layout.varnames:
            self._declare(name)

    def assemble(self, suffix: str = "") -> CodeType:
        """The code object; `suffix` goes behind its name."""
        self.layout.name = self.code.co_name + suffix
        self.layout.qualname = self.code.co_qualname + suffix
        return assemble(self.items, self.layout)

    def _declare(self, name: str) -> None:
        layout = self.layout
        if name not in layout.varnames and name not in layout.cellvars and name not in layout.freevars:
            layout.varnames.append(name)

    def clear_temps(self) -> None:
        """Unbind all temporaries made so far, every one of which is bound here: what they hold may go now."""
        for name in self.layout.varnames:
            if name.startswith(_TEMP):
                self.emit("DELETE_FAST", name)

    def store_temp(self) -> str:
        """Pop into a local that nothing else uses."""
        name = self.new_temp()
        self.emit("STORE_FAST", name)
        return name

    def new_temp(self) -> str:
        """A local that nothing else uses."""
        name = f"{_TEMP}{self._temps[0]}"
        self._temps[0] += 1
        self.layout.varnames.append(name)
        return name


def _plain(op: str, arg: int = 0) -> Callable[[_Writer], None]:
    return lambda self: self.emit(op, arg)


def _with(op: str) -> Callable[[_Writer, Any], None]:
    return lambda self, operand: self.emit(op, operand)


class _Instructions(_Writer):
    """Constants, locals, cells, globals, attributes, items, containers, operators."""

    def load_const(self, value: object) -> None:
        """Push any object; it is held by the code object itself."""
        self.emit("LOAD_CONST", value)

    def load_fast(self, name: str) -> None:
        """Push a local; UnboundLocalError if it is unbound."""
        self._declare(name)
        checked = HAS_CHECKED_LOADS and not name.startswith(_TEMP)
        self.emit("LOAD_FAST_CHECK" if checked else "LOAD_FAST", name)

    def store_fast(self, name: str) -> None:
        """Pop into a local."""
        self._declare(name)
        self.emit("STORE_FAST", name)

    delete_fast = _with("DELETE_FAST")  # unbind a local that is bound
    load_deref = _with("LOAD_DEREF")  # push what a cell or free variable holds
    store_deref = _with("STORE_DEREF")  # pop into a cell or free variable
    load_closure = _with("LOAD_CLOSURE")  # push the cell itself
    load_global = _with("LOAD_GLOBAL")  # push a global of the frame, or a builtin
    load_attr = _with("LOAD_ATTR")  # object -> its attribute
    store_attr = _with("STORE_ATTR")  # value, object -> nothing
    delete_attr = _with("DELETE_ATTR")  # object -> nothing
    load_subscr = _plain("BINARY_SUBSCR")  # container, key -> item
    store_subscr = _plain("STORE_SUBSCR")  # value, container, key -> nothing
    delete_subscr = _plain("DELETE_SUBSCR")  # container, key -> nothing
    build_tuple = _with("BUILD_TUPLE")  # items -> tuple
    build_list = _with("BUILD_LIST")  # items -> list
    build_set = _with("BUILD_SET")  # items -> set
    build_map = _with("BUILD_MAP")  # keys and values in turn -> dict of `count` pairs
    build_slice = _with("BUILD_SLICE")  # two or three items -> slice
    list_extend = _plain("LIST_EXTEND", 1)  # list, iterable -> list
    dict_update = _plain("DICT_UPDATE", 1)  # dict, mapping -> dict
    unpack_sequence = _with("UNPACK_SEQUENCE")  # sequence -> its items, the first one on top

    def binary_op(self, symbol: str) -> None:
        """left, right -> result; `symbol` as in the user's code, `+=` for the one in place."""
        self.emit("BINARY_OP", _BINARY_ARGS[symbol])

    def compare_op(self, symbol: str) -> None:
        """left, right -> result."""
        self.emit("COMPARE_OP", COMPARE_ARGS[symbol])


class Emitter(_Instructions):
    """Code in the making; calls, the stack, control flow and what the base classes write.

    Args:
        code: the frame's own code; the new one has its name, signature, cells and free variables.
        parent: an emitter that this one's instructions will be spliced into; locals and temporaries are shared.
    """

    push_null = _plain("PUSH_NULL")  # push a bare NULL, as found on the stack of a broken frame

    def begin_call(self) -> None:
        """Start a call: push the callable next, then `ready_call`, the arguments, and `call`."""
        if NULL_BEFORE_CALLABLE:
            self.emit("PUSH_NULL")

    def ready_call(self) -> None:
        """The callable of a call is on the stack."""
        if not NULL_BEFORE_CALLABLE:
            self.emit("PUSH_NULL")

    def load_callable(self, function: object) -> None:
        """Begin a call of a known object."""
        self.begin_call()
        self.load_const(function)
        self.ready_call()

    def call(self, positional: int, keywords: Sequence[str] = ()) -> None:
        """callable, arguments -> result; values of the keywords come after the positional ones."""
        count = positional + len(keywords)
        if keywords and HAS_CALL_KW:
            self.load_const(tuple(keywords))
            self.emit("CALL_KW", count)
            return
        if keywords:
            self.emit("KW_NAMES", tuple(keywords))
        if HAS_PRECALL:
            self.emit("PRECALL", count)
        self.emit("CALL", count)

    def make_function(self, code: CodeType, attributes: int = 0) -> None:
        """Attributes -> function; bits of `attributes`: defaults, kwdefaults, annotations, closure, in this order."""
        self.load_const(code)
        if not HAS_FUNCTION_ATTRIBUTES:
            self.emit("MAKE_FUNCTION", attributes)
            return
        self.emit("MAKE_FUNCTION")
        for bit in (8, 4, 2, 1):
            if attributes & bit:
                self.emit("SET_FUNCTION_ATTRIBUTE", bit)

    dup = _plain("COPY", 1)  # push the top once more
    copy = _with("COPY")  # push the item `depth` deep; 1 is the top
    swap = _with("SWAP")  # exchange the top and the item `depth` deep
    pop = _plain("POP_TOP")  # drop the top

    def place(self, label: Label) -> None:
        """Put a label here."""
        self.items.append(label)

    def jump(self, label: Label) -> None:
        """Go to a label."""
        self.emit("JUMP", label)

    return_value = _plain("RETURN_VALUE")  # return the top
    raise_value = _plain("RAISE_VARARGS", 1)  # raise the top

    def check_exception(self, kind: type[BaseException] | tuple[type[BaseException], ...]) -> None:
        """exception -> exception, whether it is of that kind."""
        self.load_const(kind)
        self.emit("CHECK_EXC_MATCH")

    def load_source(self, source: Source) -> None:
        """Push the value that a source names, in the state in which the frame was called."""
        steps = list(source.steps())
        for kind, what in reversed(steps):
            if kind == "apply":
                self.load_callable(what)
        for kind, what in steps:
            if kind == "fast":
                if what in self.layout.cellvars:
                    self.load_deref(what)
                else:
                    self.load_fast(what)
            elif kind == "cell":
                self.load_deref(what)
            elif kind == "global":
                self.load_global(what)
            elif kind == "const":
                self.load_const(what)
            elif kind == "attr":
                self.load_attr(what)
            elif kind == "item":
                self.load_const(what)
                self.load_subscr()
            else:
                self.call(1)
