"""The frame hook: compiled code stands in for frames, and nothing else changes."""

import asyncio
import gc
import subprocess
import sys
import traceback

import pytest
from replacing import Replace, equals, f_const, g_const, helper, names_offered

from firebrick import _native
from firebrick.capture import hook
from firebrick.capture.guards.guard_kinds import id_guard
from firebrick.capture.guards.guard_plan import build_plan
from firebrick.capture.guards.sources import Local


@pytest.fixture(autouse=True)
def clean():
    yield
    assert _native.get_callback() == (None, None)
    hook.reset()


# ---- calling conventions ---------------------------------------------------


def test_arguments_of_every_kind_reach_the_compiled_code():
    def f(a, /, b, c=3, *args, d, e=5, **kwargs):
        return "plain"

    def g(a, /, b, c=3, *args, d, e=5, **kwargs):
        return a, b, c, d, e, args, kwargs

    callback = Replace(f, g)
    with hook.installed(callback):
        assert f(1, 2, d=4) == (1, 2, 3, 4, 5, (), {})
        assert f(1, 2, 30, 31, 32, d=40, z=9) == (1, 2, 30, 40, 5, (31, 32), {"z": 9})
        assert f(1, b=2, d=4, e=50) == (1, 2, 3, 4, 50, (), {})
    assert f(1, 2, d=4) == "plain"
    frame = callback.frames[0]
    assert frame.locals == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "args": (), "kwargs": {}}
    assert frame.function is f
    assert frame.globals is globals()
    assert frame.builtins is __builtins__ or frame.builtins is __builtins__.__dict__
    assert frame.closure is None


def test_keyword_dict_is_the_object_of_the_call():
    def f(**kwargs):
        return None

    def g(**kwargs):
        kwargs["seen"] = True
        return kwargs

    with hook.installed(Replace(f, g)):
        assert f(a=1) == {"a": 1, "seen": True}


def test_cells_and_free_variables():
    def make(base):
        def f(x):
            def inner():
                return x + base

            x += 1
            return inner()

        return f

    def make_compiled(base):
        def f(x):
            def inner():
                return x * base

            x += 1
            return inner()

        return f

    f10, f20 = make(10), make(20)
    callback = Replace(f10, make_compiled(0))
    with hook.installed(callback):
        assert f10(1) == 20
        assert f20(1) == 40
        assert f10(2) == 30
    assert callback.frames[0].closure[0].cell_contents == 10
    assert len(callback.frames) == 1


def test_closure_is_written_back():
    def make():
        count = 0

        def f():
            nonlocal count
            count += 1
            return count

        def g():
            nonlocal count
            count += 100
            return count

        return f, g, lambda: count

    f, g, read = make()
    with hook.installed(Replace(f, g)):
        assert f() == 100
    assert f() == 101
    assert read() == 101


def test_methods_and_recursion():
    class C:
        def fact(self, n):
            return 1 if n <= 1 else n * self.fact(n - 1)

    def fact(self, n):
        return ("c", 1) if n <= 1 else ("c", n * self.fact(n - 1)[1])

    with hook.installed(Replace(C.fact, fact)):
        assert C().fact(10) == ("c", 3628800)
    entry = hook.entries(C.fact.__code__)[0]
    assert entry.hits == 10


def test_code_with_other_slots_is_refused():
    def f(a):
        return a

    def g(a, b):
        return a

    with pytest.raises(ValueError, match="argument slots"), hook.installed(Replace(f, g)):
        f(1)
    with pytest.raises(ValueError, match="own code"), hook.installed(Replace(f, f)):
        f(1)
    with pytest.raises(TypeError, match="callback returns"), hook.installed(lambda frame: 3):
        f(1)
    assert f(1) == 1


# ---- which frames are offered ------------------------------------------------


def test_generators_coroutines_and_class_bodies_pass_but_their_callees_are_offered():
    def numbers():
        for i in range(3):
            yield helper(i)

    async def wait(x):
        return helper(x)

    async def stream():
        yield helper(7)

    async def collect():
        return [x async for x in stream()]

    def body():
        class Made:
            value = helper(4)

        return Made.value

    def action():
        expression = sum(x for x in (1, 2))
        return list(numbers()), asyncio.new_event_loop().run_until_complete(wait(1)), body(), expression

    result, seen = names_offered(action)
    assert result == ([1, 2, 3], 2, 5, 3)
    assert seen.count("helper") == 5
    assert not {"numbers", "wait", "Made", "<genexpr>"} & set(seen)
    loop = asyncio.new_event_loop()
    result, seen = names_offered(lambda: loop.run_until_complete(collect()))
    loop.close()
    assert result == [8]
    assert seen.count("helper") == 1
    assert not {"stream", "collect"} & set(seen)


