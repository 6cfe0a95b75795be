"""A process that compiles kernels was asked at the moment when it ended because nobody had asked for a minute."""

import time

import pytest

from firebrick.runtime import triton_build

pytest.importorskip("triton")


class Builder:
    """A process that runs."""

    def poll(self):
        return None


@pytest.mark.parametrize(("seconds", "taken"), [(1, True), (55, False)])
def test_only_those_that_have_time_left_are_asked(monkeypatch, tmp_path, seconds, taken):
    builder, fresh = Builder(), Builder()
    monkeypatch.setattr(triton_build, "_idle", [(builder, time.monotonic() - seconds)])
    monkeypatch.setattr(triton_build, "_start", lambda: fresh)
    assert triton_build._Build({"a": None}, tmp_path, 1, 10.0).workers == [builder if taken else fresh]
