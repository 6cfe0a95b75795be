"""What tests of kernels written by hand need of a processor."""

import pytest

from firebrick.config import Config
from firebrick.targets.cpu.cpu_target import detect

needs_vectors = pytest.mark.skipif(
    detect(Config()).simd == "scalar", reason="without vectors no kernel is written by hand"
)
