"""Torch's global state as numbers, one a kind: how torch's Python functions tell it, and how it prints."""

from __future__ import annotations

import abc
import functools
import threading
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from firebrick import _native
from firebrick.fakes.mode import hooks_paused
from firebrick.ir.graph.nested import Nested

STATE_KINDS: dict[str, tuple[str, str]] = {
    "GRAD_MODE": ("grad_mode", "Whether autograd records."),
    "INFERENCE_MODE": ("inference_mode", "Whether inference mode is on."),
    "AUTOCAST": ("autocast", "Devices, dtypes and cache of autocast."),
    "DETERMINISTIC": ("deterministic algorithms", "torch.use_deterministic_algorithms."),
    "DEFAULT_DTYPE": ("default dtype", "torch.get_default_dtype."),
    "TORCH_FUNCTION": (
        "torch function",
        "Whether __torch_function__ is on, and how many function and dispatch modes are.",
    ),
    "TRANSFORMS": (
        "transforms",
        "Whether torch.jit traces or a transform of torch.func runs, and how many levels of forward-mode gradients do.",
    ),
    "THREADS": ("torch.get_num_threads()", "Threads of an operation."),
    "MATMUL_PRECISION": ("torch.get_float32_matmul_precision()", "Precision of float32 matmuls."),
    "ABSTRACT_CLASSES": ("registrations of abstract classes", "How often a class was registered with an abstract one."),
    "DEFAULT_DEVICE": ("default device", "The device of `with torch.device(...)` or torch.set_default_device."),
}
"""Kind of state -> its name in prints, its meaning."""

