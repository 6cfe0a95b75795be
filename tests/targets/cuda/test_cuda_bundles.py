"""Files with programs for a GPU: machine code of its kernels is inside, and other cards are refused with their names."""

import zipfile

import pytest
import torch
from interpreted import AVAILABLE

import firebrick
from firebrick.api.ahead import SizesTaken
from firebrick.api.recorded_calls import Call, kind_of
from firebrick.artifact import decode
from firebrick.errors import CacheError
from firebrick.runtime.triton_build import open_cubin
from firebrick.targets import by_device
from firebrick.targets.cuda.cuda_target import CudaTarget
from firebrick.targets.cuda.facts import CARDS

ON_GPU = ["float16 on cuda:1", [2, 3], [3, 1]]


def test_arguments_are_named_with_their_device():
    call = Call(["dict", [["x", ["tensor", 0]]]], [ON_GPU])
    assert call.show() == "x=float16[2, 3] on cuda:1"
    sizes = SizesTaken([0], [["s0", 3]], [ON_GPU], [["s0", 2, 99]], [])
    here = torch.randn(2, 3).half()
    assert kind_of(here) == "float16"
    assert sizes.problem([here]) == "the program is for float16['s0', 3] on cuda:1, got float16[2, 3]"


@pytest.mark.skipif(not AVAILABLE, reason="no triton")
def test_cubins_are_in_the_file_and_another_card_is_named(tmp_path, monkeypatch):
    """The kernels of this program are for a card; its tensors lie here, so that it can't be called."""

    def card(capability):
        firebrick.reset()
        monkeypatch.setattr(by_device, "TARGETS", {"cpu": lambda config: CudaTarget(CARDS[capability])})

    path = tmp_path / "program.fb"
    run = firebrick.compile(lambda x: (x * 2 + 1).softmax(-1), options={"stages": "trace"})
    with torch.no_grad():
        run(torch.randn(4, 8))
    card(90)
    firebrick.save(run, path)
    with zipfile.ZipFile(path) as archive:
        artifact = decode(archive.read("program0.fb"))
    assert [unit.builder for unit in artifact.units] == ["triton"]
    head, cubin = open_cubin(artifact.code[artifact.units[0].name])
    assert head["threads"] >= 32
    assert cubin[:4] == b"\x7fELF"
    card(80)
    with pytest.raises(
        CacheError, match=r"with sm_90 of 132 multiprocessors.* this is .* sm_80 of 108 multiprocessors"
    ):
        firebrick.load(path)
