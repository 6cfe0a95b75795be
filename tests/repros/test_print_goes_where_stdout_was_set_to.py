"""What was printed inside of `contextlib.redirect_stdout` went to the real stream, after the function."""

import contextlib
import io

import torch

import firebrick


def test_the_stream_gets_it() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            print("a")
        return x + len(stream.getvalue())

    x = torch.ones(2)
    assert torch.equal(firebrick.compile(f, backend="eager")(x), x + 2)