def test_module_code_passes():
    code = compile("value = helper(1)", "t.py", "exec")
    namespace = {"helper": helper}
    _, seen = names_offered(lambda: exec(code, namespace))
    assert namespace["value"] == 2
    assert seen[0] == "<lambda>"
    assert seen[-1] == "helper"  # between them an audit hook of torch's may run
    assert "<module>" not in seen


def test_generator_function_thrown_into():
    def numbers():
        try:
            yield 1
        except KeyError:
            yield helper(41)

    def action():
        g = numbers()
        next(g)
        return g.throw(KeyError())

    assert names_offered(action)[0] == 42


def test_callback_frames_are_not_offered_and_callees_of_compiled_code_are():
    def f(x):
        return x

    def g(x):
        return helper(x)

    seen = []

    def callback(frame):
        seen.append(frame.code.co_name)
        helper(1)
        if frame.code is f.__code__:
            return build_plan([], frame.code), g.__code__
        return None

    with hook.installed(callback):
        assert f(1) == 2
        assert f(1) == 2
    assert seen == ["f", "helper", "helper"]


def test_skip_marks():
    def f():
        return 1

    seen = []

    def skip(frame):
        seen.append(frame.code.co_name)
        return answer

    class Scope:
        pass

    one, two = Scope(), Scope()
    answer = hook.SKIP_SCOPE
    for scope in (one, one, two):
        with hook.installed(skip, scope):
            f()
    assert seen == ["f", "f"]
    answer = hook.SKIP
    with hook.installed(skip, Scope()):
        f()
    with hook.installed(skip, Scope()):
        f()
    assert seen == ["f"] * 3
    hook.reset()
    with hook.installed(skip, one):
        f()
    assert seen == ["f"] * 4
    assert repr(hook.SKIP) == "SKIP"


def test_skip_code():
    def f():
        return 1

    _native.skip_code(f.__code__)
    assert names_offered(f) == (1, [])
    with pytest.raises(TypeError):
        _native.skip_code(f)


# ---- entries -------------------------------------------------------------------


def test_entries_are_found_by_their_guards_last_hit_first():
    callback = Replace(f_const, g_const, equals("k"))
    with hook.installed(callback):
        for k in (1, 2, 3, 1, 1, 2, 1.0, True):
            assert f_const(k) == ("compiled", k)
            assert hook.entries(f_const.__code__)[0].plan.guards[0].payload is k or k == 1
    assert len(callback.frames) == 5
    entries = hook.entries(f_const.__code__)
    assert sorted(entry.hits for entry in entries) == [1, 1, 1, 2, 3]
    assert {entry.original for entry in entries} == {f_const.__code__}
    assert all(entry.code is not f_const.__code__ for entry in entries)


def test_run_only_uses_entries_and_makes_none():
    callback = Replace(f_const, g_const, equals("k"))
    with hook.installed(callback):
        f_const(1)
        with hook.installed(hook.RUN_ONLY, None):
            assert f_const(1) == ("compiled", 1)
            assert f_const(2) == 2
        with hook.disabled():
            assert f_const(1) == 1
        assert f_const(1) == ("compiled", 1)
    assert f_const(1) == 1
    assert len(callback.frames) == 1


def test_scopes_do_not_share_entries():
    class Scope:
        pass

    one, two = Scope(), Scope()

    def other(k):
        return ("other", k)

    first, second = Replace(f_const, g_const), Replace(f_const, other)
    for _ in range(2):
        with hook.installed(first, one):
            assert f_const(1) == ("compiled", 1)
        with hook.installed(second, two):
            assert f_const(1) == ("other", 1)
    with hook.installed(hook.RUN_ONLY, two):
        assert f_const(1) == ("other", 1)
    with hook.installed(hook.RUN_ONLY, Scope()):
        assert f_const(1) == 1
    assert (len(first.frames), len(second.frames)) == (1, 1)
    assert {entry.scope for entry in hook.entries(f_const.__code__)} == {one, two}
    del one
    gc.collect()
    assert [entry.scope for entry in hook.entries(f_const.__code__)] == [two]


def test_callback_without_a_scope_does_not_use_entries_of_another():
    class Scope:
        pass

    scope = Scope()
    with hook.installed(Replace(f_const, g_const), scope):
        f_const(1)
    with hook.installed(lambda frame: None):
        assert f_const(1) == 1


def test_remove_and_reset():
    with hook.installed(Replace(f_const, g_const, equals("k"))):
        f_const(1)
        f_const(2)
        entry = hook.entries(f_const.__code__)[0]
        entry.remove()
        entry.remove()
        assert entry.original is None
        assert len(hook.entries(f_const.__code__)) == 1
        assert f_const(1) == ("compiled", 1)
    hook.reset()
    assert hook.entries() == []


def test_entry_removed_while_it_runs():
    def f():
        return 0

    def g():
        import firebrick.capture.hook as hook

        hook.reset()
        import gc

        gc.collect()
        return 1

    with hook.installed(Replace(f, g)):
        assert f() == 1
    assert hook.entries(f.__code__) == []


