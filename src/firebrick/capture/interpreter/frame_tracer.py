"""One capture of one frame: the graph, guards, effects and the values of the objects that were read."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.emit.effects import Effects
from firebrick.capture.emit.prelude import Prelude
from firebrick.capture.graph import GraphBuilder
from firebrick.capture.guards import sources as s
from firebrick.capture.guards.guard_kinds import describe
from firebrick.capture.guards.guard_set import Guards
from firebrick.capture.guards.size_symbols import Symbols
from firebrick.capture.library import known_callables
from firebrick.capture.marks import DISABLED, own_mark
from firebrick.capture.replay import Repeats
from firebrick.capture.values.base import Interpreter, LazyValue, Value
from firebrick.capture.values.constant import LITERAL_TYPES, ConstantValue, is_literal
from firebrick.capture.values.early import EarlyReads
from firebrick.capture.values.function import CellValue, FunctionValue
from firebrick.capture.values.iterator import GeneratorValue
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.module import ModuleValue
from firebrick.capture.values.object import MISSING, InstanceDictValue, ObjectValue, bind, class_lookup, is_odd_method
from firebrick.capture.values.sequence import TupleValue
from firebrick.capture.values.size import size_value
from firebrick.capture.values.wrap import fresh, wrap

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_WRITTEN = object()
"""What a class is found to hold where captured code gave it an attribute."""
_LIBRARIES = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "firebrick"}


def is_library(name: str | None) -> bool:
    """Whether a module belongs to a library whose globals are taken as fixed."""
    return name is not None and name.partition(".")[0] in _LIBRARIES and name != "__main__"


class Tracer:
    """What the interpreters of one capture share."""

    def __init__(self, globals_of_frame: dict[str, Any]) -> None:
        self.graph = GraphBuilder()
        self.guards = Guards()
        self.early = EarlyReads(self.graph, self.guards)
        self.effects = Effects()
        self.prelude = Prelude()
        self.repeats = Repeats(self)
        self.frame_globals = globals_of_frame
        self.objects: dict[int, Value] = {}
        self.stand_ins: dict[int, Value] = {}  # what a class made by captured code holds, by identity of what stands in
        self.overrides_off = int(not torch._C._is_torch_function_enabled())  # `__torch_function__` is not asked
        self.function_modes: list[Value] = []  # those that captured code has entered, the outermost first
        self.saving: list[Any] = []  # hooks on saved tensors that captured code has set, the outermost first
        self.hooks: list[Any] = []  # those and others that it has taken away
        self.index_by_tensors = 0  # contexts in which an index of one element stays a tensor
        self.raise_steps: list[int] = []
        self.generators: list[tuple[int, GeneratorValue]] = []  # with the root's step that made them
        self.references: dict[int, Value] = {}
        """Weak references by the value that they refer to: an object has one."""
        self.keys: dict[Value, bool] = {}
        """Keys of dicts and members of sets by identity -> whether one was looked for where it was not."""
        self.is_key = {"address": False, "number": False}  # of objects that are not known, and large ones
        self._keep: list[Any] = []
        self.found: list[Value] = []
        """What was found under a name or key, where it might be missing in another call."""
        self._cells: dict[int, CellValue] = {}
        self._functions: dict[int, FunctionValue] = {}
        self._globals: dict[tuple[int, str], Value] = {}
        self._constants: dict[int, Value] = {}
        self._namespaces: dict[int, s.Namespace] = {}
        self._lookups: dict[tuple[type, str], tuple[Any, type | None]] = {}
        self._inlined: set[int] = set()
        self._paths: dict[s.Source, str] = {}
        self._module_sources: set[s.Source] = set()
        self.replaced: frozenset[s.Source] = frozenset()
        """Where an earlier capture found a module's tensor that is another one now."""
        self.changing: frozenset[s.Source] = frozenset()
        """What may be another number or text in each round of the loop that the frame is a part of."""
        self.changed: frozenset[s.Source] = frozenset()
        """What was another number, text, function or class in an earlier round."""
        self.numbers: frozenset[s.Source] = frozenset()
        """Where an earlier capture found another float: an argument of the graph, if that can be."""
        self.pins = True  # whether such floats may be guarded to be what they are, or Python goes on instead
        self.integers: frozenset[s.Source] = frozenset()
        """Where an earlier capture found another integer: a symbol, as sizes are."""
        self.graph.sizes.prelude = self.prelude
        self.symbols = Symbols(self.graph.sizes.sizes)
        self.symbols.sizes.where = self._where
        self.innermost: Interpreter | None = None
        """The interpreter of the function that runs now, if it is not that of the root frame."""

    def _where(self) -> str:
        return str((self.innermost or self.current).location())

    # -- reading real objects -------------------------------------------------

    def wrap(self, obj: Any, source: s.Source, *, pinned: bool = False) -> Value:
        """The value of an object that is looked at."""
        return wrap(self, obj, source, pinned)

    def remember(self, obj: Any, value: Value) -> None:
        """Later reads of the same object give the same value."""
        self.objects[id(obj)] = value
        if isinstance(value, FunctionValue) and value.obj is None:  # the object stands in for a new function
            self._functions[id(obj)] = value
        self._keep.append(obj)

    def read(self, obj: Any, source: s.Source, *, pinned: bool = False) -> Value:
        """The value of an object that is read, to be looked at later."""
        if id(obj) in self.stand_ins:
            return self.stand_ins[id(obj)]
        if pinned and type(obj) in LITERAL_TYPES:
            return ConstantValue(obj)
        return LazyValue(self, obj, source, pinned=pinned)

    def known(self, obj: Any) -> Value:
        """The value of an object that compiled code may refer to itself."""
        if type(obj) is torch.SymInt:
            return size_value(obj, self.graph.sizes)
        if is_literal(obj):
            return ConstantValue(obj) if type(obj) is not tuple else TupleValue([self.known(item) for item in obj])
        value = self.objects.get(id(obj))
        if value is not None:
            if id(obj) not in self.stand_ins:
                self.guards.pin(value)
            return value
        if isinstance(obj, types.FunctionType):
            return self.function(obj)
        if isinstance(obj, (tuple, slice)):
            return fresh(self, obj)
        return wrap(self, obj, self.const_source(obj), True)

    def fresh(self, obj: Any) -> Value:
        """The value of an object that an evaluation has just made."""
        return fresh(self, obj)

    def const_source(self, obj: Any) -> s.Source:
        """A source that is the object itself."""
        return s.Const(obj, describe(obj))

    def function(self, fn: types.FunctionType) -> FunctionValue:
        """A real function that is known by identity."""
        value = self._functions.get(id(fn))
        if value is None:
            value = self._functions[id(fn)] = FunctionValue.of(self, fn, None)
            self._keep.append(fn)
        return value

    def cell(self, cell: types.CellType, name: str, source: s.Source) -> CellValue:
        """A real cell; its content is read lazily."""
        value = self._cells.get(id(cell))
        if value is None:
            self._keep.append(cell)
            try:
                content: Value | None = self.read(cell.cell_contents, s.CellContents(source))
            except ValueError:
                content = None
            value = self._cells[id(cell)] = CellValue(content, name, source, cell)
        return value

    def code_constant(self, obj: Any) -> Value:
        """A constant of a code object."""
        if type(obj) in LITERAL_TYPES:
            return ConstantValue(obj)
        value = self._constants.get(id(obj))
        if value is None:
            value = fresh(self, obj)
            if type(obj) is tuple:
                value.source = self.const_source(obj)  # the same object at each call
            self._constants[id(obj)] = value
            self._keep.append(obj)
        return value

    # -- globals ----------------------------------------------------------------

    def namespace(self, variables: dict[str, Any]) -> s.Namespace | None:
        """The globals of an inlined function; None for the frame's own."""
        if variables is self.frame_globals:
            return None
        namespace = self._namespaces.get(id(variables))
        if namespace is None:
            name = str(variables.get("__name__", "globals"))
            namespace = self._namespaces[id(variables)] = s.Namespace(name, variables)
        return namespace

    def load_global(self, interp: Interpreter, name: str) -> Value:
        """A global of the interpreter's function, else a builtin."""
        variables = interp.globals
        changed = self.effects.global_value(variables, name)
        if changed is not None:
            return changed
        key = (id(variables), name)
        value = self._globals.get(key)
        if value is not None:
            return value
        pinned = is_library(variables.get("__name__"))
        source: s.Source = s.Global(name, interp.namespace)
        if name in variables:
            if pinned:
                self.guards.fixed(source, variables[name])
            value = self.read(variables[name], source, pinned=pinned)
            self.found.append(value)
        elif name in interp.builtins:
            obj = interp.builtins[name]
            source = s.Builtin(name)
            if interp.namespace is not None:
                self.guards.lacks_key(s.Variables(interp.namespace), name)
                source = s.Global(name, s.Namespace("builtins", interp.builtins))
            self.guards.fixed(source, obj)
            value = self.read(obj, self.const_source(obj), pinned=True)
        else:
            self.guards.lacks_key(s.Variables(interp.namespace), name)
            self.guards.lacks_key(s.Variables(s.Namespace("builtins", interp.builtins)), name)
            interp.raise_real(NameError(f"name {name!r} is not defined", name=name))
        self._globals[key] = value
        return value

    def module_global(self, module: types.ModuleType, name: str, obj: Any) -> Value:
        """An attribute of a Python module."""
        variables = vars(module)
        if name not in variables:  # a property of its class, or made by its __getattr__
            return self.read(obj, s.Attr(self.const_source(module), name), pinned=not is_literal(obj))
        source = s.Global(name, self.namespace(variables))
        if not is_library(module.__name__):
            return self.read(obj, source)
        self.guards.fixed(source, obj)
        if isinstance(obj, (type, types.ModuleType)):
            return self.known(obj)
        return self.read(obj, source, pinned=True)

    # -- attributes ----------------------------------------------------------------

    def lookup(self, cls: type, name: str) -> tuple[Any, type | None]:
        """What a class finds under a name, as it is, and which class of its bases holds it; guarded."""
        if id(cls) in self.graph.new_objects:
            return self._lookup_in_new(cls, name)
        lookup = self._lookups.get((cls, name))
        if lookup is None:
            lookup = self._lookups[cls, name] = class_lookup(cls, name)
            if is_odd_method(cls, name, lookup[0]):
                del self._lookups[cls, name]
                raise Break("unsupported-call", f"{name} of {cls.__name__} is a {type(lookup[0]).__name__}")
            if not cls.__flags__ & _IMMUTABLE:
                self._guard_entry(cls, name, *lookup)
        for base in cls.__mro__ if self.effects.assigned else ():
            if base is lookup[1] or self.effects.global_value(base, name) is not None:
                return lookup if base is lookup[1] else (_WRITTEN, base)
        return lookup

    def _lookup_in_new(self, cls: type, name: str) -> tuple[Any, type | None]:
        """The same for a class that captured code made: only in bases of other code may it change."""
        for base in cls.__mro__:
            if id(base) not in self.graph.new_objects:
                entry, owner = self.lookup(base, name)
                if owner is base:
                    return entry, owner
            elif name in vars(base):
                return vars(base)[name], base
        return MISSING, None

    def _guard_entry(self, cls: type, name: str, entry: Any, owner: type | None) -> None:
        """A class finds the same under a name; data are looked at by those who read them."""
        source = s.ClassAttr(self.const_source(cls), name)
        if owner is None:
            self.guards.lacks_entry(source.base, name)
        elif name[:2] == "__" or callable(entry) or hasattr(type(entry), "__get__") or is_library(owner.__module__):
            self.guards.fixed(source, entry)
        else:
            self.guards.type(source, type(entry))
            if owner is not cls:
                self.guards.same(source, s.ClassAttr(self.const_source(owner), name))

    def class_value(self, owner: type, name: str, obj: Any) -> Value:
        """A plain attribute of a class."""
        if id(owner) in self.graph.new_objects:
            return self.known(obj)
        written = self.effects.global_value(owner, name)
        return written or self.read(
            obj, s.ClassAttr(self.const_source(owner), name), pinned=is_library(owner.__module__)
        )

    def class_attribute(self, value: Value, name: str) -> Value | None:
        """An attribute of a value's class, bound; None for those of built-in kinds."""
        cls = value.python_type()
        entry, owner = self.lookup(cls, name)
        if entry is MISSING or owner is None or not isinstance(entry, (types.FunctionType, property, classmethod)):
            return None
        interp = self.current
        return bind(interp, entry, owner, value, name)

    current: Interpreter
    """The interpreter of the root frame."""

    def own_attribute(self, value: Any, name: str) -> Value:
        """An attribute that a tensor carries."""
        base = value.source if value.source is not None else self.const_source(value.obj)
        return self.read(getattr(value.obj, name), s.Attr(base, name))

    def dict_storage(self, value: Value) -> DictValue | None:
        """The dictionary in a value, if its class iterates it as dict does."""
        value = value.realize()
        if isinstance(value, DictValue):
            return value
        if isinstance(value, InstanceDictValue):
            return value.snapshot(self.current)
        if isinstance(value, ObjectValue) and isinstance(value.storage, DictValue):
            names = ("__iter__", "keys", "__getitem__")
            if not any(isinstance(self.lookup(value.cls, name)[0], types.FunctionType) for name in names):
                return value.storage
        return None

    # -- module trees ---------------------------------------------------------------

    def module_path(self, source: s.Source) -> str:
        """Place of a module below the object that the frame was given, as a name."""
        self._module_sources.add(source)
        return self._path(source)

    def _path(self, source: s.Source) -> str:
        path = self._paths.get(source)
        if path is None:
            if isinstance(source, (s.ModuleItem, s.InstanceAttr, s.Attr, s.Item)):
                before, name = self._path(source.base), str(source.key if isinstance(source, s.Item) else source.name)
                path = f"{before}_{name}" if before else name
            else:
                path = "" if isinstance(source, s.Const) or str(source) == "self" else str(source)
            self._paths[source] = path
        return path

    def parameter_path(self, source: s.Source) -> str | None:
        """Place of a tensor that belongs to a module tree; None for others."""
        if isinstance(source, s.ModuleItem):
            return self._path(source)
        if isinstance(source, s.InstanceAttr) and source.base in self._module_sources:
            return self._path(source)
        return None

    def module_table(self, module: ModuleValue, name: str) -> Value:
        """`_parameters`, `_buffers`, `_modules` or a dict of hooks."""
        source = s.InstanceAttr(module.base(self.current), name)
        table = module.obj.__dict__.get(name)
        if table is None or name.endswith("hooks"):  # handles lead to those of hooks too
            return self.read(table, source)
        mapping = DictValue({}, source, type(table), table)
        for key, item in table.items():
            entry = module.fields.get(key) if key in module.changed else None
            if entry is None:
                entry = self.read(item, s.ModuleItem(module.base(self.current), name, key))
            mapping.entries[key] = (ConstantValue(key) if is_literal(key) else self.known(key), entry)
        return mapping

    # -- guards that values ask for ----------------------------------------------------

    def guard_keys(self, value: DictValue) -> None:
        """The keys of a dictionary, in order."""
        if value.source is None:
            return
        keys = tuple(dict.keys(value.obj or {}))
        if all(is_literal(key) for key in keys):
            self.guards.keys(value.source, keys)
        else:
            self.guards.length(value.source, len(keys))
            for key, _ in value.entries.values():
                key.realize()

    def guard_missing_key(self, value: DictValue, key: Value) -> None:
        """A key is not in a dictionary."""
        real = key.realize()
        if value.source is None:
            return
        if real.is_constant() and is_literal(real.as_constant()):
            self.guards.lacks_key(value.source, real.as_constant())
        else:
            self.guard_keys(value)

    def guard_no_attribute(self, value: ObjectValue, name: str) -> None:
        """An object has no attribute of its own by a name."""
        if value.is_local():
            self.guards.lacks_attribute(value.base(self.current), name)
        elif value.source is not None and not isinstance(value.source, s.Const):
            self.guards.lacks_key(s.InstanceDict(value.source), name)

    # -- policy ------------------------------------------------------------------------

    def check_inline(self, function: FunctionValue) -> None:
        """Refuse functions not to be looked into, and guard others; raises Break: it runs as plain Python."""
        if function.obj is not None and own_mark(function.obj, DISABLED):
            raise Break("disabled-function", f"{function.describe()} is marked with disable()")
        if known_callables.is_opaque(function.globals.get("__name__"), function.obj):
            raise Break("unsupported-call", f"{function.describe()} of {function.globals.get('__name__')} is called")
        fn = function.obj
        if fn is None or not function.pinned or id(fn) in self._inlined:
            return
        self._inlined.add(id(fn))
        source = self.const_source(fn)
        self.guards.code(source, fn)
        for name in ("__defaults__", "__kwdefaults__"):
            if (part := getattr(fn, name)) is not None:
                self.guards.identity(s.FunctionPart(source, name), part)
