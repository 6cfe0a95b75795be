"""Random functions of tensors: chains and webs of pointwise work, reductions, views, masks, joins and gathers."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F


def make(seed):
    """A function and its inputs."""
    r = random.Random(seed)
    g = torch.Generator().manual_seed(seed)
    a, b, c = (r.choice([1, 2, 3, 5, 7, 8, 16, 17, 33, 48, 65]) for _ in range(3))
    dtype = r.choice([torch.float32] * 6 + [torch.float64, torch.bfloat16])
    x = torch.randn(a, b, c, generator=g, dtype=torch.float32).to(dtype)
    y = torch.randn(b, c, generator=g, dtype=torch.float32).to(dtype)
    m = torch.rand(a, b, c, generator=g) < 0.5
    k = torch.randint(0, b, (r.choice([1, 4, 19]),), generator=g)
    plan = [(r.randrange(len(STEPS)), r.random(), r.random(), r.randrange(3)) for _ in range(r.randrange(2, 9))]
    keep = [r.random() < 0.35 for _ in plan]

    def fn(x, y, m, k):
        known = [x, x * 0.5 + y]
        outs = []
        for (step, p, q, d), kept in zip(plan, keep, strict=True):
            u, v = known[int(p * len(known))], known[int(q * len(known))]
            made = STEPS[step](u, v, m, k, d)
            if made is None:
                continue
            if kept:
                outs.append(made)
            if made.shape == x.shape and made.dtype == x.dtype:
                known.append(made)
        return (*outs, known[-1] + 1)

    return fn, (x, y, m, k)


STEPS = [
    lambda u, v, m, k, d: u + v,
    lambda u, v, m, k, d: u * torch.sigmoid(v),
    lambda u, v, m, k, d: torch.relu(u) - v,
    lambda u, v, m, k, d: torch.softmax(u, d),
    lambda u, v, m, k, d: F.layer_norm(u, u.shape[-1:]) + v,
    lambda u, v, m, k, d: u - u.mean(d, keepdim=True),
    lambda u, v, m, k, d: u / (v.abs().amax(d, keepdim=True) + 1),
    lambda u, v, m, k, d: u.sum(d) * 0.1,
    lambda u, v, m, k, d: u.sum((0, 2)),
    lambda u, v, m, k, d: u.argmax(d),
    lambda u, v, m, k, d: u.amax(),
    lambda u, v, m, k, d: (u + v).mean(),
    lambda u, v, m, k, d: torch.where(m, u, v * 2),
    lambda u, v, m, k, d: u.masked_fill(m, 0.25),
    lambda u, v, m, k, d: u.flip(d) + v,
    lambda u, v, m, k, d: u.permute(2, 0, 1).contiguous(),
    lambda u, v, m, k, d: u.transpose(1, 2).reshape(u.shape[0], -1) * 2,
    lambda u, v, m, k, d: torch.cat([u, v], d),
    lambda u, v, m, k, d: torch.cat([u[:, :1], v], 1)[:, : u.shape[1]] + u,
    lambda u, v, m, k, d: u[:, : max(1, u.shape[1] // 2)] * 3,
    lambda u, v, m, k, d: F.pad(u, (1, 2)) - 1,
    lambda u, v, m, k, d: F.pad(u, (1, 0))[..., :-1] + v,
    lambda u, v, m, k, d: u[:, k],
    lambda u, v, m, k, d: u.cumsum(d) * 0.1 if u.dtype == torch.float32 else None,
    lambda u, v, m, k, d: (u > v).sum(d),
    lambda u, v, m, k, d: (u > v).to(u.dtype) * v,
    lambda u, v, m, k, d: u.float().var(d, unbiased=False),
    lambda u, v, m, k, d: (u * 10).to(torch.int64) % 7,
    lambda u, v, m, k, d: torch.tanh(u) * torch.erf(v),
    lambda u, v, m, k, d: u.expand_as(v).reshape(-1)[::2],
    lambda u, v, m, k, d: F.gelu(u) + u,
    lambda u, v, m, k, d: u.reshape(-1).view(-1, u.shape[2]).t().contiguous(),
    lambda u, v, m, k, d: (u.isnan() | (v > 0)).any(d),
]
