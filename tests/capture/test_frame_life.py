"""The frame hook over time: memory, threads, and other tools beside it."""

import gc
import sys
import threading
import types
import weakref

import pytest
import torch
import torch._dynamo
from replacing import Replace, equals, f_const, g_const, helper, names_offered

from firebrick import _native
from firebrick.capture import hook
from firebrick.capture.guards.guard_kinds import Guard, id_guard
from firebrick.capture.guards.guard_plan import build_plan
from firebrick.capture.guards.sources import Cell, Local


@pytest.fixture(autouse=True)
def clean():
    yield
    assert _native.get_callback() == (None, None)
    hook.reset()


# ---- memory ----------------------------------------------------------------------


def make_function(name="f"):
    namespace = {}
    exec(f"def {name}(x):\n    return x", namespace)
    return namespace.pop(name)


def test_entries_die_with_their_code():
    f, g = make_function(), make_function("g")
    plan_alive = []

    code = weakref.ref(f.__code__)

    def callback(frame):
        if frame.code is not code():
            return None
        plan = build_plan([], frame.code)
        plan_alive.append(weakref.ref(plan))
        return plan, g.__code__

    with hook.installed(callback):
        f(1)
        f(1)
    entries = len(hook.entries())
    del f, callback
    gc.collect()
    assert code() is None
    assert plan_alive[0]() is None
    assert len(hook.entries()) == entries - 1


def test_entry_keeps_neither_globals_nor_closure():
    class Big:
        pass

    def make(big):
        def f(x):
            return big

        def g(x):
            return big

        return f, g

    f, g = make(Big())[0], make(None)[1]
    big = weakref.ref(f.__closure__[0].cell_contents)
    with hook.installed(Replace(f, g)):
        assert f(1) is big()
        assert f(1) is big()
    code = f.__code__
    del f
    gc.collect()
    assert big() is None
    assert len(hook.entries(code)) == 1


def test_globals_that_hold_the_function_are_collected():
    namespace = {}
    exec("def f(x):\n    return x\ndef g(x):\n    return 2 * x", namespace)
    f = namespace["f"]
    with hook.installed(Replace(f, namespace["g"])):
        assert f(2) == 4
        assert f(3) == 6
    code = weakref.ref(f.__code__)
    del f, namespace
    gc.collect()
    assert code() is None


def test_entry_dies_with_an_object_that_is_guarded_by_identity():
    class Thing:
        pass

    thing = Thing()
    with hook.installed(Replace(f_const, g_const, lambda frame: [id_guard(Local("k"), frame.locals["k"])])):
        f_const(thing)
        assert len(hook.entries(f_const.__code__)) == 1
        del thing
        gc.collect()
    # The call's own argument is gone, but the first frame of the callback's list may hold it.
    assert hook.entries(f_const.__code__) == []


def test_arguments_are_released():
    class Thing:
        pass

    def f(x):
        return None

    def g(x):
        return None

    callback = Replace(f, g)
    with hook.installed(callback):
        things = [Thing() for _ in range(4)]
        references = [weakref.ref(thing) for thing in things]
        for thing in things:
            f(thing)
        callback.frames.clear()
        del things, thing
        gc.collect()
        assert [reference() for reference in references] == [None] * 4


def test_references_do_not_leak():
    def f(x, *args, **kwargs):
        return x

    def g(x, *args, **kwargs):
        return x

    def bad(x, *args, **kwargs):
        raise KeyError

    value = object()
    for compiled in (g, bad):
        hook.reset()
        with hook.installed(Replace(f, compiled)):
            for count in (20, 200):
                before = (
                    sys.getrefcount(value),
                    sys.getrefcount(f),
                    sys.getrefcount(f.__globals__),
                    sys.getrefcount(None),
                )
                for _ in range(count):
                    try:
                        f(value, value, k=value)
                    except KeyError:
                        pass
                after = (
                    sys.getrefcount(value),
                    sys.getrefcount(f),
                    sys.getrefcount(f.__globals__),
                    sys.getrefcount(None),
                )
                drift = [b - a for a, b in zip(before, after)]
            assert all(abs(d) < 20 for d in drift), drift


