"""What the planner knows of a card: read from the driver where there is one, from a table by capability else."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CardFacts:
    """A GPU.

    capability: 90 for 9.0. multiprocessors, registers, shared_bytes: how many there are, and what each of them has
    (of 32 bits; what one block may ask for). bandwidth: bytes a second of its memory. level2: bytes of the cache that
    all share. warp: threads that run in step. threads: most of a multiprocessor at once.
    """

    capability: int
    multiprocessors: int
    shared_bytes: int
    bandwidth: int
    level2: int
    registers: int = 65536
    warp: int = 32
    threads: int = 2048

    def key(self) -> str:
        """What generated code depends on, for cache keys."""
        return f"sm_{self.capability}-{self.multiprocessors}-{self.shared_bytes}-{self.bandwidth}-{self.level2}"

    @property
    def dtypes(self) -> frozenset[str]:
        """Short names of the types that kernels compute with or convert."""
        return _DTYPES if self.capability >= 80 else _DTYPES - {"bf16"}


_DTYPES = frozenset({"f32", "f64", "bf16", "f16", "i64", "i32", "i16", "i8", "u8", "b8"})

CARDS: Mapping[int, CardFacts] = {
    80: CardFacts(80, 108, 163 << 10, 1_555_000_000_000, 40 << 20),
    90: CardFacts(90, 132, 227 << 10, 4_800_000_000_000, 50 << 20),
}
"""Capability -> an A100 of 40 GB and an H200, for machines without a GPU."""

_FIELDS = "warp multiprocessors memory_clock threads bus_bits level2 major minor registers shared_bytes".split()
_ATTRIBUTES = dict(zip(_FIELDS, (10, 16, 36, 39, 37, 38, 75, 76, 82, 97), strict=True))
"""Field -> number of the attribute that `cuDeviceGetAttribute` is asked for (CUdevice_attribute of cuda.h)."""


def read_facts(index: int = 0) -> CardFacts | None:
    """The facts of a card of this machine; None without a driver or such a card."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, number = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    read: dict[str, int] = {}
    for name, attribute in _ATTRIBUTES.items():
        if driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device):
            return None
        read[name] = number.value
    clock, bits = read.pop("memory_clock"), read.pop("bus_bits")
    capability = 10 * read.pop("major") + read.pop("minor")
    # The clock is in kHz, and memory moves two words in a tick of it. Some drivers tell no clock.
    bandwidth = 2000 * clock * bits // 8 or CARDS[90 if capability >= 90 else 80].bandwidth
    return CardFacts(capability=capability, bandwidth=bandwidth, **read)


def tells_state() -> bool:
    """Whether torch tells the state that its kernels draw random numbers with (`native/cuda.c`)."""
    try:
        return hasattr(ctypes.CDLL("libtorch_cuda.so"), "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm")
    except OSError:
        return False
