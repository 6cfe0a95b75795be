"""The simulated device: memory, queue, commands, clock. It knows nothing of Firebrick or PyTorch."""

import itertools
import queue
import threading
from dataclasses import dataclass

import numpy as np

__all__ = ["Chip", "ChipError", "Command"]

ALIGNMENT = 256


class ChipError(RuntimeError):
    """The chip refused a command."""


@dataclass(frozen=True)
class Buffer:
    """A place in the chip's memory; float32, dense."""

    number: int
    offset: int
    shape: tuple


@dataclass(frozen=True)
class Command:
    """One entry of the log: what ran, on which buffers, from which tick to which."""

    name: str
    buffers: tuple
    start: int
    end: int

    def __str__(self):
        return f"[{self.start:>9} {self.end:>9}] {self.name} {' '.join(f'b{b}' for b in self.buffers)}"


def _matmul_div(a, b, divisor):
    return (a @ b) / np.float32(divisor)


def _gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


KERNELS = {
    "matmul": lambda a, b: a @ b,
    "matmul_div": _matmul_div,
    "matmul_add": lambda a, b, c: a @ b + c,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "add_scalar": lambda a, s: a + np.float32(s),
    "mul_scalar": lambda a, s: a * np.float32(s),
    "div_scalar": lambda a, s: a / np.float32(s),
    "relu": lambda a: np.maximum(a, np.float32(0)),
    "tanh": np.tanh,
    "gelu_tanh": _gelu_tanh,
}
"""What the chip can run: name -> numpy function on its buffers and numbers."""


class Chip:
    """A device with memory of its own and one queue, whose commands run in order behind the caller's back.

    Args:
        memory: bytes on the chip.
        launch: ticks that every command costs.
        bandwidth: bytes that move in a tick.
        throughput: multiplications and additions in a tick.
    """

    def __init__(self, memory=256 << 20, launch=100, bandwidth=64, throughput=1024):
        self.memory = np.zeros(memory, np.uint8)
        self.launch, self.bandwidth, self.throughput = launch, bandwidth, throughput
        self.clock = 0
        self.log = []
        self.live = {}
        self._numbers = itertools.count()
        self._free = [(0, memory)]
        self._lock = threading.RLock()
        self._queue = queue.Queue()
        self._error = None
        threading.Thread(target=self._work, daemon=True, name="simchip").start()

    # ------------------------------------------------------------ memory

    def allocate(self, shape):
        """Reserve a buffer.

        Raises:
            ChipError: the memory is full.
        """
        shape = tuple(int(s) for s in shape)
        size = -(-max(int(np.prod(shape)) * 4, 1) // ALIGNMENT) * ALIGNMENT
        with self._lock:
            for i, (offset, room) in enumerate(self._free):
                if room >= size:
                    self._free[i : i + 1] = [(offset + size, room - size)] if room > size else []
                    buffer = Buffer(next(self._numbers), offset, shape)
                    self.live[buffer.number] = (buffer, size)
                    return buffer
        raise ChipError(f"out of memory: {size} bytes wanted, {self.free_bytes()} free")

    def release(self, buffer):
        """Give a buffer back once the commands before this one are done."""
        self._submit("release", (buffer,), (), None, cost=0)

    def free_bytes(self):
        """Bytes that no buffer has."""
        return sum(room for _, room in self._free)

    def _give_back(self, buffer):
        with self._lock:
            _, size = self.live.pop(buffer.number)
            spans = sorted([*self._free, (buffer.offset, size)])
            self._free = []
            for offset, room in spans:
                if self._free and sum(self._free[-1]) == offset:
                    self._free[-1] = (self._free[-1][0], self._free[-1][1] + room)
                else:
                    self._free.append((offset, room))

    def _view(self, buffer):
        if buffer.number not in self.live:
            raise ChipError(f"b{buffer.number} was released or belongs to another chip")
        count = int(np.prod(buffer.shape)) * 4
        return self.memory[buffer.offset : buffer.offset + count].view(np.float32).reshape(buffer.shape)

    # ------------------------------------------------------------ commands

    def write(self, array):
        """Copy a float32 array to the chip; returns its buffer."""
        if array.dtype != np.float32:
            raise ChipError(f"only float32 goes to the chip, not {array.dtype}")
        buffer = self.allocate(array.shape)
        kept = np.ascontiguousarray(array)
        self._submit("write", (buffer,), (kept,), None, cost=kept.nbytes // self.bandwidth)
        return buffer

    def read(self, buffer):
        """Wait for the commands so far and copy a buffer from the chip.

        Raises:
            ChipError: one of the commands failed.
        """
        out = np.empty(buffer.shape, np.float32)
        self._submit("read", (buffer,), (out,), None, cost=out.nbytes // self.bandwidth)
        self.wait()
        return out

    def run(self, name, inputs, output, numbers=()):
        """Queue a kernel; returns at once. Shapes are checked when the command runs.

        Raises:
            ChipError: the chip has no such kernel.
        """
        if name not in KERNELS:
            raise ChipError(f"the chip has no kernel {name!r}")
        moved = sum(int(np.prod(b.shape)) for b in (*inputs, output)) * 4
        work = int(np.prod(output.shape)) * (inputs[0].shape[-1] if name.startswith("matmul") else 1)
        cost = max(moved // self.bandwidth, work // self.throughput)
        self._submit(name, (*inputs, output), tuple(numbers), output, cost)

    def reshaped(self, buffer, shape):
        """The same memory under another shape."""
        if int(np.prod(shape)) != int(np.prod(buffer.shape)):
            raise ChipError(f"b{buffer.number} of shape {buffer.shape} can't be {tuple(shape)}")
        return Buffer(buffer.number, buffer.offset, tuple(int(s) for s in shape))

    def wait(self):
        """Return when the queue is empty.

        Raises:
            ChipError: a command failed; the queue goes on with the next.
        """
        self._queue.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _submit(self, name, buffers, extra, output, cost):
        self._queue.put((name, buffers, extra, output, cost))

    def _work(self):
        while True:
            name, buffers, extra, output, cost = self._queue.get()
            try:
                self._execute(name, buffers, extra, output, cost)
            except Exception as error:  # noqa: BLE001 - carried to the next wait()
                self._error = self._error or (error if isinstance(error, ChipError) else ChipError(f"{name}: {error}"))
            finally:
                self._queue.task_done()

    def _execute(self, name, buffers, extra, output, cost):
        start = self.clock
        if name == "release":
            self._give_back(buffers[0])
            return
        if name == "write":
            self._view(buffers[0])[...] = extra[0]
        elif name == "read":
            extra[0][...] = self._view(buffers[0])
        else:
            result = KERNELS[name](*[self._view(b) for b in buffers[:-1]], *extra)
            if result.shape != output.shape:
                raise ChipError(f"{name} gives {result.shape}, its output b{output.number} is {output.shape}")
            self._view(output)[...] = result
        self.clock = start + self.launch + cost
        self.log.append(Command(name, tuple(b.number for b in buffers), start, self.clock))
