"""A machine in one file: memory, a grid of programs and a stream of its own. A whole BERT runs on it."""

import random
from collections import deque

import numpy as np
import pytest
import torch

import firebrick
from firebrick import _native
from firebrick.backends.engines import engine_backend
from firebrick.extend import FunctionText, Target, Templates

BLOCK, LINE = 128, 64
DTYPES = {"f32": "f4", "i64": "i8", "i32": "i4", "b8": "?"}
TWO = "add + sub - mul * div / lt < le <= gt > ge >= eq == ne != and & or |".split()
ONE = "exp np.exp tanh np.tanh sqrt np.sqrt not ~ neg - erf erf rsqrt 1/np.sqrt".split()
ROWS = {
    **{name: FunctionText(f"({{a}} {sign} {{b}})") for name, sign in zip(TWO[::2], TWO[1::2], strict=True)},
    **{name: FunctionText(f"{call}({{a}})") for name, call in zip(ONE[::2], ONE[1::2], strict=True)},
    **{name: FunctionText(f"np.{name}imum({{a}}, {{b}})") for name in ("max", "min")},
    "where": FunctionText("np.where({a}, {b}, {c})"),
}


class Chip:
    """16 MiB, of which places are named by where they begin, and commands that wait until somebody reads."""

    def __init__(self):
        self.memory = np.full(1 << 24, 0xFF, np.uint8)
        self.sizes, self.free = {}, {LINE: self.memory.size - LINE}
        self.stream, self.done, self.order = deque(), [], random.Random(0)

    def take(self, nbytes):
        size = -(-nbytes // LINE) * LINE
        place = next(at for at, room in self.free.items() if room >= size)
        if left := self.free.pop(place) - size:
            self.free[place + size] = left
        self.sizes[place] = size
        return place

    def give(self, place):
        self.at(place, "u1")[...] = 0xFF  # what reads on finds no numbers
        self.free[place] = self.sizes.pop(place)

    def wait(self):
        while self.stream:
            name, work = self.stream.popleft()
            work()
            self.done.append(name)

    def at(self, place, dtype):
        return self.memory[place : place + self.sizes[place]].view(dtype)

    def run(self, kernel, args, count):
        """Programs of a grid in any order."""
        programs = range(-(-count // BLOCK))
        for program in self.order.sample(programs, len(programs)):
            kernel(self, program, *args)


def matmul(target, outs, *args):
    def array(view):
        flat, strides = target.chip.at(view.memory, DTYPES[view.dtype]), [4 * s for s in view.strides]
        return np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides)

    def work():
        *bias, a, b = map(array, args)
        array(outs[0])[...] = a @ b + (bias[0] if bias else 0)

    target.chip.stream.append(("matmul", work))


class SecondMachine(Target):
    name = "second"
    dtypes = {name: repr(code) for name, code in DTYPES.items()}
    functions = dict.fromkeys(("float", "int", "bool"), ROWS)
    library = dict.fromkeys(("aten::mm", "aten::bmm", "aten::addmm"), matmul)
    templates = Templates(
        kernel="def {name}(chip, program, {params}):\n{body}",
        lanes=f"lane = program * {BLOCK} + np.arange({BLOCK})\nmask = lane < {{count}}",
        mask="mask",
        masked_load="chip.at({buffer}, {t})[np.where({mask}, {index}, 0)]",
        masked_store="store(chip.at({buffer}, {t}), {index}, {value}, {mask})",
        cast="np.asarray({a}).astype(np.dtype({t}))",
        number="np.dtype({t}).type({value})",
        scratch="{name} = [None] * {size}",
    )

    def __init__(self):
        self.chip = Chip()

    def load(self, texts, names, config):
        scope = {"np": np, "store": store, "erf": lambda x: torch.erf(torch.from_numpy(x)).numpy()}
        for text in texts:
            exec(text, scope)
        return {name: scope[name] for name in names}

    def launch(self, kernel, memory, sizes, grid):
        self.chip.stream.append(("kernel", lambda: self.chip.run(kernel, [*memory, *sizes], grid[0])))

    def allocate(self, nbytes):
        return self.chip.take(nbytes)

    def release(self, memory):
        self.chip.stream.append(("release", lambda: self.chip.give(memory)))

    def write(self, memory, tensor):
        place, held = self.chip.at(memory, "u1")[: tensor.nbytes], tensor.numpy().view(np.uint8).copy()
        self.chip.stream.append(("write", lambda: np.copyto(place, held)))

    def read(self, memory, tensor):
        self.chip.wait()
        tensor.numpy().view(np.uint8)[...] = self.chip.at(memory, "u1")[: tensor.nbytes]


def store(flat, index, value, mask):
    index, value, mask = np.broadcast_arrays(index, value, mask)
    flat[index[mask]] = value[mask]


def test_a_whole_bert_runs_on_it_by_the_one_host_program():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=99, **small)).eval()
    machine, programs, texts, held = SecondMachine(), [], [], []
    ids, chip = torch.randint(0, 99, (2, 9)), machine.chip
    mask = torch.ones_like(ids).index_fill(1, torch.tensor([7, 8]), 0)
    build = engine_backend(machine, report=texts.append)
    compiled = firebrick.compile(model, backend=lambda *graph: programs.append(build(*graph)) or programs[-1])
    with torch.no_grad():
        want = model.double()(ids, attention_mask=mask)
        model.float()
        for call in (1, 2):
            have = compiled(ids, attention_mask=mask)
            for a, b in zip(want.to_tuple(), have.to_tuple(), strict=True):
                torch.testing.assert_close(b.double(), a, rtol=1e-5, atol=1e-5)
            assert chip.done.count("matmul") == call * (3 * (6 + 2) + 1)
            chip.wait()
            held.append(dict(chip.sizes))
    assert held[0] == held[1], "what a call allocates it gives back"
    assert [type(p) for p in programs] == [_native.Executable] and "(100 %)" in texts[0]


def test_a_machine_is_a_backend():
    x = torch.randn(70, 5)
    compiled = firebrick.compile(lambda x: torch.tanh(x) @ x.mT, backend=SecondMachine())
    torch.testing.assert_close(compiled(x), torch.tanh(x) @ x.mT)
