"""Recording of host programs on a GPU: which can be recorded, and the stream and the memory that a capture works in.

`native/cuda_graphs.c` decides when a program is recorded and replays it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet, finalize

import torch

from firebrick import _native
from firebrick.report import recorder

_FEWEST = 3
"""Launches and library calls from which a recording may pay, unless it is asked for."""
_MOST_SIDES = 8
"""Streams of a user for which recordings are kept; each has memory of its own."""
_FACTORIES = "rand randn randint rand_like randn_like bernoulli normal uniform exponential native_dropout"
_OTHERS = """
    mm bmm addmm baddbmm addmv mv dot _scaled_mm convolution convolution_backward cudnn_convolution cat topk sort
    cudnn_convolution_relu cudnn_convolution_add_relu
    _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_cudnn_attention_backward max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d
    avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward native_layer_norm native_group_norm
    upsample_bilinear2d upsample_nearest2d upsample_bicubic2d cumsum cumprod _fft_r2c _fft_c2c _fft_c2r gather
    scatter_add index_add fill copy clone embedding_dense_backward cudnn_batch_norm cudnn_batch_norm_backward
    native_batch_norm_backward native_layer_norm_backward native_group_norm_backward upsample_bilinear2d_backward
    upsample_nearest2d_backward upsample_linear1d upsample_trilinear3d upsample_nearest1d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d grid_sampler_2d_backward grid_sampler_3d_backward im2col
    col2im max_pool3d_with_indices avg_pool3d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d scatter
    scatter_reduce index_select cummax cummin logcumsumexp searchsorted bucketize _cdist_forward
"""
CALLS = frozenset(_OTHERS.split()) | frozenset(_FACTORIES.split())
"""Operators that neither wait for the GPU nor read its memory, and whose results are memory of their own."""
torch.library.define(
    "firebrick::draw",
    "(Tensor? x, int size, SymInt count, int blocks, int device) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.nondeterministic_seeded,),
)  # what the host program asks the generator for before kernels that draw eager's numbers for dropout
_DRAW = ["call", "firebrick::draw"]
_RANDOM = frozenset(_FACTORIES.split())


class _Side(NamedTuple):
    """Where programs of one of the user's streams are captured. They replay one after another, and share memory."""

    stream: torch.cuda.ExternalStream
    sessions: WeakSet[_Session]
    more: list[torch.cuda.ExternalStream]


_sides: dict[tuple[int, int], _Side] = {}
_drew: dict[int, torch.cuda.Stream] = {}  # device -> the stream that last drew in a graph
_lock = threading.Lock()


def _draw_on(stream: torch.cuda.Stream) -> None:
    """Make a stream wait for others' use of seed and offset, which torch keeps in one place; a capture writes them."""
    if (last := _drew.get(stream.device.index, stream)) != stream:
        stream.wait_stream(last)
    _drew[stream.device.index] = stream


class _Graph:
    """A capture of a stream as torch's, which would keep other threads from drawing random numbers meanwhile."""

    def __init__(self, stream: torch.cuda.ExternalStream) -> None:
        self.at = stream.device.index, stream.cuda_stream

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.pool = self.at[0], pool
        torch._C._cuda_beginAllocateCurrentThreadToPool(*self.pool)
        finalize(self, torch._C._cuda_releasePool, *self.pool).atexit = False
        try:
            _native.cuda_capture(*self.at, True)
        except RuntimeError:
            torch._C._cuda_endAllocateToPool(*self.pool)
            raise

    def capture_end(self) -> None:
        self.graph = _native.cuda_capture(*self.at, False)
        finalize(self, _native.cuda_forget, self.graph).atexit = False
        torch._C._cuda_endAllocateToPool(*self.pool)

    def raw_cuda_graph(self) -> int:
        return self.graph


class _Session:
    """One capture, then what its graph and memory live by."""

    def __init__(self, side: _Side, random: bool) -> None:
        self.side, self.before = side, torch.cuda.current_stream(side.stream.device)
        # A pool that no graph lives in can't be taken up again.
        self.pool: Any = next((s.pool for s in side.sessions), None) or torch.cuda.graph_pool_handle()
        self.graph: Any = torch.cuda.CUDAGraph(True) if random else _Graph(side.stream)
        torch.cuda.set_stream(side.stream)
        try:
            for at in (self.before, side.stream) if random else ():
                _draw_on(at)
            self.graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        except BaseException:
            torch.cuda.set_stream(self.before)
            raise

    def replay(self) -> None:
        """Replay, with the state of the random numbers moved on."""
        with _lock:
            _draw_on(self.before)
            self.graph.replay()


class _Branches:
    """Turns to the streams of a capture, which the first one begins, by a table's rows for steps. Each has workspaces
    of libraries of its own, and memory that a library takes within a call is given again on its stream alone."""

    def __init__(self, streams: Sequence[torch.cuda.Stream], rows: Mapping[int, Sequence[int]]) -> None:
        self.streams, self.rows, self.step = streams, {**rows, -1: [0]}, -1
        self.waited_for = {before for row in rows.values() for before in row[1:]}
        self.over, self.used = dict[int, torch.cuda.Event](), frozenset[int]()
        begun = streams[0].record_event()
        for stream in streams[1:]:
            stream.wait_event(begun)

    def turn(self, step: int) -> int:
        """Come to a step, or behind all (-1): the address of its stream, one more where it waits for no other; 0 where
        it is the stream of the step before, too."""
        now, (number, *waits) = self.rows[self.step][0], self.rows[step]
        if self.step in self.waited_for:
            self.over[self.step] = self.streams[now].record_event()
        events = [self.over[k] for k in waits] if step >= 0 else [s.record_event() for s in self.streams[1:]]
        for event in events:
            self.streams[number].wait_event(event)
        self.step = step
        torch.cuda.set_stream(self.streams[number])
        alone, self.used = not events and number in self.used, self.used | {number}
        return 0 if alone and number == now else int(self.streams[number].cuda_stream) + alone


