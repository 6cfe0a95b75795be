"""Trainings whose loss has gradients in it, compiled, in eager mode and in float64: their loss curves side by side.

    python examples/higher_gradients.py [--steps 200] [--markdown FILE]

gan: a critic with WGAN's gradient penalty. pinn: Burgers' equation by second derivatives of a network. maml: sines
learnt from ten points, through two inner steps. energy: a pair potential whose gradient gives forces.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

import firebrick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Compile = Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]


def network(*sizes: int, dtype: torch.dtype, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1]).to(dtype)


def draw(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """The same numbers in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64).float().to(dtype)


def gan(compiled: Compile, dtype: torch.dtype, steps: int) -> Iterator[float]:
    critic, maker = (network(2, 32, 32, n, dtype=dtype, activation=nn.SiLU) for n in (1, 2))
    judge, make = compiled(critic), compiled(maker)
    optimizers = [torch.optim.Adam(m.parameters(), 1e-3, betas=(0.5, 0.9)) for m in (critic, maker)]
    for step in range(steps):
        angle = 6.28 * draw(step, 64, 1, dtype=dtype)
        real, noise = torch.cat([angle.sin(), angle.cos()], 1), draw(steps + step, 64, 2, dtype=dtype)
        fake = make(noise)
        mixed = torch.lerp(real, fake.detach(), draw(-1 - step, 64, 1, dtype=dtype)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = judge(fake.detach()).mean() - judge(real).mean() + 10 * penalty
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        (-judge(fake).mean()).backward()
        optimizers[1].step()
        yield loss.item()


def pinn(compiled: Compile, dtype: torch.dtype, steps: int) -> Iterator[float]:
    model = network(2, 32, 32, 32, 1, dtype=dtype)
    field, optimizer = compiled(model), torch.optim.Adam(model.parameters(), 1e-3)
    start = torch.stack([torch.zeros(50), torch.linspace(-1, 1, 50)], 1).to(dtype)
    for step in range(steps):
        points = (draw(step, 200, 2, dtype=dtype) * torch.tensor([1.0, 2.0], dtype=dtype)).requires_grad_()
        u = field(points - torch.tensor([0.0, 1.0], dtype=dtype))
        (first,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 1].sum(), points, create_graph=True)
        residual = first[:, 0] + u[:, 0] * first[:, 1] - 0.01 / torch.pi * second[:, 1]
        loss = residual.square().mean() + F.mse_loss(field(start), -(torch.pi * start[:, 1:]).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def maml(compiled: Compile, dtype: torch.dtype, steps: int) -> Iterator[float]:
    model = network(1, 32, 32, 1, dtype=dtype)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loss_of = compiled(lambda weights, x, y: F.mse_loss(torch.func.functional_call(model, weights, (x,)), y))
    for step in range(steps):
        total = torch.zeros((), dtype=dtype)
        for task in range(4):
            height, phase, *_ = draw(4 * step + task, 2, dtype=dtype)
            x = 10 * draw(-1 - 4 * step - task, 20, 1, dtype=dtype) - 5
            y = (0.1 + 4.9 * height) * (x + 3.14 * phase).sin()
            weights = dict(model.named_parameters())
            for _ in range(2):
                slopes = torch.autograd.grad(loss_of(weights, x[:10], y[:10]), [*weights.values()], create_graph=True)
                weights = {n: w - 0.01 * g for (n, w), g in zip(weights.items(), slopes, strict=True)}
            total = total + loss_of(weights, x[10:], y[10:]) / 4
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        yield total.item()


def energy(compiled: Compile, dtype: torch.dtype, steps: int) -> Iterator[float]:
    model = network(1, 32, 32, 1, dtype=dtype, activation=nn.SiLU)
    pairs = torch.triu_indices(8, 8, 1)

    def distances(places: torch.Tensor) -> torch.Tensor:
        return (places[pairs[0]] - places[pairs[1]]).square().sum(1, keepdim=True).add(0.1).sqrt()

    def energy_and_forces(places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = model(distances(places)).sum()
        return total, -torch.autograd.grad(total, places, create_graph=True)[0]

    predict, optimizer = compiled(energy_and_forces), torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(steps):
        places = (2 * draw(step, 8, 3, dtype=dtype)).requires_grad_()
        target = (-distances(places)).exp().sum()
        forces = -torch.autograd.grad(target, places)[0]
        found, pushed = predict(places)
        loss = (found - target.detach()).square() / 28 + F.mse_loss(pushed, forces)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


PROGRAMS = {"gan": gan, "pinn": pinn, "maml": maml, "energy": energy}


def curves(name: str, steps: int) -> dict[str, list[float]]:
    """The losses of a program: compiled, eager, and eager in float64."""
    program = PROGRAMS[name]
    return {
        "firebrick": list(program(firebrick.compile, torch.float32, steps)),
        "eager": list(program(lambda f: f, torch.float32, steps)),
        "float64": list(program(lambda f: f, torch.float64, steps)),
    }


def row(name: str, steps: int) -> str:
    """A line of the table: losses at the beginning and the end, and the largest distance from float64's curve."""
    before = firebrick.stats()["counts"]
    counts = {key: before.get(key, 0) for key in ("graphs compiled", "breaks")}
    found = curves(name, steps)
    after = firebrick.stats()["counts"]
    graphs, breaks = (after.get(key, 0) - count for key, count in counts.items())
    exact = found["float64"]
    size = max(map(abs, exact))
    apart = [max(abs(a - b) for a, b in zip(found[kind], exact, strict=True)) / size for kind in ("firebrick", "eager")]
    ends = " | ".join(f"{found[kind][-1]:.6f}" for kind in ("firebrick", "eager", "float64"))
    return f"| {name} | {exact[0]:.6f} | {ends} | {apart[0]:.1e} | {apart[1]:.1e} | {graphs} | {breaks} |"


COLUMNS = (
    *("training", "first loss", "last, Firebrick", "last, eager", "last, float64"),
    *("farthest from float64, Firebrick", "eager", "graphs", "breaks"),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    print(HEAD)
    rows = []
    for name in PROGRAMS:
        rows.append(row(name, options.steps))
        print(rows[-1], flush=True)
    if options.markdown:
        title = f"# {options.steps} steps of trainings with gradients in their loss"
        options.markdown.write_text("\n".join([title, "", HEAD, *rows, ""]))


if __name__ == "__main__":
    main()