_BY_NUMBER = {
    _native.tensor_meta(torch.empty(0, dtype=dtype, device="cpu"))[0]: dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
"""Torch's numbers of the dtypes that can be the default or autocast's."""
_NUMBERS = {dtype: number for number, dtype in _BY_NUMBER.items()}


def _autocast() -> int:
    cpu, cuda = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    if not cpu and not cuda:
        return 0
    number = cpu | cuda << 1 | torch.is_autocast_cache_enabled() << 2
    if cpu:
        number |= _NUMBERS.get(torch.get_autocast_dtype("cpu"), 0xFF) << 8
    if cuda:
        number |= _NUMBERS.get(torch.get_autocast_dtype("cuda"), 0xFF) << 16
    return number


def _torch_function() -> int:
    disabled = 0 if torch._C._is_torch_function_enabled() else 2 if torch._C._is_torch_function_all_disabled() else 1
    return disabled | torch._C._len_torch_function_stack() << 8 | torch._C._len_torch_dispatch_stack() << 24


def _transforms() -> int:
    inside = torch._C._functorch.maybe_current_level() is not None
    return bool(torch._C._get_tracing_state()) | inside << 1 | _has_set() << 2 | (forward_ad._current_level + 1) << 8


class _Set(functools.partial[Any]):
    """A hook that packs saved tensors, set by code behind a graph."""


def set_hooks(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
    """Set hooks on saved tensors behind a graph: until they are gone, this thread's calls are Python's."""
    torch._C._autograd._push_saved_tensors_default_hooks(_Set(pack), unpack)  # type: ignore[attr-defined]
    _native.look_for_hooks(True)


def _has_set() -> bool:
    """Whether there are such hooks."""
    with hooks_paused() as paused:
        has_set = any(type(pack) is _Set for pack, _ in paused)
    _native.look_for_hooks(has_set)
    return has_set


_PRECISIONS = ("highest", "high", "medium")


def is_watched() -> bool:
    """Whether calls of this thread are not what they seem: a trace, a transform or a mode of the user's sees them.

    A mode that only sets a device is none. Within a `__torch_dispatch__` no history is kept, nor are writes counted.
    """
    if torch._C._len_torch_dispatch_stack() or _transforms():
        return True
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView):
        return True
    stack = range(torch._C._len_torch_function_stack())
    return any(not isinstance(torch._C._get_function_stack_at(place), DeviceContext) for place in stack)


def default_device() -> torch.device | None:
    """The device that a mode of this thread gives to what names none; the innermost mode decides."""
    for place in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(place)
        if isinstance(mode, DeviceContext):
            return mode.device  # type: ignore[no-any-return]
    return None


_DEVICES: dict[str, int] = {"None": 0}


_READERS = {
    "GRAD_MODE": torch.is_grad_enabled, "INFERENCE_MODE": torch.is_inference_mode_enabled, "AUTOCAST": _autocast,
    "DETERMINISTIC": lambda: (0, 2, 1)[torch.get_deterministic_debug_mode()],
    "DEFAULT_DTYPE": lambda: _NUMBERS[torch.get_default_dtype()],
    "TORCH_FUNCTION": _torch_function, "TRANSFORMS": _transforms, "THREADS": torch.get_num_threads,
    "MATMUL_PRECISION": lambda: _PRECISIONS.index(torch.get_float32_matmul_precision()),
    "ABSTRACT_CLASSES": abc.get_cache_token,
    "DEFAULT_DEVICE": lambda: _DEVICES.setdefault(str(default_device()), len(_DEVICES)),
}  # fmt: skip

_native.set_state_readers(
    tuple(_READERS[name] for name in _native.STATES),
    vars(forward_ad),
    int(torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode),  # type: ignore[call-overload]
)


def state_value(kind: str) -> int:
    """The state of a kind now, as a number."""
    return _native.state_read(_native.STATES[kind])


def state_text(kind: str, value: int) -> str:
    """How a number of a kind reads."""
    if kind == "DEFAULT_DTYPE":
        return str(_BY_NUMBER.get(value, value))
    if kind == "AUTOCAST" and value:
        devices = [
            f"{device} {_BY_NUMBER.get(value >> shift & 0xFF, '?')}"
            for bit, device, shift in ((0, "cpu", 8), (1, "cuda", 16))
            if value >> bit & 1
        ]
        return ", ".join(devices) + ("" if value & 4 else ", no cache")
    if kind == "TORCH_FUNCTION":
        parts = [("on", "off for subclasses", "off")[value & 3]]
        for shift, name in ((8, "function"), (24, "dispatch")):
            if count := value >> shift & 0xFFFF:
                parts.append(f"{count} {name} modes")
        return ", ".join(parts)
    if kind == "TRANSFORMS" and value:
        kinds = (1, "torch.jit traces"), (2, "torch.func transforms"), (4, "hooks on saved tensors")
        parts = [name for bit, name in kinds if value & bit]
        return ", ".join([*parts, *[f"{value >> 8} levels of forward-mode gradients"] * (value > 0xFF)])
    if kind == "MATMUL_PRECISION":
        return _PRECISIONS[value]
    if kind == "DEFAULT_DEVICE":
        return list(_DEVICES)[value]
    if kind in ("THREADS", "ABSTRACT_CLASSES"):
        return str(value)
    return ("off", "on", "on, warning only")[value] if 0 <= value < 3 else str(value)


def restoring_modes(graph: Callable[..., Any], switches: Collection[Any]) -> Callable[..., Any]:
    """The graph, which calls `switches` and may raise between two: then the thread's modes are what they were."""
    if not switches:
        return graph
    devices = ("cpu", "cuda") if torch.amp.autocast_mode._enter_autocast in switches else ()

    def call(*inputs: Any) -> Any:
        grad, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
        states = [(name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in devices]
        nesting, depth = _nesting() if devices else 0, len(open_contexts())
        try:
            return graph(*inputs)
        except BaseException:
            torch._C._set_grad_enabled(grad)
            leave_contexts(depth)
            for name, on, dtype in states:
                torch.set_autocast_enabled(name, on)
                torch.set_autocast_dtype(name, dtype)
            if devices:
                torch.set_autocast_cache_enabled(cache)
                while _nesting() > nesting:
                    torch.autocast_decrement_nesting()
                if nesting == 0:
                    torch.clear_autocast_cache()
            raise

    return call


def starts_recording(graph: fx.Graph) -> bool:
    """Whether a graph that is called while gradients are not recorded switches that on.

    Such a graph is compiled and called with gradients on, like others that are off in between; it says so at its start.
    """
    if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return False
    calls = [node for node in graph.nodes if node.op.startswith("call")]
    switches = [node for node in calls if node.target is torch._C._set_grad_enabled]
    if not any(node.args[0] for node in switches):
        return False
    if calls[0] is not switches[0]:
        with graph.inserting_before(calls[0]):
            off = graph.call_function(torch._C._set_grad_enabled, (False,))
        off.meta.update(switches[0].meta)
    return True


def recording(graph: Callable[..., Any]) -> Callable[..., Any]:
    """A graph that `starts_recording` is true for, called with gradients on; they are off again behind it."""

    def call(*inputs: Any) -> Any:
        torch._C._set_grad_enabled(True)
        try:
            return graph(*inputs)
        finally:
            torch._C._set_grad_enabled(False)

    return call


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


# -- switches ------------------------------------------------------------------------

_entered = threading.local()


def open_contexts() -> list[Any]:
    """The context managers that graphs of this thread have entered and not left."""
    if not hasattr(_entered, "contexts"):
        _entered.contexts = []
    return _entered.contexts


def leave_contexts(depth: int) -> None:
    """Leave those that were entered since there were `depth`."""
    contexts = open_contexts()
    while len(contexts) > depth:
        contexts.pop().__exit__(None, None, None)


class Switch(Nested):
    """Enters what `make` gives, or leaves what was entered last where it is None; `once` calls `make` alone.

    It changes how torch computes what is behind it in the graph; a trace has it on and keeps nothing of it.
    """

    def __init__(self, name: str, make: Callable[[], Any] | None, key: str, *, once: bool = False) -> None:
        super().__init__(name, (), key)
        self.make, self.once = make, once

    def __call__(self) -> None:
        """Switch."""
        if self.make is None:
            leave_contexts(max(len(open_contexts()) - 1, 0))
        elif self.once:
            self.make()
        else:
            context = self.make()
            context.__enter__()
            open_contexts().append(context)