def test_add_entry():
    made = build_plan([], f_const.__code__)
    entry = _native.add_entry(f_const.__code__, made, g_const.__code__)
    with hook.installed(hook.RUN_ONLY, None):
        assert f_const(1) == ("compiled", 1)
    assert entry.hits == 1
    with pytest.raises(ValueError, match="another entry"):
        _native.add_entry(f_const.__code__, made, g_const.__code__)


def test_plan_that_is_dead_before_it_is_used():
    class Thing:
        pass

    def callback(frame):
        return build_plan([id_guard(Local("k"), Thing())], frame.code), g_const.__code__

    with hook.installed(callback):
        assert f_const(1) == 1
    assert hook.entries(f_const.__code__) == []


# ---- exceptions ----------------------------------------------------------------


def raising(x):
    return x


def raising_compiled(x):
    raise ValueError(x)


def test_exception_passes_through_with_the_traceback_of_the_compiled_code():
    with hook.installed(Replace(raising, raising_compiled)):
        for _ in range(2):
            try:
                raising(5)
            except ValueError as error:
                assert error.args == (5,)
                names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
                assert names == [
                    "test_exception_passes_through_with_the_traceback_of_the_compiled_code",
                    "raising_compiled",
                ]
                assert error.__traceback__.tb_next.tb_frame.f_locals == {"x": 5}
            else:
                raise AssertionError


def test_frame_that_outlives_its_call_keeps_its_globals():
    def run():
        with hook.installed(Replace(raising, raising_compiled)):
            try:
                raising([1])
            except ValueError as error:
                return error.__traceback__.tb_next.tb_frame

    frames = [run() for _ in range(3)]
    hook.reset()
    gc.collect()
    for frame in frames:
        assert frame.f_globals is globals()
        assert frame.f_locals == {"x": [1]}


def test_context_of_an_exception_being_handled():
    with hook.installed(Replace(raising, raising_compiled)):
        with pytest.raises(ValueError) as caught:
            try:
                raise KeyError(1)
            except KeyError:
                raising(2)
    assert isinstance(caught.value.__context__, KeyError)


def test_exception_of_the_callback_reaches_the_caller():
    def f():
        return 1

    def callback(frame):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"), hook.installed(callback):
        f()
    assert f() == 1
    assert names_offered(f) == (1, ["f"])


def test_deep_recursion():
    def down(n):
        return 0 if n == 0 else 1 + down(n - 1)

    def down_compiled(n):
        return 0 if n == 0 else 1 + down(n - 1)

    depth = sys.getrecursionlimit() - 200
    with hook.installed(lambda frame: hook.SKIP):
        assert down(depth) == depth
        with pytest.raises(RecursionError):
            down(10 * depth)
    hook.reset()
    # The compiled code's free variable `down` is the user's function: same closure, by position.
    with hook.installed(Replace(down, down_compiled)):
        assert down(depth) == depth
        with pytest.raises(RecursionError):
            down(10 * depth)
        assert down(depth) == depth


def test_stack_is_not_exhausted():
    script = """
import sys
from firebrick.capture import hook
def down(n):
    return 0 if n == 0 else 1 + down(n - 1)
def numbers(n):
    yield from numbers(n - 1) if n else ()
sys.setrecursionlimit(10**6)
with hook.installed(lambda frame: hook.SKIP):
    assert down(4000) == 4000
    for action in (lambda: down(10**6), lambda: list(numbers(10**6))):
        try:
            action()
        except RecursionError:
            pass
        else:
            raise AssertionError
    assert down(4000) == 4000
print("survived")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "survived\n", done.stderr[-500:]


def test_trace_and_profile_functions():
    def f(x):
        return x

    def g(x):
        y = x + 1
        return y

    events = []

    def tracer(frame, event, arg):
        if frame.f_code.co_name in ("f", "g"):
            events.append((frame.f_code.co_name, event))
        return tracer

    with hook.installed(Replace(f, g)):
        f(1)
        for setter in (sys.settrace, sys.setprofile):
            events.clear()
            setter(tracer)
            try:
                assert f(1) == 2
            finally:
                setter(None)
            names = {name for name, _ in events}
            kinds = [event for _, event in events]
            assert names == {"g"}
            assert (kinds[0], kinds[-1]) == ("call", "return")
            assert kinds.count("call") == kinds.count("return") == 1
    events.clear()
    with hook.installed(Replace(raising, raising_compiled)):
        sys.settrace(tracer)
        try:
            with pytest.raises(ValueError):
                raising(1)
        finally:
            sys.settrace(None)


def test_warnings_name_the_caller():
    def f():
        return None

    def g():
        import sys

        return sys._getframe(1).f_code.co_name

    with hook.installed(Replace(f, g)):
        assert f() == "test_warnings_name_the_caller"
