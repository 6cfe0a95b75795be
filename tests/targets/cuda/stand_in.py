"""The host program on a device that is not there: a driver of C whose kernels are functions of this process."""

from firebrick import _native
from firebrick.runtime.bits import ConstantsChanged
from firebrick.runtime.load import resolve


def module(name, **changes):
    options = {"code": b"cubin\0", "name": name, "device": 0, "threads": 128, "shared": 0, "dependent": False}
    return _native.CudaModule(**{**options, **changes})


def slot(kind, *sizes, offset=0):
    return [kind, "f32", list(sizes), [1], offset, "cpu"]


def executable(table, recorder=None, forced=False, constants=(), labels=None, **modules):
    rows = {
        "registers": [],
        "views": [],
        "arena": [0, "cpu"],
        "mutated": [],
        "undo": [],
        "release_gil": False,
        "recipe": [],
        "sources": [],
        **table,
    }
    kernels = {name: m.kernel() for name, m in modules.items()}
    return _native.Executable(
        table=rows,
        kernels=kernels,
        resolve=resolve,
        constants=list(constants),
        sources=[],
        refresh=None,
        changed=ConstantsChanged,
        libraries=list(modules.values()),
        recorder=recorder,
        forced=forced,
        **({} if labels is None else {"labels": labels}),
    )
