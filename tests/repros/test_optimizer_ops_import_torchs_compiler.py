"""PyTorch's decompositions of lerp, addcmul and addcdiv imported torch's compiler, which took longer than all else."""

import subprocess
import sys

PROGRAM = """
import sys, torch, firebrick
xs, ys = [torch.randn(4) for _ in range(2)], [torch.rand(4) + 1 for _ in range(2)]
def step(xs, ys):
    torch._foreach_lerp_(xs, ys, 0.1)
    torch._foreach_addcmul_(xs, ys, ys, 0.5)
    torch._foreach_addcdiv_(xs, ys, ys, -0.5)
    return xs[0] + 0
with torch.no_grad():
    expected = step([x.clone() for x in xs], ys)
    assert torch.allclose(firebrick.compile(step)(xs, ys), expected)
assert firebrick.stats()["counts"]["graphs compiled"] == 1
print(sorted({"torch._dynamo", "sympy"} & sys.modules.keys()))
"""


def test_lists_of_optimizers_need_no_other_compiler(tmp_path):
    command = ["env", f"FIREBRICK_CACHE_DIR={tmp_path}", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
