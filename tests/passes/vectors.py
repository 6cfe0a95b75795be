"""What tests of kernels written by hand need of a processor."""

import pytest

from firebrick.targets.cpu.cpu_target import best_simd

needs_vectors = pytest.mark.skipif(best_simd() == "scalar", reason="without vectors no kernel is written by hand")
