"""Every function of the corpus is broken at every instruction and must do what it did before."""

from __future__ import annotations

import copy
import traceback
import types

import pytest
import split_corpus
from split_corpus import CORPUS, LOG

from firebrick.capture import hook
from firebrick.capture.breaks import resume
from firebrick.capture.bytecode.assemble import Instr, Label, Layout, assemble, disassemble
from firebrick.capture.bytecode.control_flow import EITHER, NULL, flow, states
from firebrick.capture.bytecode.cpython import NULL_BEFORE_CALLABLE
from firebrick.capture.bytecode.instructions import decode
from firebrick.capture.emit.writer import Emitter


def function_like(function, code):
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = {"d": 7} if function.__name__ == "keyword_only" else function.__kwdefaults__
    return made


def outcome(function, args, deep=False):
    """What a call gives, raises, logs, does to its arguments and to a global."""
    args = copy.deepcopy(args)
    LOG.clear()
    split_corpus.COUNTER = 0
    try:
        with hook.installed(hook.RUN_ONLY, object()):  # which hands arguments over to continuations
            result = repr(function(*args))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)
        own = [frame.lineno for frame in last if frame.name.split(".")[0] == function.__name__]
        context = repr(error.__context__), error.__suppress_context__
        result = (type(error), str(error), own[-1] if own else None, context)
    return result, repr(LOG), repr(args), split_corpus.COUNTER


def without_method_pairs(code):
    """The code with every method load as a plain load and a NULL, so that the kinds on the stack are known."""
    items = []
    for item in disassemble(code):
        if isinstance(item, Instr):
            plain = None
            if item.op == "LOAD_METHOD":
                plain = Instr("LOAD_ATTR", item.arg, 0, item.position, item.handler)
            elif item.op in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and item.flag & 1:
                plain = Instr(item.op, item.arg, item.flag & ~1, item.position, item.handler)
            if plain is not None:
                items += [plain, Instr("PUSH_NULL", 0, 0, item.position, item.handler)]
                if NULL_BEFORE_CALLABLE:
                    items.append(Instr("SWAP", 2, 0, item.position, item.handler))
                continue
        items.append(item)
    return assemble(items, Layout.of(code))


def broken_at(code, index, suffix=""):
    """Code that runs as it is up to an instruction and goes on from there with `emit_break`."""
    emitter = Emitter(code)
    emitter.layout = Layout.of(code)
    while decode(code)[index - 1].opname in ("KW_NAMES", "PRECALL"):
        index -= 1
    items = disassemble(code)
    instrs = [item for item in items if isinstance(item, Instr)]
    tail = Label()
    for item in items:
        if item is instrs[index]:
            emitter.items.append(Instr("JUMP", tail, 0, item.position))
        else:
            emitter.items.append(item)
    emitter.place(tail)
    kinds = states(code)[index].stack
    resume.emit_break(emitter, code, index, [kind == NULL for kind in kinds])
    return emitter.assemble(suffix)


def first_breakable(code):
    """Index behind RESUME."""
    return 1 + next(i.index for i in decode(code) if i.opname == "RESUME")


def breakable(code):
    """Instructions that a frame can be broken at, with a stack whose kinds are known."""
    parts = {"KW_NAMES", "PRECALL"}
    for i in decode(code)[first_breakable(code) :]:
        before = decode(code)[i.index - 1].opname
        skipped_by_loop = i.opname == "END_FOR" or before == "END_FOR"
        if i.index in states(code) and before not in parts and not skipped_by_loop:
            if EITHER not in states(code)[i.index].stack:
                yield i.index


@pytest.mark.parametrize("function, calls", CORPUS, ids=[f.__qualname__ for f, _ in CORPUS])
def test_break_at_every_instruction(function, calls):
    plain = function_like(function, function.__code__)
    expected = [outcome(plain, args) for args in calls]
    tried = 0
    for code in (function.__code__, without_method_pairs(function.__code__)):
        for index in breakable(code):
            split = function_like(function, broken_at(code, index))
            for args, wanted in zip(calls, expected, strict=True):
                assert outcome(split, args) == wanted, (index, decode(code)[index], args)
            tried += 1
    assert tried > 5


def made_by(code):
    """Continuations that a code object makes."""
    found = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and resume.origin(constant) is not None:
            found.append(constant)
    return found