def test_frame_view_is_traversed_by_the_collector():
    class Thing:
        pass

    thing = Thing()
    thing.frame = hook.bind(f_const, thing)
    assert gc.is_tracked(thing.frame)
    assert thing in gc.get_referents(thing.frame)
    wrapped = hook.Wrapped(f_const, lambda frame: None, thing)
    thing.wrapped = wrapped
    reference = weakref.ref(thing)
    del wrapped
    thing.frame = None
    del thing
    gc.collect()
    assert reference() is None


# ---- threads and other tools --------------------------------------------------------


def test_settings_are_per_thread():
    seen = []
    inside, leave = threading.Event(), threading.Event()

    def other():
        with hook.installed(lambda frame: seen.append(frame.code.co_name)):
            inside.set()
            leave.wait(5)
            helper(1)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(5)
    assert helper(1) == 2
    assert _native.get_callback() == (None, None)
    leave.set()
    thread.join()
    assert seen.count("helper") == 1


def test_thread_that_ends_with_a_callback_set():
    def body():
        _native.set_callback(lambda frame: None)

    threads = [threading.Thread(target=body) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names_offered(lambda: helper(1))[0] == 2


def test_threads_share_entries():
    errors = []
    callback = Replace(f_const, g_const, equals("k"))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def body(k):
        try:
            with hook.installed(callback):
                for i in range(300):
                    assert f_const((k + i) % 5) == ("compiled", (k + i) % 5)
                    if i % 100 == 50 and k == 0:
                        hook.entries(f_const.__code__)[-1].remove()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert not errors


def test_wrapped():
    def f(a, b=2):
        return helper(a) + b

    seen = []

    def callback(frame):
        seen.append(frame.code.co_name)

    wrapped = hook.Wrapped(f, callback, None)
    assert wrapped(1) == 4
    assert wrapped(1, b=3) == 5
    assert seen == ["f", "helper"] * 2
    with pytest.raises(TypeError):
        wrapped()
    with hook.installed(None):
        assert wrapped(1) == 4


def test_installed_restores_what_was_set():
    def one(frame):
        return None

    scope = types.SimpleNamespace()
    with hook.installed(one, scope):
        with hook.installed(lambda frame: None):
            pass
        with pytest.raises(KeyError), hook.disabled():
            raise KeyError
        context = hook.installed(hook.RUN_ONLY, None)
        with pytest.raises(RuntimeError, match="not entered"):
            context.__exit__(None, None, None)
        with context, pytest.raises(RuntimeError, match="already"):
            context.__enter__()
        assert _native.get_callback() == (one, scope)
    with pytest.raises(TypeError, match="callable"):
        _native.set_callback(3)


def test_torch_dynamo_beside_it():
    def f(x):
        return x + 1

    compiled = torch.compile(f, backend="eager")
    seen = []
    with hook.installed(lambda frame: seen.append(frame.code.co_name)):
        assert compiled(torch.ones(1)).item() == 2
        assert helper(1) == 2
    assert compiled(torch.ones(1)).item() == 2
    assert "helper" in seen
    assert helper(1) == 2
    torch._dynamo.reset()


def test_bind():
    def f(a, *args, b=2, **kwargs):
        return None

    frame = hook.bind(f, 1, 5, 6, c=3)
    assert frame.locals == {"a": 1, "args": (5, 6), "b": 2, "kwargs": {"c": 3}}
    with pytest.raises(TypeError):
        hook.bind(f)
    with pytest.raises(ValueError, match="slots"):
        hook.Frame(f, (1,))


def test_free_variables_in_plans():
    def make(k):
        def f(x):
            return x + k

        return f

    def make_compiled(k):
        def f(x):
            return x * k

        return f

    callback = Replace(
        make(1), make_compiled(1), lambda frame: [Guard("EQUALS", Cell("k"), frame.closure[0].cell_contents)]
    )
    with hook.installed(callback):
        assert [make(k)(3) for k in (5, 5, 6)] == [15, 15, 18]
    assert len(callback.frames) == 2
