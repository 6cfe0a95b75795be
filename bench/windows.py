"""Windows, samples, bags, scatters, convolutions of rows and volumes: our time over eager's, least of each, in turns.

Run: python bench/windows.py [--only NAME ...] [--seconds 0.5] [--json]
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

import firebrick

SIGNAL, IMAGE, VOLUME = (4, 64, 1000), (2, 16, 64, 64), (1, 8, 16, 32, 32)


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def layer(made, *shape):
    return made.eval().requires_grad_(False), (rand(*shape),)


def pool(fn, shape, *args):
    return lambda x: fn(x, *args), (rand(*shape),)


def resize(shape, size, mode):
    return lambda x: F.interpolate(x, size=size, mode=mode), (rand(*shape),)


def grid(shape, mode="bilinear", padding="zeros"):
    points = rand(shape[0], *shape[2:], len(shape) - 2).clamp(-1.1, 1.1)
    return lambda x, g: F.grid_sample(x, g, mode, padding, align_corners=False).relu(), (rand(*shape), points)


def bags(mode):
    index = torch.randint(0, 10000, (64, 50), generator=torch.Generator().manual_seed(1))
    return lambda i, w: F.embedding_bag(i, w, mode=mode), (index, rand(10000, 64))


def cases():
    """Name -> function and arguments."""
    x = rand(256, 512)
    return {
        "max_pool1d 2": pool(F.max_pool1d, SIGNAL, 2),
        "max_pool1d 5 stride 2": pool(F.max_pool1d, SIGNAL, 5, 2, 2),
        "max_pool1d 33 stride 1": pool(F.max_pool1d, SIGNAL, 33, 1, 16),
        "max_pool1d 64 stride 4": pool(F.max_pool1d, SIGNAL, 64, 4, 16),
        "max_pool1d 101 stride 1": pool(F.max_pool1d, SIGNAL, 101, 1, 50),
        "avg_pool1d 64 stride 4": pool(F.avg_pool1d, SIGNAL, 64, 4, 16),
        "max_pool2d 13 stride 1": pool(F.max_pool2d, IMAGE, 13, 1, 6),
        "max_pool3d 2": pool(F.max_pool3d, VOLUME, 2),
        "max_pool2d 2, places": (lambda x: F.max_pool2d(x, 2, return_indices=True), (rand(*IMAGE),)),
        "max_pool2d 3 stride 2, places": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (rand(*IMAGE),)),
        "adaptive_avg_pool1d 30": pool(F.adaptive_avg_pool1d, SIGNAL, 30),
        "adaptive_max_pool1d 30": pool(F.adaptive_max_pool1d, SIGNAL, 30),
        "adaptive_avg_pool2d 7": pool(F.adaptive_avg_pool2d, IMAGE, 7),
        "upsample linear": resize(SIGNAL, 2000, "linear"),
        "upsample nearest": resize(IMAGE, (128, 128), "nearest"),
        "upsample nearest-exact": resize(IMAGE, (128, 128), "nearest-exact"),
        "upsample bilinear": resize(IMAGE, (128, 128), "bilinear"),
        "upsample bicubic": resize(IMAGE, (128, 128), "bicubic"),
        "upsample trilinear": resize(VOLUME, (32, 64, 64), "trilinear"),
        "unfold": (lambda x: F.unfold(x, 3, padding=1), (rand(*IMAGE),)),
        "fold": (lambda x: F.fold(x, (64, 64), 3, padding=1), (rand(2, 144, 4096),)),
        "grid_sample": grid(IMAGE),
        "grid_sample nearest border": grid(IMAGE, "nearest", "border"),
        "grid_sample bicubic": grid(IMAGE, "bicubic"),
        "grid_sample of volumes": grid(VOLUME),
        "masked_scatter": (lambda x, s: x.masked_scatter(x > 0, s), (x, rand(256 * 512))),
        "embedding_bag sum": bags("sum"),
        "embedding_bag mean": bags("mean"),
        "embedding_bag max": bags("max"),
        "each second element": (lambda x: x[:, ::2] + 1, (x,)),
        "backwards": (lambda x: x.flip(1) + 1, (x,)),
        "conv1d": layer(nn.Conv1d(64, 64, 3, padding=1), 1, 64, 1000),
        "conv1d single": layer(nn.Conv1d(256, 256, 1), 1, 256, 400),
        "conv1d stride 2": layer(nn.Conv1d(512, 512, 3, 2, bias=False), 1, 512, 1000),
        "conv1d one channel": layer(nn.Conv1d(1, 256, 512, 4, 254), 1, 1, 16000),
        "conv1d, norm, relu": layer(
            nn.Sequential(nn.Conv1d(64, 64, 5, padding=2), nn.BatchNorm1d(64), nn.ReLU()), 8, 64, 300
        ),
        "conv3d": layer(nn.Conv3d(64, 64, 3, padding=1), 1, 64, 8, 16, 16),
        "conv3d flat": layer(nn.Conv3d(32, 64, (1, 3, 3), padding=(0, 1, 1)), 1, 32, 8, 28, 28),
        "conv3d deep": layer(nn.Conv3d(64, 64, (3, 1, 1), padding=(1, 0, 0)), 1, 64, 8, 28, 28),
        "conv3d, norm, relu": layer(
            nn.Sequential(nn.Conv3d(32, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU()), 1, 32, 8, 28, 28
        ),
    }


def microseconds(calls, seconds):
    """The least time of each call, measured in turns."""
    least = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for k, call in enumerate(calls):
            start = time.perf_counter()
            call()
            least[k] = min(least[k], time.perf_counter() - start)
    return [t * 1e6 for t in least]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="cases whose names contain one of these")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = {}
    for name, (fn, args) in cases().items():
        if arguments.only and not any(part in name for part in arguments.only):
            continue
        with torch.no_grad():
            compiled = firebrick.compile(fn)
            compiled(*args)
            eager, ours = microseconds([lambda: fn(*args), lambda: compiled(*args)], arguments.seconds)  # noqa: B023
        results[name] = {"eager": eager, "firebrick": ours, "ratio": ours / eager}
        if not arguments.json:
            print(f"{name:28} eager {eager:9.1f} us  firebrick {ours:9.1f} us  ratio {ours / eager:5.2f}", flush=True)
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
