"""A process that was forked while kernels to be measured were built, or after, builds its own."""

import multiprocessing
import sys

import pytest
import torch

from firebrick.config import Config
from firebrick.targets.cpu.cpu_target import detect
from firebrick.targets.cpu.matmul_probe import MatmulProbe
from firebrick.targets.cpu.measured_runs import probe

pytestmark = [pytest.mark.compiler, pytest.mark.skipif(sys.platform != "linux", reason="fork")]


def asked(cache_dir, queue):
    config = Config.from_env().with_options({"cache_dir": cache_dir})
    queue.put(type(probe(detect(config), config, MatmulProbe, False).result()).__name__)


def test_a_fork_waits_for_no_thread_of_its_parent(tmp_path):
    config = Config.from_env().with_options({"cache_dir": tmp_path})
    if not detect(config).vector_bytes:
        pytest.skip("no vectors")
    future, context = probe(detect(config), config, MatmulProbe, False), multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=asked, args=(tmp_path, queue), daemon=True)
    child.start()
    try:
        assert queue.get(timeout=120) == "MatmulProbe"
    finally:
        child.kill()
    assert future.result() is not None and torch.get_num_threads()
