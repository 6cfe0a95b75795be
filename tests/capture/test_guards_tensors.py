"""Guards of tensors: every property that a graph depends on, read from memory or by torch's C ABI."""

import pytest
import torch
from plans import X, agree, frame, plan

from firebrick import _native
from firebrick.capture.guards import sources as s
from firebrick.capture.guards.guard_kinds import USES_TENSOR_WORDS, Guard, TensorMeta, id_guard, tensor_guard

BASE = torch.empty(2, 3, 4)
TENSORS = {
    "base": BASE,
    "ones": torch.ones(2, 3, 4),
    "offset": torch.empty(3, 3, 4)[1:],
    "dtype": BASE.double(),
    "half": BASE.half(),
    "int": BASE.int(),
    "bool": BASE.bool(),
    "complex": BASE.to(torch.complex64),
    "conj": BASE.to(torch.complex64).conj(),
    "neg": torch._neg_view(BASE),
    "meta": BASE.to("meta"),
    "size": torch.empty(2, 3, 5),
    "transposed": torch.empty(2, 4, 3).transpose(1, 2),
    "dims": torch.empty(2, 3, 4, 1),
    "scalar": torch.tensor(1.0),
    "grad": torch.empty(2, 3, 4, requires_grad=True),
    "result": torch.empty(2, 3, 4, requires_grad=True) * 2,
    "parameter": torch.nn.Parameter(torch.empty(2, 3, 4)),
    "frozen": torch.nn.Parameter(torch.empty(2, 3, 4), requires_grad=False),
    "six": torch.empty(1, 2, 1, 3, 1, 4),
    "six_other": torch.empty(1, 2, 1, 3, 2, 4),
    "sparse": torch.eye(3).to_sparse(),
    "view_of_grad": torch.empty(24, requires_grad=True).view(2, 3, 4),
    "detached": torch.empty(24, requires_grad=True).detach().view(2, 3, 4),
}
with torch.inference_mode():
    TENSORS["inference"] = torch.empty(2, 3, 4)
SAME = [{"base", "ones", "offset", "detached"}, {"result", "view_of_grad", "grad"}]


@pytest.fixture(params=[True, False], ids=["words", "abi"])
def tensor_words(request):
    if not request.param:
        _native.forget_tensor_words()
    yield request.param
    samples = [torch.empty_strided((3, 5, 7), (70, 14, 2)) for _ in range(4)]
    assert any(_native.use_tensor_words(sample, 3, 105) for sample in samples) is USES_TENSOR_WORDS


def test_words_of_tensors_are_found_here():
    assert USES_TENSOR_WORDS
    assert min(_native.tensor_layout().values()) > 0


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_told_apart(name, tensor_words):
    made = plan(tensor_guard(X, TENSORS[name]))
    for other, tensor in TENSORS.items():
        expected = name == other or any({name, other} <= group for group in SAME)
        assert made.check(frame(TENSORS[name]))
        assert agree(made, frame(tensor)) is expected, other


