"""Objects: questions about identity, classes with methods of their own for what Python does, and lifetimes."""

from __future__ import annotations

from tests.fuzz.features.frame import Feature, Writer

KINDS = (
    "Plain", "Plain", "nn.ReLU", "list", "(lambda: lambda: 1)", "(lambda: type('Made', (), {}))", "Hashed", "Same", "torch.Generator",
    "(lambda: int('123456'))", "(lambda: float('1.5'))", "(lambda: ''.join('ab'))", "(lambda: torch.ones(2))", "(lambda: [].append)",
)  # fmt: skip
"""What gives new objects that may be equal."""

CLASSES = """
class Plain:
    pass


class Hashed:
    def __hash__(self):
        return id(self)
    def __eq__(self, other):
        return self is other


class Same:
    def __hash__(self):
        return 7
    def __eq__(self, other):
        return isinstance(other, Same)
"""

QUESTIONS = (
    "{o} is {p}", "{o} is not {p}", "id({o}) == {number}", "id({o}) == id({p})", "id({o}) in {{id({p})}}", "id({o}) in {ids}",
    "{o} in [{p}]", "{o} in ({p}, {q})", "{o} in {objects}", "[{p}, {q}, {o}].index({o}) == 2", "[{o}, {p}].count({o}) == 2",
)  # fmt: skip
HASHED = (
    "hash({o}) == hash({p})", "hash({o}) == {hash}", "hash((1, {o})) == hash((1, {p}))", "len({{{o}, {p}}}) == 1", "{o} in {{{p}: 1}}", "{o} in {{{p}, {q}}}",
    "{{{p}: 1, {o}: 2}}[{p}] == 2", "{o} in {keys}", "{keys}.get({o}, 0) == 1", "{o} in set({objects})", "(1, {o}) in {{(1, {p})}}",
    "dict.fromkeys([{o}, {p}, {q}]).__len__() == 2", "{{{o}}} == {{{p}}}", "{{{o}}} <= {{{p}, {q}}}", "bool({{{o}}} & {{{p}, {q}}})",
)  # fmt: skip


def identity(w: Writer) -> None:
    """Whether objects that change from call to call are one: `is`, `id`, `hash`, keys and members."""
    kind = w.random.choice(KINDS)
    a = w.tensor()
    w.top(CLASSES)
    objects, o, p, q = w.fresh("OBJECTS"), w.fresh("o"), w.fresh("o"), w.fresh("o")
    names = {name: w.fresh(name[0]) for name in ("number", "ids", "objects", "hash", "keys")}
    w.top(f"{objects} = [{kind}() for _ in range(3)]")
    for name in (o, p, q):
        w.before(f"{name} = {objects}[{[w.random.randrange(3) for _ in range(4)]}[call]]")
    hashed = kind != "list"
    picks = [w.random.randrange(3) for _ in range(4)]
    w.before(f"{names['number']} = id({objects}[{picks}[call]])", f"{names['ids']} = {{id({p}), id({q})}}")
    w.before(f"{names['objects']} = [{q}, {p}]", f"{names['hash']} = {f'hash({p})' if hashed else 0}")
    w.before(f"{names['keys']} = {f'{{{p}: 1, {q}: 2}}' if hashed else '{}'}")
    w.arguments += [o, p, q, *names.values()]
    rows = QUESTIONS + HASHED * hashed
    if kind == "(lambda: torch.ones(2))":
        rows = tuple(row for row in rows if not (" in " in row and "{{" not in row) and "[" not in row)  # would compare
    for _ in range(w.random.choice([1, 1, 2])):
        question = w.random.choice(rows).format(o=o, p=p, q=q, **names)
        a = w.bind(f"{a.name} * 2 if {question} else {a.name} - 3", a)


