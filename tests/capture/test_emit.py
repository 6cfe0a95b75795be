"""The emitter's methods, run."""

from __future__ import annotations

import types

import pytest

from firebrick.capture.bytecode.assemble import Label
from firebrick.capture.emit.writer import Emitter
from firebrick.capture.guards.sources import Attr, BuiltinItem, Cell, Const, DictKey, Global, Item, Local, TypeOf

LIMIT = 10


def template(a, b=2, *args, key=None, **kwargs):
    return a


def build(write, like=template, finish=True):
    """A function like `like` whose body `write` emits; what is left on the stack is returned."""
    emitter = Emitter(like.__code__)
    emitter.prologue()
    write(emitter)
    if finish:
        emitter.return_value()
    made = types.FunctionType(emitter.assemble(), globals(), None, like.__defaults__, like.__closure__)
    made.__kwdefaults__ = like.__kwdefaults__
    return made


def test_calls():
    def write(e):
        e.load_callable(sorted)
        e.load_fast("a")
        e.load_const(True)
        e.call(1, ("reverse",))

    assert build(write)([1, 3, 2]) == [3, 2, 1]

    def write_plain(e):
        e.load_callable(max)
        e.load_fast("a")
        e.load_fast("b")
        e.call(2)

    assert build(write_plain)(1) == 2


def test_containers():
    def write(e):
        e.load_fast("a")
        e.load_fast("b")
        e.build_tuple(2)
        e.load_const("k")
        e.load_fast("a")
        e.build_map(1)
        e.load_fast("kwargs")
        e.dict_update()
        e.build_list(0)
        e.load_fast("args")
        e.list_extend()
        e.load_fast("a")
        e.build_set(1)
        e.load_const(1)
        e.load_fast("b")
        e.build_slice(2)
        e.build_tuple(5)

    assert build(write)(1, 2, 3, z=4) == ((1, 2), {"k": 1, "z": 4}, [3], {1}, slice(1, 2))


def test_attributes_items_and_unpacking():
    class Box:
        pass

    box = Box()

    def write(e):
        e.load_fast("b")
        e.load_fast("a")
        e.store_attr("x")
        e.load_fast("a")
        e.load_attr("x")
        e.store_fast("mine")
        e.load_const("item")
        e.load_fast("kwargs")
        e.load_const("k")
        e.store_subscr()
        e.load_fast("kwargs")
        e.load_const("gone")
        e.delete_subscr()
        e.load_fast("a")
        e.delete_attr("old")
        e.load_fast("args")
        e.unpack_sequence(2)
        e.swap(2)
        e.build_list(2)
        e.load_fast("kwargs")
        e.load_const("k")
        e.load_subscr()
        e.load_fast("mine")
        e.build_tuple(3)

    box.old = 1
    assert build(write)(box, 5, 1, 2, gone=0) == ([1, 2], "item", 5)
    assert vars(box) == {"x": 5}


def test_operators_and_jumps():
    def write(e):
        end = Label()
        e.load_fast("a")
        e.load_fast("b")
        e.binary_op("-")
        e.load_const(None)
        e.emit("IS_OP", 1)
        e.jump(end)
        e.load_const("never")
        e.return_value()
        e.place(end)

    assert build(write)(1) is True


@pytest.mark.parametrize("symbol", ["<", "<=", "==", "!=", ">", ">="])
def test_comparisons(symbol):
    def write(e):
        e.load_fast("a")
        e.load_fast("b")
        e.compare_op(symbol)

    made = build(write)
    for pair in ((1, 2), (2, 2), (3, 2), ("a", "b")):
        assert made(*pair) == eval(f"x {symbol} y", {"x": pair[0], "y": pair[1]})


def test_temporaries_and_the_stack():
    def write(e):
        e.load_fast("a")
        temp = e.new_temp()
        e.store_fast(temp)
        e.load_fast(temp)
        e.dup()
        e.load_fast("b")
        e.copy(3)
        e.build_tuple(4)
        e.load_const("dropped")
        e.pop()

    assert build(write)(1) == (1, 1, 2, 1)


def test_unbound_local_raises():
    def write(e):
        e.load_fast("a")
        e.store_fast("c")
        e.delete_fast("c")
        e.load_fast("c")

    with pytest.raises(UnboundLocalError, match="'c'"):
        build(write)(1)


def test_cells_and_functions():
    free = ["free"]

    def like(a, b=2):
        def inner():
            return a, free

        return inner

    inner_code = next(c for c in like.__code__.co_consts if isinstance(c, types.CodeType))

    def write(e):
        e.load_deref("a")
        e.load_const(1)
        e.binary_op("+")
        e.store_deref("a")
        for name in inner_code.co_freevars:
            e.load_closure(name)
        e.build_tuple(2)
        e.make_function(inner_code, 8)

    made = build(write, like)(1)
    assert made() == (2, free)
    assert made.__closure__[inner_code.co_freevars.index("free")].cell_contents is free


def test_function_with_defaults():
    code = (lambda x, y, *, z: (x, y, z)).__code__

    def write(e):
        e.load_const((1, 2))
        e.load_const("z")
        e.load_const(3)
        e.build_map(1)
        e.make_function(code, 3)

    assert build(write)(0)() == (1, 2, 3)


def test_globals():
    def write(e):
        e.load_global("LIMIT")
        e.load_const(1)
        e.binary_op("+")

    assert build(write)(0) == LIMIT + 1


def test_splicing():
    emitter = Emitter(template.__code__)
    emitter.prologue()
    mark = emitter.mark()
    temp = emitter.new_temp()
    emitter.load_fast(temp)
    emitter.return_value()
    other = Emitter(template.__code__, emitter)
    assert other.new_temp() != temp
    other.load_const("from the fork")
    other.store_fast(temp)
    emitter.splice(mark, other)
    assert types.FunctionType(emitter.assemble(".x"), {})(1, 2, key=3) == "from the fork"
    assert emitter.assemble(".x").co_qualname == "template.x"


def test_raising():
    def write(e):
        e.load_fast("a")
        e.raise_value()

    with pytest.raises(KeyError) as caught:
        build(write, finish=False)(KeyError("k"))
    assert caught.traceback[-1].lineno == template.__code__.co_firstlineno - 1


def sources_of(like):
    base = Attr(Local("a"), "real")
    yield base, 3
    yield TypeOf(Local("a")), int
    yield Item(Local("args"), 1), "second"
    yield BuiltinItem(Local("kwargs"), "k"), 1.5
    yield DictKey(Local("kwargs"), 0), "k"
    yield TypeOf(BuiltinItem(Local("kwargs"), "k")), float
    yield Global("LIMIT"), LIMIT
    yield Const(sources_of, "sources_of"), sources_of


@pytest.mark.parametrize("index", range(8))
def test_sources(index):
    source, wanted = list(sources_of(template))[index]
    assert build(lambda e: e.load_source(source))(3, 4, "first", "second", k=1.5) == wanted


def test_sources_of_cells():
    free = 7

    def like(a):
        return lambda: (a, free)

    def write(e):
        e.load_source(Local("a"))
        e.load_source(Cell("free"))
        e.build_tuple(2)

    assert build(write, like)(5) == (5, 7)