class Recorder:
    """What the extension asks for a program, one capture at a time. random: its calls draw random numbers. branches: by
    number of a step the number of its stream, and the steps that it waits for."""

    def __init__(self, name: str, random: bool, rows: Sequence[Any] = (), steps: Sequence[Any] = ()) -> None:
        self.name, self.random, at = name, random, [k for k, s in enumerate(steps) if s[0] not in ("alloc", "free")]
        pairs = zip(at, rows, strict=True) if len(at) == len(rows) and not random else ()
        self.branches = {k: [row[0], *[at[j] for j in row[1:]]] for k, row in pairs}
        self.most = max((row[0] for row in self.branches.values()), default=0)

    def begin(self, device: int, stream: int) -> _Session:
        """Begin a capture for calls on a stream, on another stream, which is current until `end`.

        Raises:
            RuntimeError: CUDA refuses, or there are too many streams.
        """
        _lock.acquire()
        try:
            side = _sides.get((device, stream))
            if side is None:
                unused = [at for at, other in _sides.items() if at[0] == device and not other.sessions]
                if len(_sides) >= _MOST_SIDES and not unused:
                    raise RuntimeError("programs are recorded for other streams already")
                own = None if unused else torch.cuda.ExternalStream(_native.cuda_stream(device), device=device)
                side = _sides[device, stream] = _sides.pop(unused[0]) if own is None else _Side(own, WeakSet(), [])
            while len(side.more) < self.most:
                side.more.append(torch.cuda.ExternalStream(_native.cuda_stream(device), device=device))
            return _Session(side, self.random)
        except BaseException:
            _lock.release()
            raise

    def several(self, session: _Session) -> _Branches:
        """What turns to the streams of a capture that has begun."""
        return _Branches([session.side.stream, *session.side.more[: self.most]], self.branches)

    def end(self, session: _Session, complete: int) -> tuple[int, int]:
        """End the capture: addresses of the graph, and of what torch launches, where torch must, or 0.

        Raises:
            RuntimeError: CUDA refuses.
        """
        try:
            session.graph.capture_end()
        except BaseException:
            # One that broke leaves the allocator in it, and the state of the random numbers.
            index = session.side.stream.device.index
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(index, session.pool)
            generator = torch.cuda.default_generators[index]
            if self.random:
                generator.graphsafe_set_state(generator.clone_state())
            raise
        finally:
            torch.cuda.set_stream(session.before)
            _lock.release()
        session.side.sessions.add(session)
        if not self.random or not complete:
            return session.graph.raw_cuda_graph(), 0
        session.graph.instantiate()
        return session.graph.raw_cuda_graph(), session.graph.raw_cuda_graph_exec()

    def told(self, what: str, error: object, steps: float, graph: float, shared: bool) -> None:
        """What became of a recording, one of many sizes if it is shared; milliseconds of a call without and with it, 0
        where none was measured."""
        recorder.count(f"CUDA graphs: {what}")
        times = f", {steps:.2f} ms step by step" * (steps > 0) + f", {graph:.2f} ms as a graph" * (graph > 0)
        text = f"{what}{times}" if error is None else f"{what}: {error}"
        recorder.reason("CUDA graphs", f"{self.name}{', many sizes' * shared}: {text}")


def recorder_of(
    name: str, table: Mapping[str, Any], resolve: Callable[[str, str], Any], forced: bool, branches: Any = ()
) -> Recorder | None:
    """What records a program, None where it can't be recorded. branches: as `passes/branches.py` has them."""
    drawn = {out for step in table["steps"] if step[:2] == _DRAW for out in step[6]}
    consts = [k for k, row in enumerate(table["slots"]) if row[0] == "const"]
    kernels = [row for row in table["steps"] if row[0] == "kernel"]
    numbers = {row[2][k] for row in kernels for places in row[6:] for k in places}  # which nodes have by value
    numbers -= {row[0] for row in table.get("views", ())}
    numbers -= {at for row in kernels for k, at in enumerate(row[2]) if not any(k in places for places in row[6:])}
    apart = drawn | numbers | {consts[k] for k in table.get("sources", ())}  # which the recipe alone may read
    devices = {row[5] for k, row in enumerate(table["slots"]) if row[0] != "scratch" and k not in apart}
    if not any(device.startswith("cuda") for device in devices):
        return None
    work, random, against = 0, False, "meets another device" if len(devices) > 1 else ""
    for kind, *row in table["steps"]:
        work += kind in ("kernel", "call") and [kind, row[0]] != _DRAW
        random = random or [kind, *row[:1]] == _DRAW
        if kind == "call" and row[0] != _DRAW[1]:
            schema = resolve("op", row[0])._schema
            stem = schema.name.removeprefix("aten::").removeprefix("firebrick::").removesuffix("_")
            against = against or ("" if stem in CALLS else f"calls {schema.name}")
            random = random or stem in _RANDOM or _drops(schema, row[1])
        elif kind == "check":
            against = against or "looks at indices"
    if against:
        recorder.reason("CUDA graphs", f"{name}: never recorded: {against}")
    return None if against or work < (1 if forced else _FEWEST) else Recorder(name, random, branches, table["steps"])


def _drops(schema: Any, args: Any) -> bool:
    """Whether a call of attention has dropout; a backward draws what its forward did, from the same seed."""
    rows = () if schema.name.endswith("_backward") else zip(schema.arguments, args, strict=False)
    return any(a.name == "dropout_p" and v[-1] != 0 for a, v in rows)
