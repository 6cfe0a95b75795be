"""The simulated device: memory, queue, commands, clock. It knows nothing of Firebrick or PyTorch."""

import itertools
import queue
import threading
from dataclasses import dataclass

import numpy as np

from firebrick_simchip.kernels import ChipError

__all__ = ["Buffer", "Chip", "Command", "Operand"]

ALIGNMENT = 256
WIDTH = 64
"""Lanes that run in step."""


@dataclass(frozen=True)
class Buffer:
    """A place in the chip's memory."""

    number: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Operand:
    """A float32 array in a buffer; strides and offset count elements."""

    buffer: Buffer
    shape: tuple
    strides: tuple
    offset: int = 0


@dataclass(frozen=True)
class Command:
    """One entry of the log: what ran, on which buffers, from which tick to which."""

    name: str
    buffers: tuple
    start: int
    end: int

    def __str__(self):
        return f"[{self.start:>9} {self.end:>9}] {self.name} {' '.join(f'b{b}' for b in self.buffers)}"


ENGINE = {
    "matmul": lambda a, b: a @ b,
    "matmul_div": lambda a, b, divisor: (a @ b) / np.float32(divisor),
    "matmul_add": lambda a, b, c: a @ b + c,
}
"""What the matrix unit can run: name -> numpy function. All else is kernels."""


class Chip:
    """A device with memory of its own and one queue, whose commands run in order behind the caller's back.

    Args:
        memory: bytes on the chip.
        launch: ticks that every command costs.
        bandwidth: bytes that move in a tick.
        throughput: multiplications and additions of the matrix unit in a tick.
    """

    def __init__(self, memory=256 << 20, launch=100, bandwidth=64, throughput=1024):
        self.memory = np.zeros(memory, np.uint8)
        self.launch_ticks, self.bandwidth, self.throughput = launch, bandwidth, throughput
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

    def allocate(self, nbytes):
        """Reserve a buffer.

        Raises:
            ChipError: the memory is full.
        """
        size = -(-max(int(nbytes), 1) // ALIGNMENT) * ALIGNMENT
        for attempt in range(2):
            with self._lock:
                for i, (offset, room) in enumerate(self._free):
                    if room >= size:
                        self._free[i : i + 1] = [(offset + size, room - size)] if room > size else []
                        buffer = Buffer(next(self._numbers), offset, int(nbytes))
                        self.live[buffer.number] = (buffer, size)
                        return buffer
            if attempt == 0:
                self._queue.join()  # what was released may still wait in the queue
        raise ChipError(f"out of memory: {size} bytes wanted, {self.free_bytes()} free")

    def release(self, buffer):
        """Give a buffer back once the commands before this one are done."""
        self._submit("release", (buffer,), lambda: self._give_back(buffer))

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

    def _bytes(self, buffer):
        if buffer.number not in self.live:
            raise ChipError(f"b{buffer.number} was released or belongs to another chip")
        return self.memory[buffer.offset : buffer.offset + buffer.nbytes]

    def _array(self, operand):
        flat = self._bytes(operand.buffer).view(np.float32)
        end = operand.offset + 1 + sum((n - 1) * s for n, s in zip(operand.shape, operand.strides, strict=True))
        if end > flat.size:
            raise ChipError(f"{operand.shape} ends beyond b{operand.buffer.number}")
        strides = [s * 4 for s in operand.strides]
        return np.lib.stride_tricks.as_strided(flat[operand.offset :], operand.shape, strides)

    # ------------------------------------------------------------ commands

    def write(self, buffer, array):
        """Copy an array to the chip.

        Raises:
            ChipError: it is neither float32 nor bool.
        """
        if array.dtype not in (np.float32, np.bool_):
            raise ChipError(f"only float32 and bool go to the chip, not {array.dtype}")
        kept = np.array(array).reshape(-1).view(np.uint8)

        def copy():
            self._bytes(buffer)[: kept.size] = kept
            return kept.size // self.bandwidth

        self._submit("write", (buffer,), copy)

    def read(self, buffer, out):
        """Wait for the commands so far and copy from the chip into an array.

        Raises:
            ChipError: one of the commands failed.
        """

        def copy():
            out.reshape(-1).view(np.uint8)[...] = self._bytes(buffer)[: out.nbytes]
            return out.nbytes // self.bandwidth

        self._submit("read", (buffer,), copy)
        self.wait()
        return out

    def run(self, name, inputs, output, numbers=()):
        """Queue an operation of the matrix unit; returns at once. Shapes are checked when it runs.

        Raises:
            ChipError: the chip has no such operation.
        """
        if name not in ENGINE:
            raise ChipError(f"the chip has no operation {name!r}")

        def work():
            result = ENGINE[name](*map(self._array, inputs), *numbers)
            if result.shape != output.shape:
                raise ChipError(f"{name} gives {result.shape}, its output b{output.buffer.number} is {output.shape}")
            self._array(output)[...] = result
            return int(np.prod(result.shape)) * inputs[0].shape[-1] // self.throughput

        self._submit(name, tuple(o.buffer for o in (*inputs, output)), work)

    def launch(self, kernel, buffers, lanes):
        """Queue a kernel (`kernels.assemble`) for a number of lanes; returns at once."""

        def work():
            return kernel.run([self._bytes(b) for b in buffers], lanes) * -(-lanes // WIDTH)

        self._submit(kernel.name, tuple(buffers), work)

    def wait(self):
        """Return when the queue is empty.

        Raises:
            ChipError: a command failed; the queue goes on with the next.
        """
        self._queue.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _submit(self, name, buffers, work):
        self._queue.put((name, buffers, work))

    def _work(self):
        while True:
            name, buffers, work = self._queue.get()
            start = self.clock
            try:
                ticks = work()
                if ticks is not None:
                    self.clock = start + self.launch_ticks + ticks
                    self.log.append(Command(name, tuple(b.number for b in buffers), start, self.clock))
            except Exception as error:  # noqa: BLE001 - carried to the next wait()
                self._error = self._error or (error if isinstance(error, ChipError) else ChipError(f"{name}: {error}"))
            finally:
                self._queue.task_done()