@pytest.mark.parametrize("function, calls", CORPUS, ids=[f.__qualname__ for f, _ in CORPUS])
def test_break_inside_continuations(function, calls):
    """A continuation is broken again, everywhere; its continuations are the user's code's own."""
    plain = function_like(function, function.__code__)
    expected = [outcome(plain, args) for args in calls]
    code = without_method_pairs(function.__code__)
    known = set()
    for index in breakable(code):
        known.update(map(id, made_by(broken_at(code, index))))
    for index in list(breakable(code))[::3]:
        split = broken_at(code, index)
        for again in made_by(split):
            for inner in list(breakable(again))[::3]:
                twice = broken_at(again, inner)
                for third in made_by(twice):
                    assert resume.origin(third).code is code
                swapped = split.replace(co_consts=tuple(twice if c is again else c for c in split.co_consts))
                runs = function_like(function, swapped)
                for args, wanted in zip(calls, expected, strict=True):
                    assert outcome(runs, args) == wanted, (index, inner, args)


def test_continuations_are_shared():
    def f(x):
        y = x + 1
        y.real
        z = y * x
        return z - y

    index = next(i.index for i in decode(f.__code__) if i.argval == "real")
    first, second = broken_at(f.__code__, index), broken_at(f.__code__, index)
    assert made_by(first) == made_by(second)
    assert made_by(first)[0] is made_by(second)[0]


def test_continuation_is_named_after_the_users_line():
    def f(x):
        print(x, end="")
        return 1 // x

    index = next(i.index for i in decode(f.__code__) if i.opname.startswith("CALL"))
    code = broken_at(f.__code__, index)
    (made,) = made_by(code)
    line = f.__code__.co_firstlineno + 2
    assert made.co_name == f"f.resume_at_{line}"
    assert made.co_qualname.endswith(f"<locals>.f.resume_at_{line}")
    with pytest.raises(ZeroDivisionError) as caught:
        function_like(f, code)(0)
    assert [frame.lineno for frame in traceback.extract_tb(caught.tb)][-1] == line
    assert made.co_filename == __file__


def test_only_live_locals_are_passed():
    def f(a, b, c):
        d = a + b
        d.real
        return (d, c).count(d)

    index = next(i.index for i in decode(f.__code__) if i.argval == "real")
    (made,) = made_by(broken_at(f.__code__, index))
    assert set(made.co_varnames[: made.co_argcount]) == {"c", "d"}


def test_branch_on_a_broken_value_has_two_continuations():
    def f(x, y):
        if x.item() > 3:
            return x.double(y)
        return y.double(x)

    code = without_method_pairs(f.__code__)
    index = next(i.index for i in decode(code) if i.opname == "CALL")
    assert len(made_by(broken_at(code, index))) == 2


def test_loop_runs_natively_with_regions_and_the_rest_is_a_continuation():
    def f(xs):
        out = []
        for x in xs:
            out.append(x.item())
        return sum(out) * len(out)

    code = without_method_pairs(f.__code__)
    index = next(i.index for i in decode(code) if i.opname == "CALL")
    region, rest = sorted(made_by(broken_at(code, index)), key=lambda made: made.co_name)
    assert "FOR_ITER" not in {i.opname for made in (region, rest) for i in decode(made)}
    line = f.__code__.co_firstlineno
    assert (region.co_name, rest.co_name) == (f"f.part_at_{line + 3}", f"f.resume_at_{line + 4}")
    assert set(rest.co_varnames[: rest.co_argcount]) == {"out"}


def test_deep_loop_does_not_nest_calls():
    def f(n):
        total = 0
        for i in range(n):
            total += i.real
        return total.real

    code = f.__code__
    index = next(i.index for i in decode(code) if i.argval == "real")
    assert function_like(f, broken_at(code, index))(5000) == sum(range(5000))


def test_iterator_is_released_when_the_loop_ends():
    def f(n):
        n.real
        for i in split_corpus.watched(range(n)):
            if i == 1:
                break
        LOG.append("after")
        return n

    index = next(i.index for i in decode(f.__code__) if i.argval == "real")
    assert outcome(function_like(f, broken_at(f.__code__, index)), (3,)) == outcome(f, (3,))
    assert LOG == ["closed", "after"]


def test_generators_cannot_break():
    def f():
        yield 1

    assert not resume.can_break(f.__code__, first_breakable(f.__code__))


def test_wrong_depth_is_refused():
    def f(a, b):
        return a + b

    index = next(i.index for i in decode(f.__code__) if i.opname == "BINARY_OP")
    assert resume.can_break(f.__code__, index, [False, False])
    assert not resume.can_break(f.__code__, index, [False])
    with pytest.raises(Exception, match="stack"):
        resume.emit_break(Emitter(f.__code__), f.__code__, index, [False])


def test_flow_knows_every_reachable_instruction():
    for function, _ in CORPUS:
        reached = flow(function.__code__).reachable(0)
        assert reached == set(states(function.__code__))
