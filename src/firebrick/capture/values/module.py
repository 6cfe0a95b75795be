"""torch.nn.Module trees, and Python's own modules.

A module tree is guarded as a whole by its version at the root, so reading attributes, parameters
and submodules costs no guard of its own. `__call__` runs `forward` directly when there are no hooks; what autograd
itself must call, or code that raised, is set up by plain Python.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.sources import Global, InstanceAttr, ModuleItem, Namespace, Variables
from firebrick.capture.values.base import Args, Interpreter, KnownValue, Kwargs, Raised, Source, Value, ValueEmitter
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.object import MISSING, ObjectValue

_TABLES = ("_parameters", "_buffers", "_modules")
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_MODULES = Namespace("torch.nn.modules.module", vars(torch.nn.modules.module))
_CALL: Any = torch.nn.Module._wrapped_call_impl  # what a class's `__call__` is that nobody has replaced
_CALL_IMPL: Any = torch.nn.Module._call_impl


class ModuleValue(ObjectValue):
    """A torch.nn.Module that existed before; `path` is its place below the guarded root."""

    __slots__ = ("path",)

    def __init__(self, obj: torch.nn.Module, source: Source, path: str) -> None:
        super().__init__(type(obj), obj, source)
        self.path = path

    def own(self, interp: Interpreter, name: str) -> Any:
        """Own attributes, then parameters, buffers and submodules."""
        for table in self._tables():
            if name in table.entries:
                return table.entries[name][1]
            if name in table.obj:
                return MISSING
        field = self.fields.get(name)
        if field is not None:
            return field
        namespace = self.obj.__dict__
        if name in (*_TABLES, *_FORWARD_HOOKS, *_BACKWARD_HOOKS):
            value: Value = interp.tracer.module_table(self, name)
        elif name in namespace:
            value = interp.tracer.read(namespace[name], InstanceAttr(self.base(interp), name))
        else:
            for table in _TABLES:
                items = namespace.get(table)
                if items is not None and name in items:
                    source = ModuleItem(self.base(interp), table, name)
                    value = interp.tracer.read(items[name], source)
                    break
            else:
                interp.tracer.guard_no_attribute(self, name)
                if interp.lookup(self.cls, name)[0] is MISSING:
                    for table in _TABLES:
                        interp.tracer.guards.lacks_key(InstanceAttr(self.base(interp), table), name)
                return MISSING
        self.fields[name] = value
        return value

    def _tables(self) -> list[Any]:
        """The dicts of parameters, buffers and submodules that captured code has looked at, and may have changed."""
        return [
            self.fields[name].realize()
            for name in _TABLES
            if name in self.fields and self.obj.__dict__[name] is not None
        ]

    def generic_get_attr(self, interp: Interpreter, name: str) -> Value:
        """As for any object, with `nn.Module.__getattr__` done by `own`; a class's own is asked before the tables."""
        hook, owner = interp.lookup(self.cls, "__getattr__")
        if (
            owner is not torch.nn.Module
            and isinstance(hook, types.FunctionType)
            and name not in self.obj.__dict__
            and name not in self.fields
            and any(name in (self.obj.__dict__.get(table) or ()) for table in _TABLES)
            and interp.lookup(self.cls, name)[0] is MISSING
        ):
            return interp.tracer.function(hook).call(interp, [self, ConstantValue(name)], {})
        if name in self.fields or (name in self.obj._modules and name not in self.cls.__dict__):
            value = self.own(interp, name)
            if value is not MISSING:
                return value
        return super().generic_get_attr(interp, name)

    def _missing(self, interp: Interpreter, name: str, raised: Any) -> Value:
        hook, owner = interp.lookup(self.cls, "__getattr__")
        if owner is torch.nn.Module or hook is MISSING:
            if raised is not None:
                raise Raised(raised.value)
            interp.raise_new(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
        return super()._missing(interp, name, raised)

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """Plain attributes are written as an effect; parameters and submodules break."""
        _, owner = interp.lookup(self.cls, "__setattr__")
        if owner is not torch.nn.Module and owner is not object:
            super().set_attr(interp, name, value)
            return
        self.generic_set_attr(interp, name, value)

    def store(self, interp: Interpreter, name: str, value: Value) -> None:
        """Write an attribute; its module is then guarded attribute by attribute."""
        real = value.realize()
        namespace = self.obj.__dict__
        if isinstance(real, ModuleValue) and namespace["_modules"].get(name) is real.obj and name not in self.changed:
            self.own(interp, name)  # it stays what it is
            return
        if issubclass(real.python_type(), (torch.nn.Module, torch.nn.Parameter, torch.nn.Buffer)):
            raise Break("unsupported-attribute", f"a parameter or submodule of {self.describe()} is set")
        if name in namespace.get("_parameters", ()) or name in namespace.get("_modules", ()):
            raise Break("unsupported-attribute", f"a parameter or submodule of {self.describe()} is set")
        super().store(interp, name, value)
        for table in self._tables():
            if name in table.entries:
                table.entries[name] = (table.entries[name][0], value)

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """As it was called before, if a module like it was; else executed."""
        if interp.tracer.function_modes:
            return _call_module(interp, self, args, kwargs)
        return interp.tracer.repeats.call(self, args, kwargs, lambda: _call_module(interp, self, args, kwargs))

    def has_hooks(self, interp: Interpreter, name: str) -> bool:
        """Whether hooks of a kind are set on it; guarded."""
        return _has_any(interp, self.obj.__dict__.get(name), InstanceAttr(self.base(interp), name))

    def replay(self, emitter: ValueEmitter) -> Callable[[], None]:
        """Load changed attributes; the function returned writes them below `nn.Module.__setattr__`."""
        there = {**self.obj.__dict__, **self.obj._buffers}
        temps = {n: emitter.load_to_temp(v) for n in self.changed if (v := self.fields[n]) is not MISSING}
        gone = [name for name, first in self.changed.items() if first and name in there]

        def table(name: str) -> None:
            emitter.load(self)
            emitter.load_attr("_buffers" if name in self.obj._buffers else "__dict__")
            emitter.load_const(name)

        def store() -> None:
            for name in gone:
                table(name)
                emitter.delete_subscr()
            for name, temp in temps.items():
                emitter.load_fast(temp)
                table(name)
                emitter.store_subscr()

        return store


class NewModuleValue(ObjectValue):
    """A torch.nn.Module that captured code made; `nn.Module`'s own Python is inlined, but for `__call__`."""

    __slots__ = ()

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """`forward` and its hooks, if the class does not override `__call__`."""
        return _call_module(interp, self, args, kwargs)

    def has_hooks(self, interp: Interpreter, name: str) -> bool:
        """Whether hooks of a kind are set on it."""
        hooks = self.own(interp, name)
        return hooks is not MISSING and hooks.truth(interp)


def _call_module(interp: Interpreter, module: ModuleValue | NewModuleValue, args: Args, kwargs: Kwargs) -> Value:
    """Call a module: its `forward` and hooks, or what its class has for torch's own `__call__`; raises Break: the
    engine calls hooks of the module in the backward."""
    if interp.lookup(module.cls, "__call__")[0] is not _CALL:
        return ObjectValue.call(module, interp, args, kwargs)
    if torch.is_grad_enabled() and _is_hooked(interp, module, _BACKWARD_HOOKS):
        raise Break("unsupported-call", f"{module.describe()} has hooks that are called in the backward")
    if not _is_hooked(interp, module, _FORWARD_HOOKS):
        return module.get_attr(interp, "forward").realize().call(interp, args, kwargs)
    return interp.inline(interp.tracer.function(_CALL_IMPL), [module, *args], kwargs)


def _is_hooked(interp: Interpreter, module: ModuleValue | NewModuleValue, names: tuple[str, ...]) -> bool:
    """Whether hooks of one of the kinds are set on a module or on all modules; guarded."""
    every = {name: f"_global{name}" for name in names}
    return any(
        module.has_hooks(interp, name) or _has_any(interp, _MODULES.variables[hooks], Global(hooks, _MODULES))
        for name, hooks in every.items()
    )


def _has_any(interp: Interpreter, hooks: Any, source: Source) -> bool:
    """Whether there are hooks in a dict; guarded, unless captured code has changed it."""
    changed = interp.tracer.objects.get(id(hooks))
    if changed is not None:
        return changed.truth(interp)
    if hooks is not None:
        interp.tracer.guards.length(source, len(hooks))
    return bool(hooks)


class PythonModuleValue(KnownValue):
    """A Python module; its attributes are guarded by identity unless it is a library's."""

    __slots__ = ()

    def describe(self) -> str:
        """Its name."""
        return f"module {self.obj.__name__}"

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """A module's global."""
        try:
            attribute = getattr(self.obj, name)
        except AttributeError as error:
            namespace = interp.tracer.namespace(vars(self.obj))
            interp.tracer.guards.lacks_key(Variables(namespace), name)
            interp.raise_real(error)
        changed = interp.tracer.effects.global_value(self.obj.__dict__, name)
        return changed if changed is not None else interp.tracer.module_global(self.obj, name, attribute)

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """Write a module's global as an effect."""
        interp.tracer.effects.set_global(self.obj.__dict__, name, value)