def _odd_class(w: Writer) -> tuple[str, list[str]]:
    """The name of a new class whose `value` lies behind something, and statements that change an instance `@` by `$`."""
    name = w.fresh("Odd")
    kind = w.random.choice(
        ["property", "setter", "descriptor", "setattr", "slots", "getattribute", "delattr", "cached", "plain"]
    )
    base = w.random.choice(["", "", "", "(dict)", "(list)", "(Exception)", "(nn.Module)"]) if kind != "slots" else ""
    first = "        super().__init__()\n" if base else ""
    store = {
        "property": "self.__dict__['value'] = t",
        "descriptor": "self.__dict__['value'] = t",
        "slots": "object.__setattr__(self, 'value', t)",
    }
    lines = [f"class {name}{base}:", f"    def __init__(self, t):\n{first}        {store.get(kind, 'self.value = t')}"]
    changes = ["@.__dict__['value'] = @.value * $", "@.__dict__.update(value=$, other=1)", "@.other = $", "@.__dict__['other'] = @.__dict__.pop('value')",
               "vars(@)['value'] = $", "object.__setattr__(@, 'more', @.value)"]  # fmt: skip
    if kind in ("property", "setter"):
        lines += ["    @property", "    def value(self): return self.__dict__['value']"]
    if kind == "setter":
        lines += ["    @value.setter", "    def value(self, t): self.__dict__['value'] = t * 7"]
        changes += ["@.value = $", "@.value = @.value + $"] * 2
    if kind == "descriptor":
        w.top(f"class Behind{name}:", "    def __get__(self, o, cls=None): return o.__dict__['value']",
              "    def __set__(self, o, t): raise AttributeError('value')")  # fmt: skip
        lines.insert(1, f"    value = Behind{name}()")
    if kind == "setattr":
        lines += [
            "    def __setattr__(self, name, t): object.__setattr__(self, name, t * 3 if isinstance(t, torch.Tensor) else t)"
        ]
        changes += ["@.value = $", "@.value = @.value + $"]
    if kind == "getattribute":
        lines += [
            "    def __getattribute__(self, name): return object.__getattribute__(self, 'value' if name == 'worth' else name)"
        ]
        changes += ["@.value = @.worth + $"]
    if kind == "delattr":
        lines += ["    def __delattr__(self, name): object.__setattr__(self, 'gone', name)"]
        changes += ["del @.value"] * 3
    if kind == "cached":
        lines += ["    @functools.cached_property", "    def twice(self): return self.value * 2"]
        changes += ["@.__dict__['twice'] = $", "@.other = @.twice"]
    if kind == "slots":
        lines.insert(1, "    __slots__ = ('value', 'more')")
        lines += ["    def __setattr__(self, name, t): raise AttributeError(name)"]
        changes = ["object.__setattr__(@, 'value', $)", "object.__setattr__(@, 'more', @.value * $)", "@.value = $"]
    w.top(*lines)
    return name, changes


def odd_classes(w: Writer) -> None:
    """Objects with properties, descriptors and methods of their own for attributes, made and changed in captured code."""
    a = w.tensor()
    cls, changes = _odd_class(w)
    name = w.fresh("o")
    outside = w.random.random() < 0.5
    if outside:
        w.before(f"{name} = {cls}(given(3, {', '.join(map(str, a.shape))}))")
        w.arguments.append(name)
    else:
        w.put(f"{name} = {cls}({a.name} * 2)")
    for _ in range(w.random.choice([1, 2, 2])):
        w.put(w.random.choice(changes).replace("@", name).replace("$", a.name))
    (w.observes if outside else w.returns)(name, f"getattr({name}, 'value', None)")
    w.bind(f"{a.name} + 1", a)


USES = {
    "bool": ("bool(@)", "1 if @ else 2", "not @", "any([@])", "@ and 3", "[0 for _ in [0] if @]"),
    "len": ("len(@)", "bool(@)", "1 if @ else 2"), "index": ("[1, 2, 3][@]", "range(@)"), "hash": ("hash(@)", "{@: 1}[@]", "@ in {@}"),
    "contains": ("3 in @", "3 not in @"), "iter": ("list(@)", "[item for item in @]", "tuple(iter(@))"), "str": ("str(@)", "f'{@}'"),
    "repr": ("repr(@)", "f'{@!r}'", "str(@)"), "format": ("format(@)", "f'{@:3}'"), "int": ("int(@)",), "float": ("float(@)",), "complex": ("complex(@)",),
    "eq": ("@ == 1", "@ in [1]", "@ != 1"), "lt": ("@ < 1", "sorted([@, @]).__len__()"), "call": ("@()",), "getattr": ("@.some", "getattr(@, 'some', 9)", "hasattr(@, 'some')"),
    "neg": ("-@",), "add": ("@ + 1",), "radd": ("1 + @",), "enter": ("@.__enter__()",), "round": ("round(@)",), "reversed": ("list(reversed(@))",), "getitem": ("@[1]",),
}  # fmt: skip
"""A special method -> expressions that call it on `@`."""

GIVEN = (
    "'a'",
    "1",
    "-1",
    "0",
    "None",
    "2.5",
    "[]",
    "True",
    "False",
    "10**30",
    "t",
    "t.sum() > 0",
    "iter([3, 4])",
    "(1,)",
)
"""What special methods give; most of them must not."""


