"""A target whose kernels are Python functions of lanes: complete, so that every part of the target API is run.

`PythonTarget(block)` starts as many programs as the lanes need; each finds its lanes by its program id and masks those
beyond the last, as a Triton kernel does. Without a block, all lanes run at once.
"""

import torch
from tests.ir.interp import find_op

from firebrick.extend import FunctionText, Target, Templates
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.scalar_ops import SCALAR_OPS

BLOCKS = "lane = program * {block} + arange({block})\nmask = lane < {{count}}"


class PythonTarget(Target):
    name = "python"
    dtypes = {d: f"dtypes['{d}']" for d, row in DTYPES.items() if row.loops}

    def __init__(self, block=0):
        self.block = block
        self.templates = Templates(
            kernel="def {name}(program, lane, {params}):\n{body}",
            lanes=BLOCKS.format(block=block) if block else "",
            mask="mask" if block else "",
            load="load({buffer}, {t}, {index}, None)",
            masked_load="load({buffer}, {t}, {index}, {mask})",
            store="store({buffer}, {t}, {index}, {value}, None)",
            masked_store="store({buffer}, {t}, {index}, {value}, {mask})",
            add="store({buffer}, {t}, {index}, {value}, None, 'add')" if not block else "",
            max="store({buffer}, {t}, {index}, {value}, None, 'max')" if not block else "",
            min="store({buffer}, {t}, {index}, {value}, None, 'min')" if not block else "",
            number="number({value}, {t})",
            cast="to({a}, {t})",
            scratch="{name} = [None] * {size}",
        )
        rows = {
            n: FunctionText("f_" + n + "(" + ", ".join("{%s}" % c for c in "abc"[: row.arity]) + ")")
            for n, row in SCALAR_OPS.items()
        }
        self.functions = {kind: rows for kind in ("float", "int", "uint", "bool")}
        self.live = 0

    # ------------------------------------------------------------ driver

    def load(self, texts, names, config):
        scope = {"dtypes": {d: row.torch for d, row in DTYPES.items()}, "arange": torch.arange, "number": _number}
        scope.update({"load": _load, "store": _store, "to": _to, "min": min, "max": max, "inf": float("inf")})
        scope.update({f"f_{n}": row.reference for n, row in SCALAR_OPS.items()})
        for text in texts:
            exec(text, scope)
        return {n: scope[n] for n in names}

    def launch(self, kernel, memory, sizes, grid):
        (lanes,) = grid
        if not self.block:
            return kernel(0, torch.arange(lanes), *memory, *sizes)
        for program in range(-(-lanes // self.block)):
            kernel(program, None, *memory, *sizes)

    def runs(self, op):
        return True

    def call(self, op, outs, args, kwargs):
        fn = find_op(op)
        names = [a.name for a in fn._schema.arguments if a.is_out]
        made = fn(
            *map(_tensor, args), **{k: _tensor(v) for k, v in kwargs.items()}, **dict(zip(names, map(_tensor, outs)))
        )
        for out, value in zip(outs, made if isinstance(made, (tuple, list)) else [made], strict=True):
            if out is not None and not names:
                _tensor(out).copy_(value)

    def allocate(self, nbytes):
        self.live += 1
        return torch.full((nbytes,), 0xFF, dtype=torch.uint8)

    def release(self, memory):
        self.live -= 1
        memory.fill_(0xFF)

    def write(self, memory, tensor):
        memory[: tensor.nbytes].view(tensor.dtype).copy_(tensor)

    def read(self, memory, tensor):
        tensor.copy_(memory[: tensor.nbytes].view(tensor.dtype))


def _tensor(value):
    if hasattr(value, "memory"):
        return value.memory.view(DTYPES[value.dtype].torch).as_strided(value.shape, value.strides, value.offset)
    return [_tensor(v) for v in value] if isinstance(value, list) else value


def _number(value, dtype):
    return torch.tensor(value, dtype=dtype)


def _load(memory, dtype, index, mask):
    flat = memory.view(dtype)
    if mask is None:
        return flat[index]
    return torch.where(mask, flat[torch.where(mask, index, 0)], flat.new_zeros(()))


def _store(memory, dtype, index, value, mask, mode=""):
    flat = memory.view(dtype)
    index, value = torch.broadcast_tensors(torch.as_tensor(index), value)
    if mask is not None:
        mask = torch.broadcast_to(mask, index.shape)
        index, value = index[mask], value[mask]
    index, value = index.reshape(-1), value.reshape(-1)
    if not mode:
        flat[index] = value
    elif mode == "add":
        flat.index_add_(0, index, value)
    else:
        flat.index_reduce_(0, index, value, {"max": "amax", "min": "amin"}[mode])


def _to(value, dtype):
    return torch.as_tensor(value).to(dtype)
