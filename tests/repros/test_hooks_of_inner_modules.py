"""Hooks of submodules and of all modules that the engine calls in the backward never were, nor `always_call` ones."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.utils.checkpoint import checkpoint

import firebrick


@pytest.fixture(autouse=True)
def _either_kind_of_global_hook(monkeypatch):
    # torch takes only one kind a process, and remembers which
    monkeypatch.setattr(modules, "_global_is_full_backward_hook", None)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.middle = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
        self.last = nn.Linear(5, 2)
        self.log = []

    def forward(self, x):
        return self.last(self.middle(self.first(x))).sum()


class Checkpointed(Net):
    def forward(self, x):
        return self.last(checkpoint(self.middle, self.first(x), use_reentrant=False)).sum()


class Looping(Net):
    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = self.middle(x)
        return self.last(x).sum()


class Hooking(Net):
    def forward(self, x):
        handle = self.middle.register_full_backward_hook(tenfold(self.log))
        result = super().forward(x)
        handle.remove()
        return result


class HookingAll(Net):
    def forward(self, x):
        handle = modules.register_module_full_backward_hook(noting(self.log))
        result = super().forward(x) * nn.Tanh()(x).sum()
        handle.remove()
        return result


class MakingHooked(Net):
    def forward(self, x):
        made = nn.Tanh()
        made.register_full_backward_hook(tenfold(self.log))
        return made(super().forward(x))


class Recovering(Net):
    def forward(self, x):
        try:
            return super().forward(x)
        except ZeroDivisionError:
            return self.first(x).sum()


def tenfold(log):
    def hook(module, before, behind):
        log.append((type(module).__name__, *before, *behind))
        return tuple(g * 10 for g in before)

    return hook


def noting(log):
    return lambda module, *gradients: log.append((type(module).__name__, len(gradients)))


def fails(module, inputs):
    raise ZeroDivisionError


def full(net):
    return [net.middle.register_full_backward_hook(tenfold(net.log))]


def before(net):
    handles = [net.middle[0].register_full_backward_pre_hook(lambda module, given: (given[0] * 3,))]
    return [*handles, net.middle.register_full_backward_pre_hook(noting(net.log))]


def both_ways(net):
    return [
        *full(net),
        net.middle.register_forward_hook(lambda module, given, result: result * 2),
        net.middle.register_forward_pre_hook(lambda module, given: given[0] + 1),
    ]


def old(net):
    return [net.last.register_backward_hook(noting(net.log))]


def of_all(net):
    return [
        modules.register_module_full_backward_hook(noting(net.log)),
        modules.register_module_full_backward_pre_hook(noting(net.log)),
        modules.register_module_forward_hook(lambda module, given, result: result * 2),
    ]


def old_of_all(net):
    return [modules.register_module_backward_hook(noting(net.log))]


def activations(net):
    kept = []

    def keep(module, given, result):
        result.retain_grad()
        result.register_hook(lambda gradient: net.log.append(gradient))
        kept.append(result)

    def read(module, *gradients):
        net.log.append([one.detach() for one in kept] + [one.grad for one in kept])

    return [net.middle.register_forward_hook(keep), net.first.register_full_backward_hook(read)]


def always(net):
    return [
        net.middle.register_forward_hook(lambda module, given, result: net.log.append(result), always_call=True),
        net.middle.register_forward_pre_hook(fails),
    ]


def always_of_all(net):
    names = lambda module, given, result: net.log.append(type(module).__name__)  # noqa: E731
    return [
        modules.register_module_forward_hook(names, always_call=True),
        net.middle[1].register_forward_pre_hook(fails),
    ]


def outcome(make, hooks, *, compiled):
    torch.manual_seed(0)
    net = make().double()
    call = firebrick.compile(net) if compiled else net
    found = []
    for kinds in ((), hooks, hooks, ()):
        handles = [handle for kind in kinds for handle in kind(net)]
        x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
        net.zero_grad()
        try:
            result = call(x)
            result.backward()
        finally:
            for handle in handles:
                handle.remove()
        found += [result.detach(), x.grad, *[p.grad for p in net.parameters()]]
    return found, net.log


@pytest.mark.parametrize("make", [Net, Checkpointed, Looping, Hooking, MakingHooked])
@pytest.mark.parametrize("hooks", [full, before, both_ways, old, of_all, old_of_all, activations])
def test_hooks_of_the_backward(make, hooks):
    check(make, hooks)


@pytest.mark.parametrize("make", [HookingAll])
def test_hooks_of_all_modules(make):
    check(make, full)


@pytest.mark.parametrize("hooks", [always, always_of_all])
def test_hooks_that_are_called_even_if_the_module_raises(hooks):
    check(Recovering, hooks)


def test_hooks_that_come_and_go():
    check(Net, full, before, of_all)


def check(make, *hooks):
    (results, log), (ours, our_log) = [outcome(make, hooks, compiled=compiled) for compiled in (False, True)]
    compare(ours, results)
    compare(our_log, log)


def compare(ours, wanted):
    assert type(ours) is type(wanted)
    if isinstance(wanted, (list, tuple)):
        assert len(ours) == len(wanted)
        for one, other in zip(ours, wanted, strict=True):
            compare(one, other)
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(ours, wanted)
    else:
        assert ours == wanted
