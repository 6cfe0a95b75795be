"""Random programs that write their arguments beside reads of other shapes: what a kernel reads, it reads before it writes.

Few shapes that broadcast against each other, so that loops of different axes meet in one kernel.
"""

import random

import pytest
import torch

import firebrick

SHAPES = {"a": (5,), "b": (5,), "c": (3, 5), "d": (3, 1), "e": (2, 3, 5)}


def program(seed):
    rng = random.Random(seed)
    shapes, lines, results = dict(SHAPES), [], []

    def value(shape):
        fitting = [n for n, s in shapes.items() if torch.broadcast_shapes(s, shape) == shape]
        text = rng.choice(fitting) + rng.choice(["", ".sin()", ".exp().log1p()", ".abs().sqrt()"])
        if rng.random() < 0.4:
            text += f" * {rng.choice(list(shapes))}.{rng.choice(['sum', 'amax', 'mean'])}()"
        return f"{text} + {rng.choice(fitting)}" if rng.random() < 0.3 else text

    for k in range(rng.randint(3, 7)):
        kind = rng.choices(["write", "value", "reduction"], [5, 3, 2])[0]
        if kind == "write":
            name = rng.choice(list(SHAPES))
            lines.append(f"{name}.{rng.choice(['add_', 'mul_', 'copy_'])}({value(shapes[name])})")
            continue
        if kind == "value":
            shape = rng.choice(list(shapes.values()))
            lines.append(f"v{k} = ({value(shape)}).expand{shape} * 2")
        else:
            name = rng.choice([n for n, s in shapes.items() if len(s) > 1])
            axis, last = rng.choice([0, -1]), len(shapes[name]) - 1
            shape = tuple(1 if d in (axis, axis + last + 1) else n for d, n in enumerate(shapes[name]))
            lines.append(f"v{k} = {name}.{rng.choice(['sum', 'amax', 'mean'])}({axis}, keepdim=True)")
        shapes[f"v{k}"] = shape
        results.append(f"v{k},")
    body = "\n".join(f"    {line}" for line in lines)
    return f"def call({', '.join(SHAPES)}):\n{body}\n    return ({' '.join(results)})\n"


@pytest.mark.compiler
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_arguments_are_written_after_they_are_read(first):
    for seed in range(first, first + 20):
        text, names = program(seed), {"torch": torch}
        exec(text, names)
        generator = torch.Generator().manual_seed(seed)
        given = [torch.rand(shape, generator=generator) + 0.1 for shape in SHAPES.values()]
        plain, ours = ([t.clone() for t in given] for _ in range(2))
        wanted = names["call"](*plain)
        found = firebrick.compile(names["call"], options={"cache": False})(*ours)
        torch.testing.assert_close(
            (*found, *ours), (*wanted, *plain), rtol=1e-3, atol=1e-4, msg=lambda m, t=text: t + m
        )
