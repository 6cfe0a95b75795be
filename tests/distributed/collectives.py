"""Functions that call collectives, for comparison with plain Python."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint

import firebrick

_OPS = torch.ops._c10d_functional
_GROUP = "0"
MESHES: list[DeviceMesh] = []


def op_all_reduce(x):
    return _OPS.wait_tensor(_OPS.all_reduce(x * 3, "sum", _GROUP)) - 1


def op_result_that_nobody_uses(x):
    _OPS.wait_tensor(_OPS.all_reduce(x * 3, "sum", _GROUP))
    return x + 1


def op_in_place(x):
    y = x * 2
    _OPS.wait_tensor(_OPS.all_reduce_(y, "sum", _GROUP))
    return y + 1


def op_gather_and_reduce(x):
    gathered = _OPS.all_gather_into_tensor(x * 2, 2, _GROUP)
    largest = _OPS.all_reduce(x + 1, "sum", _GROUP)
    return _OPS.wait_tensor(gathered).view(2, 4, 3).sum(0) + _OPS.wait_tensor(largest)


def op_scatter(x):
    return _OPS.wait_tensor(_OPS.reduce_scatter_tensor(x * 2, "sum", 2, _GROUP)) + 1


def op_in_a_checkpoint(x):
    return checkpoint(lambda t: op_all_reduce(t.sin()), x, use_reentrant=False) * 2


def functional(x):
    y = fc.all_reduce(x * 2, "sum", dist.group.WORLD)
    z = fc.all_reduce(y + 1, "sum", dist.group.WORLD)
    return z * 2


def functional_gather_and_scatter(x):
    y = fc.all_gather_tensor(x * 2, 0, dist.group.WORLD)
    return fc.reduce_scatter_tensor(y.sin(), "sum", 0, group=dist.group.WORLD) + fc.broadcast(x, 1, [0, 1])


def functional_on_a_mesh(x):
    mesh = MESHES[0]
    return fc.wait_tensor(fc.all_reduce(x * 2, "SUM", (mesh, 0))) + fc.all_gather_tensor(x, 1, mesh).sum(
        1, keepdim=True
    )


def in_place(x):
    y = (x * 2).detach()
    dist.all_reduce(y)
    dist.broadcast(y, 0)
    return x + y


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x.detach() * 2)
    return torch.cat(parts) + x.repeat(2, 1)


def at_once(x):
    y = (x * 2).detach()
    work = dist.all_reduce(y, async_op=True)
    z = x.sin()
    work.wait()
    return y + z


def by_rank(x):
    if dist.get_rank() == 0:
        dist.send(x.detach() * 2, 1)
        return x * dist.get_world_size()
    y = torch.empty_like(x)
    dist.recv(y, 0)
    return x + y * 3


FUNCTIONS = {
    f.__name__: f
    for f in (
        op_all_reduce,
        op_result_that_nobody_uses,
        op_in_place,
        op_gather_and_reduce,
        op_scatter,
        op_in_a_checkpoint,
        functional,
        functional_gather_and_scatter,
        functional_on_a_mesh,
        in_place,
        gathered,
        at_once,
        by_rank,
    )
}


def _called(function, x):
    """The result, the gradient, and the names of what was sent."""
    x = x.detach().requires_grad_(x.requires_grad)
    with profile() as seen:
        y = function(x)
        y = y.trigger_wait() if hasattr(y, "trigger_wait") else y
        if y.requires_grad:
            y.sum().backward()
    sent = [e.name for e in seen.events() if e.name.startswith("gloo:")]
    return y.detach(), x.grad, sorted(sent)


def compare(rank: int, name: str, grad: bool) -> int:
    """Call as plain Python and, twice, compiled; how many graphs there were."""
    warnings.simplefilter("ignore", FutureWarning)
    function, before = FUNCTIONS[name], firebrick.graphs_compiled()
    MESHES[:] = [init_device_mesh("cpu", (2,))]
    x = (torch.randn(4, 3) + rank).requires_grad_(grad)
    expected, gradient, sent = _called(function, x)
    compiled = firebrick.compile(function, fullgraph=name.startswith("functional"))
    for _ in range(2):
        result, its_gradient, its_sent = _called(compiled, x)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(its_gradient, gradient)
        assert its_sent == sent
        assert sent
    return firebrick.graphs_compiled() - before
