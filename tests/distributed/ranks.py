"""Two processes of one process group, which run what tests tell them."""

from __future__ import annotations

import importlib
import os
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SECONDS = 60


def _serve(rank: int, world: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS)
    )
    while (job := pipe.recv()) is not None:
        module, name, args = job
        import firebrick

        firebrick.reset()
        torch.manual_seed(0)
        try:
            pipe.send((True, getattr(importlib.import_module(module), name)(rank, *args)))
        except BaseException:  # noqa: BLE001  the test shows it
            pipe.send((False, traceback.format_exc()))
            break
    dist.destroy_process_group()


class Ranks:
    """Processes that stay for the tests of a file; `run` calls a function `(rank, *args)` in each."""

    def __init__(self, world: int = 2, **env: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        context, store = mp.get_context("spawn"), str(Path(self.folder.name) / "store")
        ends = [context.Pipe() for _ in range(world)]
        self.pipes = [mine for mine, _ in ends]
        before = dict(os.environ)
        os.environ.update(env)
        self.processes = [
            context.Process(target=_serve, args=(rank, world, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(ends)
        ]
        for process in self.processes:
            process.start()
        os.environ.clear()
        os.environ.update(before)
        for _, theirs in ends:
            theirs.close()

    def run(self, function: Any, *args: Any) -> list[Any]:
        """The results, one a rank; what a rank raises is an error here."""
        results = self.outcomes(function, *args)
        for rank, (ok, result) in enumerate(results):
            assert ok, f"rank {rank}:\n{result}"
        return [result for _, result in results]

    def outcomes(self, function: Any, *args: Any) -> list[tuple[bool, Any]]:
        """For each rank whether the call ended, and its result or error."""
        for pipe in self.pipes:
            pipe.send((function.__module__, function.__qualname__, args))
        results = []
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            try:
                results.append(pipe.recv() if pipe.poll(2 * SECONDS) else (False, "no answer in time"))
            except EOFError:
                process.join(SECONDS)
                results.append((False, f"the process ended with code {process.exitcode}"))
        if not all(ok for ok, _ in results):
            self.close()
        return results

    def close(self) -> None:
        """End the processes."""
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            try:
                pipe.send(None)
            except OSError:
                pass
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self.folder.cleanup()
