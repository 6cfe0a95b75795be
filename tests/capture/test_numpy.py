"""Code of numpy in captured programs: every function of the tables against numpy, and arrays in programs."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import compiling
import numpy as np
import pytest
import torch

import firebrick
from firebrick.capture import hook
from firebrick.capture.library.numpy_rows import METHODS, ROWS, UFUNCS

A = np.arange(6.0).reshape(2, 3)
B = np.array([[0.5, -1.5, 2.0], [3.0, -0.25, 7.0]], dtype=np.float32)
N = np.array([[3, 1, 2], [0, 5, 4]], dtype=np.int32)
V = np.array([1.0, 2.0, 4.0])
S = np.array([[2.0, 1.0], [1.0, 3.0]])
MASK = np.array([[True, False, True], [False, False, True]])


def same(got: Any, want: Any, exact: bool = False) -> None:
    """As in compiling.assert_same, with arrays: class, dtype, shape and values."""
    assert type(got) is type(want), (got, want)
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            same(one, other, exact)
    elif isinstance(want, (np.ndarray, np.generic)):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if exact or want.dtype.kind in "biu":
            np.testing.assert_array_equal(got, want)
        else:
            close = {2: 2e-3, 4: 2e-6}.get(want.dtype.itemsize, 1e-12)
            np.testing.assert_allclose(got, want, rtol=close, atol=close)
    else:
        compiling.assert_same(got, want)


def check(function: Any, *args: Any, graphs: int | None = 1, breaks: int | None = 0) -> compiling.Compiled:
    """Plain and compiled on copies of the arguments."""
    hook.reset()  # functions of one code are given up together
    compiled = compiling.Compiled(function)
    for _ in range(2):
        mine, other = copy.deepcopy(args), copy.deepcopy(args)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            want, got = compiling.outcome(function, other), compiling.outcome(compiled, mine)
        assert got[0] == want[0], (got, want)
        same(got[1], want[1])
        same(mine, other)
    assert graphs is None or len(compiled.graphs) == graphs
    assert breaks is None or len(compiled.breaks) == breaks, [frame.break_ for frame in compiled.frames]
    return compiled


# -- the tables -----------------------------------------------------------------------------------

_VALUES = {
    "b": [True, False, True, False],
    "u": [0, 1, 3, 200],
    "i": [-7, 0, 3, 5],
    "f": [-2.5, -0.0, 0.75, 3.0, np.inf, -np.inf, np.nan, 1e-3],
    "c": [1 + 2j, -0.5j, 3.0, 0.25 - 1j],
}
_DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")
_SMALL = {np.gcd, np.lcm, np.left_shift, np.right_shift, np.power}


@pytest.mark.parametrize("function", UFUNCS, ids=lambda function: function.__name__)
def test_elementwise_functions(function: Any) -> None:
    captured = 0
    for name in _DTYPES:
        values = np.array(_VALUES[np.dtype(name).kind]).astype(name)
        if function is np.matmul:
            values = np.nan_to_num(values[:4], posinf=2, neginf=-2).reshape(2, 2)
        args = [values] * function.nin
        if function.nin == 2 and function is not np.matmul:
            args = [values[:, None], values]
            if UFUNCS[function].constant is not None and np.dtype(name).kind in "iu":
                args = [values, 3]
        hook.reset()
        compiled = compiling.Compiled(lambda *args: function(*args))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            want, got = compiling.outcome(function, tuple(args)), compiling.outcome(compiled, tuple(args))
        assert got[0] == want[0], name
        if want[0] == "returned":
            same(got[1], want[1])
        captured += len(compiled.graphs) == 1 and not compiled.breaks
    assert captured >= len(UFUNCS[function].kinds)


_SAMPLES: dict[str, list[tuple[Any, ...]]] = {
    **{name: [(A,), (B,), (N,), (N, 1)] for name in ("sum", "mean", "prod", "cumsum", "cumprod", "nansum")},
    **{name: [(A,), (B, 0), (N, 1)] for name in ("var", "std", "ptp", "median", "average")},
    **{name: [(A,), (B, 0), (N, 1), (MASK,)] for name in ("max", "min", "any", "all", "argmax", "argmin")},
    "count_nonzero": [(A, 0), (MASK, 1)],
    "trace": [(A,), (N, 1)],
    "norm": [(A,), (B, None, 0), (V, 1), (N,)],
    "diff": [(A,), (N, 1, 0)],
    "sort": [(N,), (B, 0), (A, None)],
    "argsort": [(N, -1, "stable")],
    "searchsorted": [(V, B), (V, 2.5), (V, N, "right")],
    "roll": [(A, 1), (N, 1, 0)],
    "take": [(A, np.array([0, -1])), (A, [0, 2], 1), (N, 1, -1)],
    "take_along_axis": [(A, np.array([[0], [2]]), 1)],
    "repeat": [(A, 2), (N, 3, 0)],
    "tile": [(A, 2), (N, (2, 1))],
    "reshape": [(A, (3, 2)), (A, -1), (N.T, 6)],
    "ravel": [(A,), (A.T,)],
    "transpose": [(A,), (A, (0, 1)), (V,)],
    "swapaxes": [(A, 0, 1)],
    "moveaxis": [(A, 0, 1)],
    "expand_dims": [(A, 1)],
    "squeeze": [(A[None],), (A[None], 0)],
    "atleast_1d": [(np.array(3.0),)],
    "atleast_2d": [(V,)],
    "concatenate": [([A, B],), ([A, N], 1), ([A, V[:2, None]], 1), ([A, B], None)],
    "stack": [([A, N],), ([A, B], 1)],
    "hstack": [([A, B],), ([V, V],)],
    "vstack": [([A, V],)],
    "column_stack": [([V, V],)],
    "split": [(V, 3), (A, 3, 1), (A, [1], 1)],
    "array_split": [(V, 2)],
    "pad": [(A, 1), (N, ((1, 0), (2, 1))), (V, (1, 2))],
    "tril": [(A,), (N, -1)],
    "triu": [(A, 1)],
    "diag": [(V,), (V, 1)],
    "where": [(MASK, A, B), (MASK, 1.0, 0), (MASK, A, 2), (N, B, 0.5)],
    "clip": [(A, 1, 3), (N, 1, None), (B, 0.5, V), (N, 0.5, 2)],
    "round": [(B,), (B * 1.234, 2), (N,)],
    "nan_to_num": [(np.array([np.nan, np.inf, -np.inf, 1.0]),)],
    "isclose": [(A, A + 1e-9), (A, N)],
    "sign": [(B,), (N,), (np.array([np.nan, -0.0]),)],
    "dot": [(V, V), (A, V), (A, B.T), (A, 2)],
    "outer": [(V, B)],
    "inner": [(V, V), (A, B)],
    "tensordot": [(A, B.T, 1), (A, B, ([0, 1], [0, 1]))],
    "kron": [(A, S)],
    "inv": [(S,)],
    "det": [(S,), (S.astype(int),)],
    "solve": [(S, V[:2])],
    "zeros": [((2, 3),), (3, np.float32)],
    "ones": [((2, 3), int)],
    "full": [((2,), 3), ((2, 2), 0.5, "float32"), (2, True)],
    "zeros_like": [(A,), (N, float)],
    "ones_like": [(A,)],
    "full_like": [(N, 7)],
    "copy": [(A,), (A.T,)],
}
_UNSPECIFIED = {"empty", "empty_like"}


def _mixed(function: Any, args: tuple[Any, ...]) -> Any:
    """A call whose arrays are arguments, and whose other arguments are constants."""
    return lambda: function(*args)


@pytest.mark.parametrize("function", ROWS, ids=lambda function: function.__name__)
def test_functions_with_a_row(function: Any) -> None:
    name = {"amax": "max", "amin": "min", "around": "round"}.get(function.__name__, function.__name__)
    if name in _UNSPECIFIED:
        return
    for args in _SAMPLES[name]:
        keywords = {"kind": args[2]} if name == "argsort" else {}
        args = args[:2] if keywords else args
        compiled = check(lambda: function(*args, **keywords))
        assert compiled.ops


def test_methods_with_a_row() -> None:
    samples: dict[str, tuple[Any, ...]] = {
        **{"argsort": (-1, "stable"), "take": ([1, 0],), "repeat": (2,), "swapaxes": (0, 1), "clip": (1, 3)},
        **{"dot": (V,), "astype": (np.float32,), "reshape": (3, 2), "transpose": (1, 0)},
    }
    for name in METHODS:
        args = samples.get(name, ())
        for array in (A, N):
            check(lambda: getattr(array, name)(*args))


# -- arrays in programs -----------------------------------------------------------------------------


def normalized(a: Any) -> Any:
    b = (a - V) / V.std() + np.float32(2)
    return b, b.dtype.name, b.shape, b.T @ b, np.array([b.sum(), 1]), len(b)


def in_place(a: Any) -> Any:
    first = a[0, 1]
    a += 1
    a[0] = 5
    a[:, 1] *= 2
    a[1:] = a[:1]
    a[a > 6] = 0
    return a, first, a[0]


def operators(a: Any) -> Any:
    return (
        a + 1,
        2 - a,
        a * a,
        a / 2,
        a // 2,
        a % 3,
        a**2,
        -a,
        abs(a),
        a == 2,
        (a > 1) & (a < 4),
        a[::2, None],
        a[..., 0],
    )


def loops(a: Any) -> Any:
    total = 0
    for row in a:
        total = total + row.sum()
    return (
        total,
        [v * 2 for v in a[0]],
        np.ndim(a),
        np.shape(a),
        isinstance(a, np.ndarray),
        isinstance(total, np.generic),
    )


@pytest.mark.parametrize("function", [normalized, in_place, operators, loops])
@pytest.mark.parametrize("array", [A, B, N], ids=["float64", "float32", "int32"])
def test_programs(function: Any, array: Any) -> None:
    check(function, array)


@pytest.mark.parametrize("function", [normalized, in_place, operators, loops])
def test_programs_on_kernels(function: Any) -> None:
    before = firebrick.graphs_compiled()
    compiled = firebrick.compile(function, options={"strict": True})
    for given in (A, B, N):
        mine, other = given.copy(), given.copy()
        same(compiled(mine), function(other))
        same(mine, other)
    assert firebrick.graphs_compiled() >= before + 3


def test_tensors_and_arrays_share_memory() -> None:
    def function(x: Any, a: Any) -> Any:
        y = x * 2
        b = y.numpy()
        b[0] = 7.0
        t = torch.from_numpy(a)
        t.mul_(2)
        copied, seen = torch.tensor(a), torch.as_tensor(a)
        a[0] = -1.0
        return y + torch.from_numpy(np.sqrt(np.abs(b))), b, a, t, copied, seen, np.asarray(y), np.array(y) * 2

    check(function, torch.tensor([1.0, -2.0, 0.5]), V)
    y, b, *_ = compiling.Compiled(function)(torch.ones(3), V.copy())
    b[0] = 100.0


def test_results_on_one_memory() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        a = y.numpy()
        return y, a, a.T, a[0]

    y, a, transposed, row = compiling.Compiled(function)(torch.ones(2, 2))
    a[0, 1] = 9.0
    assert y[0, 1] == transposed[1, 0] == row[1] == 9.0


def test_global_arrays_are_read_at_each_call() -> None:
    held = np.ones(3)
    compiled = compiling.Compiled(lambda x: x + torch.from_numpy(held))
    assert compiled(torch.zeros(3)).tolist() == [1, 1, 1]
    held[1] = 5
    assert compiled(torch.zeros(3)).tolist() == [1, 5, 1]
    assert len(compiled.graphs) == 1


def test_guards_of_arrays() -> None:
    compiled = compiling.Compiled(lambda a: a * 2 + 1)
    read_only = A.copy()
    read_only.flags.writeable = False
    odd = [A, N, A.T, A[::-1], A.astype(">f8"), A.astype(np.uint32), read_only, np.float64(3), [1]]
    for given in [*odd, *odd]:
        same(compiling.outcome(compiled, (given,))[1], compiling.outcome(lambda a: a * 2 + 1, (given,))[1])
    assert len(compiled.graphs) == 3


@pytest.mark.parametrize(
    "function",
    [
        lambda a: np.percentile(a, 50) + a,
        lambda a: a[::-1] + 1,
        lambda a: np.unique(a),
        lambda a: a // a.sum(),
        lambda a: float(a.mean()) + a,
        lambda a: a.tolist(),
        lambda a: np.sum(a, 0, None, a[0].copy()),
        lambda a: np.add(a, 1, dtype=np.float32),
        lambda a: np.var(a, 0, None, None, 1),
        lambda a: a.flags.c_contiguous,
        lambda a: np.random.RandomState(0).rand(2) + a[0, :2],
        lambda a: np.broadcast_to(a, (2, 2, 3)) + 1,
        lambda a: np.flip(a),
        lambda a: torch.ones(2, 3) * a,
        lambda a: torch.sin(a),
        lambda a: a[np.array([0, 1]), 0],
        lambda a: a.astype(np.uint16),
        lambda a: np.array("text") == "text",
        lambda a: a.item(0),
        lambda a: np.floor_divide(a.astype(int), a.astype(int)),
    ],
)
def test_what_breaks_is_plain_numpy(function: Any) -> None:
    check(function, A, graphs=None, breaks=None)


def test_breaks_are_of_the_catalogue() -> None:
    compiled = check(lambda a: np.percentile(a + 1, 50), A, breaks=1)
    assert compiled.breaks == ["numpy"]
    assert "percentile" in str(compiled.frames[0].break_)


def test_raising_error_state_is_respected() -> None:
    with np.errstate(divide="raise"):
        compiled = compiling.Compiled(lambda a: 1 / a)
        with pytest.raises(FloatingPointError):
            compiled(np.zeros(2))


def test_tensor_is_copied_by_torch_tensor() -> None:
    def function(x: Any) -> Any:
        y = torch.tensor(x)
        y += 1
        z = torch.as_tensor(x)
        z *= 2
        return x, y, z is x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiling.check(function, torch.ones(3))
