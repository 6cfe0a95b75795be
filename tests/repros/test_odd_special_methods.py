"""Special methods that are None or static, or of classes derived from list and int, were passed over or failed capture."""

import pytest
import torch

import firebrick


def raises(*_):
    return 1 // 0


def some(*_):
    return "a"


def two(*_):
    return 2


def objects():
    """(class, expression): each kind of special method with what calls it."""
    for base in (object, list, int):
        for method, use in {
            "lt": lambda o: sorted([o, o]) is not None, "len": len, "bool": bool, "iter": list, "contains": lambda o: 3 in o,
            "repr": repr, "str": str, "format": format, "int": int, "float": float, "complex": complex, "neg": lambda o: -o,
            "eq": lambda o: (o == 1, o != 1), "add": lambda o: o + 1, "radd": lambda o: 1 + o, "index": lambda o: [1, 2, 3][o],
            "getattr": lambda o: o.some, "getitem": lambda o: o[1], "call": lambda o: o(), "round": round, "abs": abs,
        }.items():  # fmt: skip
            for held in (None, staticmethod(two), two, some, raises):
                yield type("Odd", (base,), {f"__{method}__": held}), use


@pytest.mark.parametrize("base", [object, list, int])
@pytest.mark.parametrize("outside", [False, True])
def test_what_an_object_says_is_what_plain_python_says(base, outside):
    for cls, use in objects():
        if cls.__base__ is not base:
            continue

        def main(x, o, cls=cls, use=use):
            try:
                found = use(cls() if o is None else o)
            except Exception as error:
                found = type(error).__name__, str(error)
            return found, x + 1

        given = cls() if outside else None
        wanted = main(torch.ones(2), given)[0]
        found = firebrick.compile(main, backend="eager")(torch.ones(2), given)[0]
        assert found == wanted, (vars(cls), found, wanted)
        firebrick.reset()


def test_an_attribute_that_is_looked_up_runs_no_code_of_the_object():
    asked = []

    class Odd:
        def __getattr__(self, name):
            asked.append(name)
            raise ValueError(name)

    def main(x, o):
        return x + 1, o is None

    firebrick.compile(main, backend="eager")(torch.ones(2), Odd())
    assert asked == []


def test_items_of_a_derived_list_are_read_past_its_methods():
    class Odd(list):
        def __getitem__(self, index):
            return -1

        def __iter__(self):
            return iter([7])

        def __len__(self):
            return 9

    def main(x, o):
        return x + 1, list.__len__(o), o[1], list(o), len(o), o.index(2)

    o = Odd([1, 2])
    assert firebrick.compile(main, backend="eager")(torch.ones(2), o)[1:] == main(torch.ones(2), o)[1:]
