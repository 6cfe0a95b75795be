"""Every statement that raises, catches or enters, one program each.

PYTEST_DONT_REWRITE: the programs' own asserts stay as they are.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from naming import Table, X, check_row

TABLE = Table()
row = TABLE.row


class Manager(contextlib.AbstractContextManager):  # type: ignore[type-arg]
    """Writes down what it is asked, and swallows one class of exceptions."""

    def __init__(self, log: list[Any], swallow: Any = ()) -> None:
        self.log, self.swallow = log, swallow

    def __enter__(self) -> Manager:
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.log.append("exit" if kind is None else f"{kind.__name__} {error}")
        return kind is not None and issubclass(kind, self.swallow)


# -- exceptions ------------------------------------------------------------------------


@row()
def try_except_else_finally(x):
    log = []
    for n in range(3):
        try:
            if n == 1:
                raise ValueError(n)
            x = x + n
        except (KeyError, ValueError) as error:
            log.append(error.args)
        else:
            log.append("else")
        finally:
            log.append(n)
    return x, log


@row()
def raise_from(x):
    try:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise RuntimeError("b") from error
    except RuntimeError as error:
        return x + 1, type(error.__cause__).__name__, error.__suppress_context__, type(error.__context__).__name__


@row()
def raise_from_none(x):
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise RuntimeError("b") from None
    except RuntimeError as error:
        return x + 1, error.__cause__, error.__suppress_context__, type(error.__context__).__name__


@row()
def raise_again(x):
    log = []
    try:
        try:
            x = x * 2
            raise IndexError("deep")
        except IndexError:
            log.append("inner")
            raise
    except LookupError as error:
        log.append(str(error))
    return x, log


@row()
def exception_group_is_split(x):
    log = []
    try:
        raise ExceptionGroup("all", [ValueError(1), TypeError(2), KeyError(3)])
    except* ValueError as group:
        log.append([str(e) for e in group.exceptions])
    except* (TypeError, KeyError) as group:
        log.append(len(group.exceptions))
    return x + 1, log


@row()
def exception_group_of_a_plain_exception(x):
    log = []
    try:
        x = x + 1
        raise ValueError("one")
    except* ValueError as group:
        log.append((type(group).__name__, [str(e) for e in group.exceptions]))
    return x * 2, log


@row(graphs=None, breaks=None)
def exception_group_with_a_rest(x):
    log = []
    try:
        try:
            raise ExceptionGroup("all", [ValueError(1), TypeError(2)])
        except* ValueError:
            log.append("value")
    except ExceptionGroup as group:
        log.append([type(e).__name__ for e in group.exceptions])
    return x + 1, log


@row()
def exception_group_without_an_error(x):
    try:
        x = x + 1
    except* ValueError:
        x = x * 0
    else:
        x = x * 3
    finally:
        x = x - 1
    return x


@row()
def notes_and_attributes_of_exceptions(x):
    class_ = ValueError
    try:
        error = class_("a", 2)
        error.extra = 3
        raise error
    except ValueError as caught:
        return x + caught.extra, caught.args, caught is error


@row()
def exception_returned(x):
    try:
        raise ValueError("kept", 1)
    except ValueError as error:
        kept = error
    return x + 1, kept.args, str(kept), repr(kept)


class Special(ValueError):
    def __init__(self, code: int, *, hint: str = "none") -> None:
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint


@row()
def exceptions_of_ones_own(x):
    try:
        raise Special(3, hint="try again")
    except Special as error:
        return x + error.code, error.hint, str(error)


@row(graphs=None, breaks=None)
def exception_that_leaves(x):
    y = x + 1
    raise Special(int(y.shape[0]), hint="left")


@row(graphs=None, breaks=None)
def exception_of_torch_is_caught(x):
    try:
        return x @ x
    except RuntimeError:
        return x + 1


@row()
def stop_iteration_value(x):
    def rows():
        yield 1
        return 5

    it = rows()
    next(it)
    try:
        next(it)
    except StopIteration as stop:
        return x + stop.value
    return x


@row()
def finally_overrides_return(x):
    def inner():
        try:
            return x + 1
        finally:
            return x * 2  # noqa: B012, SIM107

    return inner()


@row()
def break_and_continue_in_finally(x):
    log = []
    for n in range(4):
        try:
            if n == 1:
                continue
            if n == 3:
                break
            x = x + n
        finally:
            log.append(n)
    return x, log


@row(graphs=None, breaks=None)
def unbound_local(x):
    y = x + 1
    if y.shape[0] == 5:
        later = 1
    return y + later


@row(graphs=None, breaks=None)
def undefined_name(x):
    return x + undefined_anywhere  # noqa: F821


@row()
def name_error_is_caught(x):
    try:
        return x + undefined_anywhere  # noqa: F821
    except NameError as error:
        return x + 1, str(error), error.name


# -- with ------------------------------------------------------------------------------


@row(X, [])
def with_one(x, log):
    with Manager(log) as manager:
        x = x + len(manager.log)
    return x


@row(X, [])
def with_several_and_nested(x, log):
    with Manager(log), Manager(log) as second:
        with Manager(second.log, KeyError):
            raise KeyError("gone")
        x = x + 1
    return x


@row(X, [], graphs=None, breaks=None)
def with_that_does_not_swallow(x, log):
    with Manager(log, KeyError):
        x.add_(1)
        raise ValueError("stays")


@row(X, [], graphs=2, breaks=1)
def with_across_a_break(x, log):
    with Manager(log, ValueError):
        x = x + 1
        torch._dynamo.graph_break()
        x = x * 2
        raise ValueError("inside")
    return x, log


@row(X, [], graphs=2, breaks=1)
def several_across_a_break(x, log):
    with Manager(log), torch.no_grad(), Manager(log) as second:
        x = x + 1
        torch._dynamo.graph_break()
        x = x * len(second.log)
    return x, torch.is_grad_enabled()


@contextlib.contextmanager
def scaled(log, factor):
    log.append("in")
    try:
        yield factor
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append("out")


@row(X, [])
def with_contextmanager(x, log):
    with scaled(log, 3) as factor:
        x = x * factor
        raise ValueError("swallowed")
    return x


# -- what torch refuses ----------------------------------------------------------------


@row()
def shapes_that_do_not_fit(x):
    shown = []
    for other in (torch.ones(2, 2), torch.ones(4), torch.ones(5, 3, 1, 2)):
        for operation in (torch.matmul, torch.add, lambda a, b: torch.cat([a, b])):
            try:
                shown.append(operation(x, other))
            except RuntimeError as error:
                shown.append(str(error))
    return x + 1, shown


@row(X, [])
def a_shape_is_tried(x, log):
    for shape in ((2, 5), (7, -1), (x.numel(), 1)):
        try:
            log.append(shape)
            return x.view(shape)
        except RuntimeError:
            log.append("no")
        finally:
            log.append("tried")


def viewed(x):
    with torch.no_grad():
        return x.view(7, 7)


@row()
def refused_in_a_function(x):
    with contextlib.suppress(IndexError):
        x.sum(dim=9)
    try:
        return viewed(x)
    except RuntimeError as error:
        shown = type(error).__name__
    try:
        x += torch.ones(2, 99)
    except RuntimeError:
        x = x * 2
    try:
        torch.add(x, "text")
    except TypeError:
        x = x + 1
    return x, shown, torch.is_grad_enabled()


@row(graphs=None, breaks=1)
def a_module_of_another_width(x):
    try:
        return torch.nn.functional.linear(x, torch.ones(99, 98))
    except RuntimeError as error:
        raise ValueError("the width") from error


@row(X, [])
def contextmanager_as_decorator(x, log):
    @scaled(log, 2)
    def inner(y):
        return y + len(log)

    return inner(x)


@row(X, [])
def with_contextlib(x, log):
    with contextlib.suppress(KeyError), contextlib.nullcontext(2) as two:
        x = x * two
        raise KeyError
    with contextlib.ExitStack() as stack:
        stack.enter_context(Manager(log))
        stack.callback(log.append, "called")
        stack.push(Manager(log))
        x = x + 1
    return x


class Door:
    def __init__(self, log):
        self.log = log

    def close(self):
        self.log.append("closed")


@row(X, [])
def with_closing(x, log):
    with contextlib.closing(Door(log)):
        x = x + 1
    return x


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
def test_exception(program):
    check_row(program)
