"""The host program on a device that is not there: a driver of C whose kernels are functions of this process."""

import subprocess

import pytest
import torch
from stand_in import executable, module, slot

from firebrick import _native

ADD = {
    "slots": [slot("input", [0]), slot("fresh", [0])],
    "registers": [["s", 0, 0], ["+", [0], 3], ["/", [1], 4]],
    "views": [[1, [[0]], [1], 0, None]],
    "steps": [["alloc", [1]], ["kernel", "k", [0, 1], [[0]], "cuda:0", [[2]]]],
    "outputs": [["t", 0]],
}


def test_a_launch_gets_its_grid_buffers_sizes_and_attributes(driver, log):
    run = executable(ADD, k=module("add", shared=70_000, dependent=True))
    assert log() == ["attribute 8 70000"]
    for n in (1, 4, 9):
        x = torch.randn(n)
        torch.testing.assert_close(run(x)[0], x + 1)
    assert log()[-1] == "launch add 3 x 128 shared 70000 dependent 0"


def test_kernels_behind_the_first_may_start_before_the_one_before_them_is_done(driver, log):
    run = executable({**ADD, "steps": [*ADD["steps"], ADD["steps"][1]]}, k=module("add", dependent=True))
    run(torch.randn(4)), run(torch.randn(4))
    assert [line.split()[-1] for line in log()] == ["0", "1", "0", "1"]


def test_an_empty_grid_is_not_launched(driver, log):
    assert executable(ADD, k=module("add"))(torch.randn(0))[0].shape == (0,)
    assert log() == []


def test_tensors_that_begin_at_odd_places_are_copied(driver, log):
    run = executable(ADD, k=module("add"))
    x = torch.randn(10)
    torch.testing.assert_close(run(x[1:])[0], x[1:] + 1)
    assert log()[0] == "copy"


def test_what_is_written_at_an_odd_place_is_copied_back(driver, log):
    table = {"slots": [slot("input", 4)], "steps": [["kernel", "k", [0], [], "cuda:0", [1]]]}
    run = executable({**table, "outputs": [], "mutated": [0]}, k=module("twice"))
    x = torch.arange(6.0)
    run(x[1:5])
    assert x.tolist() == [0, 2, 4, 6, 8, 5]
    assert [line.split()[0] for line in log()] == ["copy", "launch", "copy"]


def test_what_the_driver_refuses_is_an_error_that_names_it(driver, log):
    run = executable(ADD, k=module("add"))
    driver.fake_fail(2)
    with pytest.raises(RuntimeError, match=r"CUDA error: out of memory \(launch\)"):
        run(torch.randn(4))
    driver.fake_fail(0)
    run(torch.randn(4))
    with pytest.raises(OSError, match="no such thing"):
        module("missing")
    with pytest.raises(OSError, match="load"):
        module("add", code=b"text\0")


def test_devices_that_are_not_there_are_refused_by_name(driver):
    with pytest.raises(ValueError, match="no device tpu"):
        executable({**ADD, "slots": [["input", "f32", [4], [1], 0, "tpu:0"]]}, k=module("add"))
    with pytest.raises(ValueError, match="another dtype, device"):
        executable({**ADD, "slots": [["input", "f32", [4], [1], 0, "cuda:0"], slot("fresh", 4)]}, k=module("add"))(
            torch.randn(4)
        )


def test_an_old_driver_is_refused(tmp_path):
    library = tmp_path / "libold.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "/dev/null"], check=True)
    with pytest.raises(OSError, match="too old"):
        _native.cuda_open(str(library))
    with pytest.raises(OSError, match="no CUDA driver"):
        _native.cuda_open(str(tmp_path / "nothing.so"))