def special_methods(w: Writer) -> None:
    """Special methods that give what they should not, or raise, or are none."""
    a = w.tensor()
    cls, o, found = w.fresh("Odd"), w.fresh("o"), w.fresh("f")
    method = w.random.choice(list(USES))
    given = w.random.choice(GIVEN) if w.random.random() < 0.9 else "1 // 0"
    body = (
        [f"    def __{method}__(self, *args): return {given}"]
        if w.random.random() < 0.9
        else [f"    __{method}__ = None"]
    )
    if w.random.random() < 0.1:
        body = ["    @staticmethod", f"    def __{method}__(*args): return {given}"]
    w.top(f"class {cls}{w.random.choice(['', '', '', '(list)', '(int)'])}:", *body)
    if w.random.random() < 0.5:
        w.before(f"{o} = {cls}()")
        w.arguments.append(o)
    else:
        w.put(f"{o} = {cls}()")
    use = w.random.choice(USES[method]).replace("@", o)
    with w.block("try:"):
        w.put(f"{found} = {use}")
    with w.block("except Exception as error:"):
        w.put(f"{found} = (type(error).__name__, str(error))")
    w.returns(found)
    w.bind(f"{a.name} + 1", a)


def dropped(w: Writer) -> None:
    """Modules, closures and parts of modules that are compiled, called and dropped; they are dead afterwards."""
    a = w.tensor(rank=2)
    size = a.shape[-1]
    kind, train = w.random.choice(["module", "closure", "argument", "weight", "layer"]), w.random.random() < 0.5
    net, call, x = w.fresh("net"), w.fresh("call"), w.fresh("x")
    w.before(
        f"{net} = nn.Sequential(nn.Linear({size}, {size}), nn.ReLU())",
        f"{x} = given(5, {w.random.randrange(1, 7)}, {size})",
    )
    if kind == "closure":
        w.before(f"{call} = COMPILE((lambda net: lambda x: net(x) * 2)({net}))")
    elif kind == "argument":
        w.top(f"@COMPILE\ndef {net}_of(net, x):\n    return net(x) + net[0].bias")
        w.before(f"{call} = (lambda net: lambda x: {net}_of(net, x))({net})")
    else:
        w.before(f"{call} = COMPILE({net})")
    run = f"{call}({x}).sum().backward()" if train else f"with torch.no_grad(): {call}({x})"
    w.before(run)
    if kind in ("weight", "layer"):
        old = f"{net}[0].weight" if kind == "weight" else f"{net}[0]"
        new = f"nn.Parameter(torch.ones({size}, {size}))" if kind == "weight" else f"nn.Linear({size}, {size})"
        for _ in range(w.random.choice([1, 2, 3])):
            w.before(f"WATCHED.append(weakref.ref({old}))", f"{old} = {new}", run)
    w.before(
        f"WATCHED.extend(map(weakref.ref, [{net}, {net}[0].weight{', ' + call if kind != 'argument' else ''}]))",
        f"del {net}, {call}",
    )
    w.bind(f"{a.name} + 1", a)


def repeated(w: Writer) -> None:
    """Layers whose weights libraries pack, called twice with a pause between: equal bits."""
    a = w.tensor(rank=4)
    channels = a.shape[1]
    layer = w.random.choice([
        f"nn.Conv2d({channels}, {8 * channels}, 3, padding=1, groups={channels})", "nn.Sequential(nn.Conv2d({c}, 64, 1), nn.Conv2d(64, 64, 3, groups=4))".format(c=channels),
        f"nn.Sequential(nn.ConvTranspose2d({channels}, 16, 2, stride=2), nn.Conv2d(16, 32, 3, groups=2))", f"nn.Sequential(nn.Linear({a.shape[-1]}, 300), nn.Linear(300, 64)).bfloat16()",
    ])  # fmt: skip
    name, call, x, first = w.fresh("M"), w.fresh("call"), w.fresh("x"), w.fresh("first")
    w.top(
        "import time",
        "torch.manual_seed(3)",
        f"{name} = {layer}.eval()",
        f"{call} = COMPILE((lambda net: lambda x: net(x))({name}))",
    )
    w.before(
        f"{x} = given(9, {w.random.choice([1, 8])}, {channels}, 18, {a.shape[-1]}){'.bfloat16()' if 'bfloat16' in layer else ''}"
    )
    with w.block("with torch.no_grad():", "before"):
        w.before(f"{first} = {call}({x})", "time.sleep(0.6 if call == 0 else 0)")
        w.observes(f"torch.equal({first}, {first}_again)")
        w.before(f"{first}_again = {call}({x})")
    w.bind(f"{a.name} + 1", a)


ROWS = (
    Feature("identity", 2, identity, "eager"), Feature("odd_classes", 2, odd_classes, "eager"), Feature("special_methods", 2, special_methods, "eager"),
    Feature("dropped", 1, dropped), Feature("repeated", 1, repeated),
)  # fmt: skip
