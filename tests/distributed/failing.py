"""Training under each wrapper in which one rank fails."""

from __future__ import annotations

import os
import signal

import torch
from data_parallel import build
from sharded import WRAPPERS, Net
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

import firebrick


def fail_in_step(rank: int, wrapper: str, how: str) -> None:
    """Train, and end rank 1 in the third step: by an error, by a signal, or by a collective of another size."""
    torch.manual_seed(0)
    if wrapper == "ddp":
        net, features = build("deep", "wrapper", {"bucket_cap_mb": 0.04}), 16
    else:
        net, features = Net(), 8
        WRAPPERS[wrapper](net, init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
        net = firebrick.compile(net)
    for number in range(6):
        rows = 4
        if number == 2 and rank == 1:
            if how == "raises":
                raise ValueError("rank 1 has no data")
            if how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            features, rows = features - (wrapper != "tensor"), 4 + (wrapper == "tensor")
        F.mse_loss(net(torch.ones(rows, features)), torch.ones(rows, 4)).backward()


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    fail_in_step(torch.distributed.get_rank(), "ddp", "raises")