CHANGES = {
    "requires_grad_": lambda p: p.requires_grad_(not p.requires_grad),
    "data size": lambda p: setattr(p, "data", torch.empty(5, 3)),
    "data dtype": lambda p: setattr(p, "data", torch.empty(4, 3, dtype=torch.float64)),
    "data strides": lambda p: setattr(p, "data", torch.empty(3, 4).t()),
    "resize_": lambda p: p.requires_grad_(False).resize_(2, 2),
    "class": lambda p: setattr(p, "__class__", type("Subclass", (torch.nn.Parameter,), {})),
    "swap": lambda p: torch.utils.swap_tensors(p, torch.nn.Parameter(torch.empty(7))),
    "meta": lambda p: torch.utils.swap_tensors(p, torch.nn.Parameter(torch.empty(4, 3, device="meta"))),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("grad", [True, False])
def test_changes_of_a_parameters_own_metadata_are_seen(change, grad):
    module = torch.nn.Module()
    module.p = torch.nn.Parameter(torch.empty(4, 3), requires_grad=grad)
    made = plan(id_guard(X, module), tensor_guard(s.ModuleItem(X, "_parameters", "p"), module.p))
    for _ in range(100):
        assert made.check(frame(module))
    CHANGES[change](module._parameters["p"])
    assert not made.check(frame(module))
    assert made.explain_failure(frame(module)).split()[0].startswith(("x.p", "type(x.p)"))


def test_requires_grad_of_parameters():
    module = torch.nn.Module()
    module.p = torch.nn.Parameter(torch.empty(4, 3))
    module.register_buffer("b", torch.empty(3))
    guards = [Guard("REQUIRES_GRAD", s.ModuleItem(X, "_parameters", "p"), True)]
    guards += [Guard("REQUIRES_GRAD", s.ModuleItem(X, "_buffers", "b"), False)]
    made = plan(id_guard(X, module), *guards)
    for change, expected in (
        (lambda: None, True),
        (lambda: module.p.requires_grad_(False), False),
        (lambda: module.p.requires_grad_(True), True),
        (lambda: module.b.requires_grad_(True), False),
        (lambda: setattr(module, "b", torch.empty(3)), True),
        (lambda: module.b.add_(torch.ones(3, requires_grad=True)), False),
        (lambda: module.b.detach_(), True),
        (lambda: setattr(module.p, "data", torch.ones(2)), True),
        (lambda: setattr(module, "p", None), False),
    ):
        change()
        for _ in range(70):
            assert made.check(frame(module)) is expected
        assert agree(made, frame(module)) is expected


def test_view_of_a_base_that_begins_to_require_grad():
    base = torch.empty(4)
    view = base.view(2, 2)
    module = torch.nn.Module()
    module.register_buffer("b", view)
    made = plan(id_guard(X, module), tensor_guard(s.ModuleItem(X, "_buffers", "b"), view))
    for _ in range(3):
        assert made.check(frame(module))
    base.requires_grad_()
    base.detach().mul_(2)
    assert agree(made, frame(module)) is (not view.requires_grad)


def test_dynamic_dimensions(tensor_words):
    made = plan(tensor_guard(X, torch.empty(2, 3, 4), dynamic=[1]))
    assert str(made.guards[0]) == "x: f32[2, ?, 4] cpu"
    for shape, expected in {
        (2, 3, 4): True,
        (2, 7, 4): True,
        (2, 7, 5): False,
        (3, 3, 4): False,
        (2, 3): False,
    }.items():
        assert agree(made, frame(torch.empty(shape))) is expected
    assert not made.check(frame(torch.empty(2, 4, 7).transpose(1, 2)))
    made = plan(tensor_guard(X, torch.empty(4, 6), dynamic=[0]))
    assert made.guards[0].payload.strides == (6, 1)
    made = plan(tensor_guard(X, torch.empty(4, 6), dynamic=[-1]))
    assert made.guards[0].payload.strides == (None, 1)
    for _ in range(3):
        assert made.check(frame(torch.empty(4, 9)))
        assert made.check(frame(torch.empty(4, 8)))


def test_prints_of_tensors():
    assert str(TensorMeta.of(torch.empty(2, 3))) == "f32[2, 3] cpu"
    assert str(TensorMeta.of(torch.empty(3, 2).t())) == "f32[2, 3] cpu strides [1, 2]"
    assert str(TensorMeta.of(torch.nn.Parameter(torch.empty(2, dtype=torch.bfloat16)))) == "bfloat16[2] cpu grad"
    assert str(TensorMeta.of(torch.eye(3).to_sparse())) == "f32[3, 3] cpu sparse_coo"
    explained = {
        "dtype": "x.dtype was torch.float32, now torch.float64",
        "size": "x.shape[2] was 4, now 5",
        "dims": "x.dim() was 3, now 4",
        "grad": "x.requires_grad was False, now True",
        "transposed": "x.stride()[1] was 4, now 1",
        "meta": "x.device was cpu, now meta",
        "parameter": "type(x) was torch.Tensor, now torch.nn.parameter.Parameter",
        "inference": "dispatch keys of x was",
    }
    made = plan(tensor_guard(X, BASE))
    for name, text in explained.items():
        assert made.explain_failure(frame(TENSORS[name])).startswith(text)
