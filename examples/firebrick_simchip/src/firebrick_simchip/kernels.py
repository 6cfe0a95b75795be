"""The chip's kernel language and what executes it: a small part of Python's syntax, run by all lanes in step.

    def k0(a0, a1):
      x1 = load(a0, f32, 4 * lane)
      x2 = max(x1, 0.0)
      store(a1, f32, lane, x2)

`lane` is the number of the lane. Addresses count elements. `for i in range(n):` is the only other statement.
"""

import ast

import numpy as np

__all__ = ["INSTRUCTIONS", "ChipError", "Kernel", "assemble"]


class ChipError(RuntimeError):
    """The chip refused a command."""


TYPES = {"f32": np.float32, "b8": np.bool_}

INSTRUCTIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: np.float32(1) / np.sqrt(a),
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda a: np.float32(1) / (np.float32(1) + np.exp(-a)),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "where": np.where,
}
"""What a lane can do beside loads and stores; `and_`, `or_` and `not_` in the text, since Python keeps the words."""

REGISTERS = {
    "convert": lambda a, t: np.asarray(a).astype(t),
    "scratch": lambda size: [None] * size,
    "get": lambda array, i: array[i],
    "put": lambda array, i, value: array.__setitem__(i, value),
}
"""Conversions, and arrays that each lane has for itself."""

ADDRESS = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
}


class Kernel:
    """One kernel, ready to run."""

    def __init__(self, tree):
        self.name = tree.name
        self.params = [a.arg for a in tree.args.args]
        self.body = tree.body
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and not (
                isinstance(node.func, ast.Name)
                and node.func.id.rstrip("_") in {"load", "store", "range", *INSTRUCTIONS, *REGISTERS}
            ):
                raise ChipError(f"{self.name}, line {node.lineno}: no instruction {ast.unparse(node.func)}")

    def run(self, memory, lanes):
        """Execute on these arrays of bytes; returns how many instructions each lane took."""
        if len(memory) != len(self.params):
            raise ChipError(f"{self.name} takes {len(self.params)} buffers, not {len(memory)}")
        env = dict(zip(self.params, memory, strict=True))
        env.update(TYPES, lane=np.arange(lanes), inf=np.float32("inf"), nan=np.float32("nan"))
        self.count = 0
        with np.errstate(all="ignore"):
            self._block(self.body, env)
        return self.count

    def _block(self, body, env):
        for line in body:
            if isinstance(line, ast.For):
                for i in range(int(self._value(line.iter.args[0], env))):
                    env[line.target.id] = i
                    self._block(line.body, env)
            elif isinstance(line, ast.Assign):
                env[line.targets[0].id] = self._value(line.value, env)
            elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
                self._value(line.value, env)
            else:
                raise ChipError(f"{self.name}, line {line.lineno}: no such statement")

    def _value(self, node, env):
        if isinstance(node, ast.Name):
            return env[node.id]
        if isinstance(node, ast.Constant):
            return np.float32(node.value) if isinstance(node.value, float) else node.value
        if isinstance(node, ast.UnaryOp):
            return -self._value(node.operand, env)
        if isinstance(node, ast.BinOp):
            return ADDRESS[type(node.op)](self._value(node.left, env), self._value(node.right, env))
        args = [self._value(a, env) for a in node.args]
        self.count += 1
        if node.func.id == "load":
            memory, dtype, index, *mask = args
            values = memory.view(dtype)
            return np.where(mask[0], values[np.where(mask[0], index, 0)], dtype(0)) if mask else values[index]
        if node.func.id == "store":
            memory, dtype, index, value, *mask = args
            index, value = np.broadcast_arrays(index, value)
            where = np.broadcast_to(mask[0], index.shape) if mask else slice(None)
            memory.view(dtype)[index[where] if mask else index] = value[where] if mask else value
            return None
        return (INSTRUCTIONS | REGISTERS)[node.func.id.rstrip("_")](*args)


def assemble(text):
    """Kernels by name.

    Raises:
        ChipError: the text is not in the language, or uses an instruction that the chip lacks.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ChipError(f"line {error.lineno}: {error.msg}") from None
    return {part.name: Kernel(part) for part in tree.body}
