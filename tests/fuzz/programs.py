"""Random programs around small tensors: typed enough to run, free enough to meet each other's corners.

A program is the text of a module; its function `main` takes (x, y, m, n, f, items, table, box): two vectors, a
matrix, an int, a float, a list, a dict and an object. Statements choose among the variables in scope by kind.
"""

# ruff: noqa: E501 - tables of program pieces are easier to read unbroken

from __future__ import annotations

import random
import warnings
from collections import defaultdict

from tests.fuzz.prelude import PRELUDE

__all__ = ["KINDS", "generate"]

KINDS = ("int", "float", "bool", "str", "vec", "mat", "sc", "list", "tlist", "dict", "tup", "set", "box", "fn")
ARGUMENTS = {
    "x": "vec", "y": "vec", "m": "mat", "n": "int", "f": "float", "items": "list", "table": "dict", "box": "box",
}  # fmt: skip

# kind -> expressions; {kind} is an expression of a kind, {kind!} a variable of a kind
EXPRESSIONS = {
    "int": """
        {n} | {int} + {int} | {int} - {int} | {int} * 2 | {int} // 3 | {int} % 5 | -{int} | abs({int}) | len({list})
        max({int}, {int}) | min({int}, 7) | sum({list}) | ({int} if {bool} else {int}) | {list}[0] | {list}[-1]
        {dict}.get('a', 3) | {dict}['a'] | {box}.n | len({box}) | {vec}.shape[0] | {mat}.size(1) | {vec}.dim() | len({str})
        int({float}) | {list}.pop() | ({int} and {int}) | ({int} or 2) | {tup}[0] | COUNT | {box}[0] | {mat}.numel()
        variadic({int}, {int}) | variadic(*{list}[:2], key={int}) | variadic({int}, *{list}, **{dict}) | round({float})
        {list}.index({list}[0]) | {list}.count(1) | sum(i for i in {list}) | len({set}) | operator.add({int}, {int})
        functools.reduce(operator.add, {list}, 0) | (lambda q, k=2: q * k)({int}) | next(iter({list})) | math.floor({float})
        sum(map(lambda q: q + 1, {list})) | {box}.lazy_value | Color.RED.value | Point({int}, 1).x | Pair({int}).left
        next((q for q in {list} if q > 1), {int}) | int({sc}.item()) | int({bool}) | {int} ^ 3 | {int} << 1 | ord('a')
        len(list(counting(3, SEEN))) | {vec}.argmax().item() | hash({int}) | divmod({int}, 4)[1] | {box}.bump().n
        cached({int} % 5) | kind_of({int}) | kind_of({str}) | kind_of({list}) | Frozen({int}).doubled | len(collections.deque({list}, maxlen=2))
        collections.Counter({list})[1] | collections.defaultdict(int, {dict})['zz'] | sum({dict}.values()) | len({dict}.keys() & {{'a', 'b'}})
        max({dict}.items())[1] | range(2, 9, 3)[{int} % 2] | slice(1, {int}).stop | b'abc'[{int} % 3] | int((2 + {int} * 1j).imag) | fact({int} % 5)
        operator.itemgetter(0)({list}) | operator.attrgetter('n')({box}) | math.gcd({int}, 6) | sum(itertools.starmap(operator.mul, zip({list}, {list})))
        len(list(itertools.combinations({list}[:4], 2))) | sum(1 for _ in itertools.pairwise({list})) | len(list(itertools.zip_longest({list}, [1])))
        sum(itertools.islice(itertools.cycle({list}), 3)) | sum(delegate({int} % 4, SEEN)) | echoed({list}, SEEN) | echoed({list}[:2], SEEN, throw={bool})
        (lambda *, k=1, **o: k + len(o))(k={int}, z=2) | typing.cast(int, {int}) | ({int}).bit_length() | getattr({box}, 'missing', 7) | weakref.ref({box})().n
        Square({int}).twice() | Wide({int}).area() | GUARDED.value | (GUARDED and {int}) | {int} * GUARDED | GUARDED @ {int} | (Frozen({int}) < Frozen(2)) + 0
        random.randrange(4) | random.choice({list}) | RANDOM.randint(0, 3) | random.choice([1, 2, 3]) + {int}
        {vec}.stride(0) | {mat}.stride()[0] | len({mat}) | {vec}.storage_offset() | sum(q_ for p_ in [{list}, {list}] for q_ in p_ if q_) | {list}.__len__()
    """,
    "float": """
        {float} ** 2 | {float} // 0.7 | {vec}.sum().item() ** 2 | {vec}.mean().item() % 0.3 | math.exp(min({float}, 5.0)) | math.atan({vec}.sum().item())
        {r} | {float} + {int} | {float} * 0.5 | {sc}.item() | float({int}) | {float} - {float} | float({sc})
        math.sqrt(abs({float})) | ({float} if {bool} else {float}) | max({vec}.tolist()) | sum({vec}.tolist()) | math.pi
        {int} / 4 | abs({float}) | {vec}[0].item() | {float} ** 2 % 3 | min({float}, 2.5)
        complex({float}, 1).real | math.hypot({float}, 1.0) | random.Random({int}).random() | abs(3 + 4j) | ({float}).__add__(1.0) | math.fmod({float}, 2.0)
        random.random() | random.uniform(-1, 1) * {float} | RANDOM.random() - {int} | RANDOM.gauss(0, 1) | -random.random()
        float('1.5') | sum([{float}, {float}], 0.5) | statistics_({list}) | torch.finfo(torch.float32).eps
    """,
    "bool": """
        id({vec!}) == id({vec!}) | id({mat!}) in {{id({mat!}), id({vec!})}} | hash({vec!}) == hash({vec!}) | len({{id({vec!}), id({vec!})}}) == 1
        {int} > {int} | {int} == {int} | {float} < {float} | not {bool} | {bool} and {bool} | {bool} or {bool} | True | False
        {int} in {list} | 'a' in {dict} | {int} < {int} <= {int} | {vec} is {vec} | {list} == {list} | isinstance({box}, Loud)
        bool({list}) | {str} != 'a' | any(q > 1 for q in {list}) | all({list}) | {int} not in {set} | {sc}.item() > 0
        bool({sc} > 0) | {vec}.requires_grad | {vec}.shape == {vec}.shape | {box} == {box} | {int} is None | callable({fn})
        {vec}.is_floating_point() | hasattr({box}, 'loud') | {tup}[0] == {int} | {vec}.dtype == torch.float32
        torch.is_grad_enabled() | {int} in {box} | len({list}) > 2 | (({vec} > 0).all()).item() | {dict} == {dict}
        torch.equal({vec}, {vec}) | {box} < {box} | issubclass(type({box}), Box) | {list} is {list} | {mat}.shape[0] == 2
        'guarded' in Guarded | GUARDED == Guarded() | {str}.startswith('a') | isinstance({int}, (int, float)) | {int} if {bool} else {bool} | None is None
        isinstance(Square(1), Shape) | {vec}.is_contiguous() | {mat}.dtype.is_floating_point | {vec}.device == torch.device('cpu') | hasattr(GUARDED, 'late')
        torch.is_tensor({vec}) | ... is Ellipsis | {list} < {list} | {set} <= {set} | {set}.isdisjoint({{9}}) | all(p_ == q_ for p_, q_ in zip({list}, {list}))
        torch.is_inference_mode_enabled() | {vec}.is_inference() | {mat}.is_inference() | torch.is_inference({sc})
        random.random() < 0.5 | torch.is_autocast_enabled('cpu') | NET.training | {dict}.keys() >= {{'a'}} | 1 < {int} < 5 > {int} | isinstance({tup}, Point)
    """,
    "str": """
        {s} | {str} + {str} | str({int}) | f'{{{int!}}}' | f'{{{float!}:.2f}}|{{{str!}!r}}' | {str}.upper() | {str} * 2
        '-'.join(map(str, {list})) | {str}[:2] | str(tuple({vec}.shape)) | repr({list}) | type({box}).__name__
        ','.join(sorted({dict})) | {str}.replace('a', 'bb') | '%s=%d' % ({str}, {int}) | '{{}} {{}}'.format({int}, {str})
        str({vec}.dtype) | {fn}.__name__ | Color.BLUE.name | f'{{{list!}}}' | ({str} if {bool} else {str})
        {str}.join(['a', {str}]) | {str}[::-1] | {str}.center(5, '*') | f'{{{int!}:>4}}' | f'{{{int!}=}}' | b'ab'.decode() | {str}.title() | str({bool}) | Guarded.label
        repr({tup}[0]) | ' '.join(f'{{q}}' for q in {list}) | str(Frozen({int})) | str(range({int})) | {str}.encode().hex() | repr({mat}.shape) | str({set} and 1)
        max([{str}, {str}], key=len) | chr(97 + {int} % 5) | str(Color(1)) | {str} or 'empty' | 'k{{:03d}}'.format({int} % 50) | {fn}.__class__.__name__
    """,
    "vec": """
        inferred({vec}) | inferred({vec}, {int}).clone() | inferred({mat})[0]
        {vec} + {vec} | {vec} * {vec} | {vec} - {float} | {vec} * {int} | {vec} / 2 | -{vec} | {vec}.abs() | torch.relu({vec})
        torch.sin({vec}) | {vec}.clone() | {mat}[0] | {mat}[1] | {mat}.sum(0) | {mat}.mean(dim=0) | torch.where({vec} > 0, {vec}, {vec})
        F.gelu({vec}) | {vec}.softmax(-1) | {fn}({vec}) | apply({fn}, {vec}) | {tlist}[0] | {tlist}[-1] | {tup}[1] | {box}.t
        {box}.double | {box}({vec}) | {box}({vec}, k=2) | WEIGHT * {vec} | torch.cat([{vec}[:1], {vec}[1:]]) | {vec}.flip(0)
        torch.stack([{vec}, {vec}]).sum(0) | {vec}.clamp(-2, 2) | ({vec} if {bool} else {vec}) | sum({tlist}) | {vec}.view(3)
        {mat} @ {vec} @ {mat} | torch.full((3,), {float}) | torch.zeros_like({vec}) | {vec}.reshape(3, 1).squeeze(1) | {vec}[[2, 0, 1]]
        torch.tensor([{float}, {float}, 1.0]) | {vec}.detach() | {vec}.max({vec}) | torch.maximum({vec}, {vec}) | {vec}.float()
        {vec}.masked_fill({vec} > 1, 0.0) | NET({vec}) | NET({vec}, twice={bool}) | {vec}.add({vec}, alpha=2) | ({vec} > 0).float()
        {vec}.contiguous() | torch.ones(3) * {int} | {vec} ** 2 | Box.make({vec}).t | {vec}.double().float() | {vec}.pow(2).sqrt()
        functools.reduce(torch.add, {tlist}) | max({tlist}, key=lambda q: q.sum().item()) | {vec}.to(torch.float32) | {vec}.cumsum(0)
        einsum_({mat}, {vec}) | F.layer_norm({vec}, (3,)) | {vec}.sort().values | {vec}.roll(1) | scaled(2)({fn})({vec}) | {vec}.new_zeros(3)
        Double.apply({vec}) | Double.apply({vec}, {int}) | SEQ({vec}) | MODULES['a']({vec}) | MODULES['b']({vec}) | torch.func.vmap(torch.sin)({mat})[0]
        torch.func.grad(lambda q: (q * q).sum())({vec}) | torch.utils.checkpoint.checkpoint({fn}, {vec}, use_reentrant=False) | {vec}.type_as({vec})
        torch.add({vec}, {vec}, out=torch.empty(3)) | next(iter({tlist})) | [*{mat}][0] | (lambda q: (q := q + 1) * 2)({vec}) | {vec}[..., None].squeeze(-1)
        {vec}[slice(0, 3)] | {vec}[torch.tensor([True, True, True])] | {vec}.index_select(0, torch.tensor([0, 1, 2])) | F.embedding(torch.tensor({int} % 4), torch.stack([{vec}] * 3))
        {vec}.gather(0, torch.tensor([0, 1, {int}])) | torch.nn.Linear(3, 3, bias=False)({vec}) | F.dropout({vec}, 0.5, training={bool}) | torch.rand(3)
        torch.rand(3, generator=torch.Generator().manual_seed(3)) | {vec} * GUARDED | GUARDED @ {vec} | sum(m_(q_) for m_, q_ in zip(SEQ, [{vec}, {vec}])) | {vec}.sub({vec}).abs_()
        functools.reduce(lambda p_, q_: p_ * q_, {tlist}, {vec}) | torch.einsum('i,i->i', {vec}, {vec}) | {vec}.new_tensor([1.0, 2.0, {float}]) | torch.zeros(3).copy_({vec}) | -(+{vec})
        torch.rand(3, generator=GENERATOR) | torch.normal(0.0, 1.0, (3,), generator=GENERATOR) | {vec} * random.random() | {vec}.clone().uniform_(-1, 1, generator=GENERATOR)
        torch.nn.Parameter(torch.ones(3)) * {vec} | torch.nn.Parameter({vec}.detach() * 2) | torch.full((3,), 0.5, requires_grad=True) * {vec} | {vec} - RANDOM.uniform(0, 1) * {float}
        {vec} / (random.random() + 1) | {vec} * {float} + random.randint(0, 3) | ({vec} > random.random()).float() | torch.randn(3, generator=GENERATOR) * RANDOM.random()
        torch.addcmul({vec}, {vec}, {vec}, value={float}) | torch.lerp({vec}, {vec}, 0.5) | {vec}.topk(3).values | torch.empty(3).fill_({float}) | {mat}[{int} % 2] | {mat}[{int}]
    """,
    "mat": """
        {mat} + {vec} | {mat} * {int} | {mat}.relu() | torch.stack([{vec}, {vec}]) | {mat} - {mat} | {mat}.clone() | {mat} * {mat}
        {mat}.t().t() | {vec}.expand(2, 3) | {mat}.transpose(0, 1).reshape(2, 3) | {mat}.softmax(dim=1) | NET({mat}) | {mat}[[1, 0]]
        torch.cat([{mat}[:1], {mat}[1:]]) | {vec}.unsqueeze(0).repeat(2, 1) | {mat} / ({mat}.abs().sum() + 1) | {mat}.neg()
        torch.func.vmap(lambda q: q * 2 + {vec})({mat}) | SEQ({mat}) | {mat}[:, [2, 1, 0]] | {mat}[{mat}[:, 0] > -100] | torch.outer(torch.ones(2), {vec}) | {mat}.view(3, 2).view(2, 3)
        {mat}.narrow(0, 0, 2) | torch.func.jvp(lambda q: q * q, ({mat},), ({mat},))[1] | {mat}.flatten().unflatten(0, (2, 3))
    """,
    "sc": """
        max({sc}, {sc}) | min({sc}, {sc}, {sc}) | max({vec}) | min([{sc}, {vec}.sum()]) | max({sc}, {sc}) * 2
        {vec}.sum() | {mat}.mean() | {vec}[0] | {vec}.max() | {vec}.norm() | {sc} * 2 | {sc} + {sc} | {mat}[0, 1] | Box.norm({vec})
        ({vec} * {vec}).sum() | torch.tensor({float}) | {vec}.dot({vec}) | {sc}.abs() | {vec}.mean() - {vec}.min() | sum({vec})
    """,
    "list": """
        {list} + {list} | [{int}, {int}] | [q * 2 for q in {list}] | [q for q in {list} if q > {int}] | list(range(3)) | {list}[:2]
        sorted({list}) | list(reversed({list})) | [*{list}, {int}] | list({dict}.values()) | {list}[::-1] | {box}.items | list({set})
        [i + q for i, q in enumerate({list})] | [a_ + b_ for a_, b_ in zip({list}, {list})] | list(map(abs, {list})) | {list} * 2
        list(filter(None, {list})) | [(z_ := {int}), z_ + 1] | [a_ * b_ for a_ in {list}[:2] for b_ in range(2)] | list(counting(3))
        list(itertools.chain({list}, {list})) | list(itertools.accumulate({list})) | sorted({list}, key=lambda q: -q, reverse={bool})
        list({box}) | ({list} if {bool} else {list}) | list({list}) | {list}.copy() | [len({list})] | [{int} for _ in range(2)]
        [int(q) for q in {vec}.tolist()] | list({mat}.shape) | list(itertools.islice(counting(5), 2)) | [q.n for q in [{box}, {box}]]
        list(dict.fromkeys({list})) | list(itertools.takewhile(lambda q: q < 3, {list})) | [fn_() for fn_ in [lambda: {int}, lambda: 2]]
        [*{dict}.values()] | list(collections.deque({list}, 3)) | list(itertools.chain.from_iterable([{list}, {list}])) | list(itertools.repeat({int}, 2)) | list(range(5)[::2])
        [p_ for p_, q_ in itertools.groupby(sorted({list}))] | list(itertools.dropwhile(lambda q: q < 2, {list})) | list(itertools.compress({list}, [1, 0, 1])) | list(delegate(2))
        sorted({dict}.values(), reverse=True) | [k for k in {dict}.values()] | [v for _, v in collections.Counter({list}).most_common(2)] | list({set} | {{5}}) | [q(2) for q in [lambda v, i=i: v * i for i in range(2)]]
        [*itertools.islice(itertools.count({int}), 2)] | list(map(operator.add, {list}, {list})) | [f_(1) for f_ in (lambda a_: a_, fact, cached)] | [y_ for x_ in [1, 2] if (y_ := x_ * {int}) > 1]
        [[q] for q in {list}][0] | list(zip(*[{list}, {list}]))[0:1] and {list} | [int(b_) for b_ in b'ab'] | list({mat}.shape[::-1]) | [{list}.count(q) for q in {list}] | list(Frozen({int}, (1, 2)).rest)
    """,
    "tlist": """
        [{vec}, {vec}] | list({mat}) | [{vec} * i for i in range(2)] | [q + 1 for q in {tlist}] | {tlist} + [{vec}] | {tlist}[:2]
        list(torch.unbind({mat})) | [{vec}] * 2 | list({mat}.chunk(1)[0]) | [*{tlist}] | list(map({fn}, {tlist})) | list({tlist})
        list({mat}.split(1)[0]) | [t_ for t_ in {mat}] | [SEQ({vec}), MODULES['a']({vec})] | [m_({vec}) for m_ in MODULES.values()] | list(torch.unbind(torch.stack({tlist}))) | sorted({tlist}, key=lambda t_: float(t_.sum()))
        [t_ if i_ else t_ * 2 for i_, t_ in enumerate({tlist})] | list(map(lambda p_, q_: p_ + q_, {tlist}, {tlist})) | list(reversed({tlist})) | [block({vec}) for block in NET.blocks]
    """,
    "dict": """
        {dict} | {{'a': {int}, 'c': {int}}} | {{**{dict}, 'b': {int}}} | {{k: v + 1 for k, v in {dict}.items()}} | dict({dict}, a={int})
        dict(a={int}) | {dict} | {{'a': 1, 'z': {int}}} | dict(zip('ab', [{int}, {int}])) | TABLE | {dict}.copy() | {{'a': 0}}
        {{str(q): q for q in {list}}} | {{'a': {int}}} | dict(sorted({dict}.items())) | collections.OrderedDict(a={int}, b=1)
        dict(collections.Counter('aab')) | collections.defaultdict(int, a={int}) | vars(Point)['_fields'] and {{'a': 2}}
        {{k: v for k, v in zip('abc', {list})}} | dict(collections.Counter({list})) and {{'a': 1}} | {dict} | {{'q': {int}}} | {{**{dict}, **{dict}}} | dict([('a', {int}), ('d', 2)]) | collections.OrderedDict({dict})
        {{k: {dict}[k] for k in sorted({dict})}} | {{'a': {int}, **{{'b': {int}}}}} | collections.ChainMap({{'a': {int}}}, {dict}).copy().maps[0] | dict(enumerate({list})) and {{'a': {int}}}
    """,
    "tup": """
        ({int}, {vec}) | ({int}, {vec}, {str}) | (lambda *a_: a_)({int}, {vec}) | tuple([{int}, {vec}]) | ({int}, {vec}) + ({list},)
        Point({int}, {vec}) | Point(x={int}, y={vec})._replace(x=2) | ({tup} if {bool} else {tup}) | dataclasses.astuple(Pair({int}, {vec}))
    """,
    "set": """
        {{{int}, {int}}} | set({list}) | {{q % 3 for q in {list}}} | {set} | {{1, 2}} | {set} & {{1, 2, 3}} | frozenset({list}) | {set} - {{1}}
        {set} | {{7}} | {set} ^ {{1, 5}} | {{*{list}}} | set({dict}.values()) | set(map(abs, {list})) | frozenset([{int}]) | {{len(k) for k in {dict}}}
    """,
    "box": """
        {box} | Box({int}, {vec}) | Loud({int}, {vec}) | Box.make({vec}) | {box} + {int} | {box} + {box} | {box}.bump({int}) | Loud.make({vec}, n=1)
        ({box} if {bool} else {box}) | sorted([{box}, Box(2, {vec})], key=lambda q: q.n)[0] | apply(Box, {int}, {vec})
    """,
    "fn": """
        {fn} | (lambda q: q + {vec}) | torch.relu | torch.neg | functools.partial(torch.add, {vec}) | (lambda q, k={int}: q * k) | F.silu
        {box} | torch.Tensor.abs | scaled({int})(torch.sin) | (torch.cos if {bool} else torch.tanh) | operator.neg | NET
    """,
}  # fmt: skip

LEAVES = {
    "int": ["0", "1", "2", "3", "-1", "n"], "float": ["0.5", "1.5", "-2.0", "f"], "bool": ["True", "False", "n > 2"],
    "str": ["'a'", "'xyz'", "''"], "vec": ["x", "y", "WEIGHT"], "mat": ["m"], "sc": ["x.sum()", "m.mean()"],
    "list": ["items", "[1, 2, 3]"], "tlist": ["[x, y]"], "dict": ["table", "TABLE"], "tup": ["(n, x)"],
    "set": ["{1, 2}"], "box": ["box"], "fn": ["torch.sin", "(lambda q: q * 2)"],
}  # fmt: skip


def _alternatives(text: str) -> list[str]:
    return [part.strip() for line in text.strip().splitlines() for part in line.split(" | ")]


ALTERNATIVES = {kind: _alternatives(text) for kind, text in EXPRESSIONS.items()}

SIMPLE = (
    "{list!}.append({int})", "{list!}.extend({list})", "{list!}.insert(0, {int})", "{list!}[0] = {int}",
    "{list!}[1:2] = {list}", "del {list!}[-1]", "{list!}.sort()", "{list!}.reverse()", "{list!}.pop()",
    "{list!} += [{int}]", "{list!}.clear()", "{dict!}['a'] = {int}", "{dict!}[{str}] = {int}", "{dict!}.update(b={int})",
    "{dict!}['a'] += 1", "{dict!}.pop('b', None)", "{dict!}.setdefault('k', {int})", "del {dict!}['a']",
    "{dict!} |= {{'m': {int}}}", "{tlist!}.append({vec})", "{tlist!}[0] = {vec}", "{tlist!}[-1] += 1",
    "{box!}.n = {int}", "{box!}.n += {int}", "{box!}.t = {vec}", "{box!}.double = {vec}", "{box!}.bump({int})",
    "{box!}.items.append({int})", "{box!}[0] = {int}", "{box!} += {int}", "{box!}.extra = {str}",
    "setattr({box!}, 'n', {int})", "{box!}.__dict__['m'] = {int}", "Box.scale = {int} % 4 + 1",
    "{vec!}.add_({vec})", "{vec!}.mul_(2)", "{vec!}[0] = {float}", "{vec!}[1:] += {float}", "{vec!} += {vec}",
    "{vec!} *= {int}", "{vec!}[:2].zero_()", "{mat!}[0] = {vec}", "{mat!}.sub_({vec})", "{mat!}[:, 1] = {float}",
    "{mat!}.t()[0] += 1", "{vec!}.copy_({vec})", "{vec!}.clamp_(-3, 3)", "torch.add({vec}, {vec}, out={vec!})",
    "{vec!}.data = {vec}.detach().clone()", "NET.calls.add_(1)", "NET.calls += {float}", "WEIGHT.mul_(1.0)",
    "print({str})", "print({int}, {list})", "print('t', {vec}.shape)", "print({sc}.item())", "print(f'{{{int!}}}', end='')",
    "SEEN.append({int})", "SEEN.append({str})", "TABLE['c'] = {int}", "{set!}.add({int})" , "{set!} |= {{{int}}}",
    "assert {bool}, {str}", "{int!} += {int}", "{int!} = {int!} % 7", "{float!} *= 0.5", "{str!} += 'q'",
    "{int!}, {float!} = {int}, {float}", "{vec!}, {int!} = {vec}, {int}", "{int!}, *{list!} = [1, *{list}]",
    "({int!}, {vec!}), {str!} = ({int}, {vec}), {str}", "{int!} = {int!} = {int}", "[{int!}, {int!}] = [1, {int}]",
    "{vec!} = {vec!}.clone()",
    "dq_ = collections.deque({list}); dq_.appendleft({int}); dq_.rotate(1); SEEN.extend(dq_)", "GUARDED.value = {int}", "GUARDED.slot = {vec}",
    "ct_ = collections.Counter({list}); ct_.update({list}); SEEN.append(ct_.most_common(1))", "GUARDED.sealed = {int}", "GUARDED.late = {int}",
    "dd_ = collections.defaultdict(list); dd_[{str}].append({int}); SEEN.append(dict(dd_))", "del GUARDED[{int}]", "{dict!}.popitem()",
    "od_ = collections.OrderedDict({dict}); od_.move_to_end('a'); SEEN.append(list(od_))", "del {list!}[::2]", "{list!}[::2] = {list}", "{list!} *= 2",
    "import json as json_; SEEN.append(json_.dumps({list}))", "from math import floor as floor_; SEEN.append(floor_({float}))", "del {box!}.n",
    "{box!}.n, {box!}.items = {int}, {list}", "NET.train({bool})", "NET.train(); NET.eval()", "NET.extra = {int}", "warnings.warn({str})",
    "handle_ = NET.register_forward_hook(lambda mod, a_, out: out * 2); {vec!} = NET({vec}); handle_.remove()", "{vec!}.grad = None",
    "handle_ = SEQ[0].register_forward_pre_hook(lambda mod, a_: (a_[0] + 1,)); {vec!} = SEQ({vec}); handle_.remove()", "{vec!}.requires_grad_()",
    "({vec} * 2).sum().backward()", "raises(ValueError, {int})", "raises(Failure, {int}, {vec})", "SEQ[0].bias.data.add_(1)", "SEEN.extend({list})",
    "F.relu({vec!}, inplace=True)", "torch.mul({vec}, {vec}, out={vec!})", "torch.neg({vec}, out={mat!}[0])", "NET.calls.zero_()", "{tlist!}.reverse()",
    "{tlist!}.insert(0, {vec})", "del {tlist!}[1:]", "{dict!}.clear()", "{set!}.discard({int})", "{set!}.update({list})", "{list!}.remove({int})",
    "SEEN[:] = SEEN[-3:]", "TABLE.update({dict})", "{box!}.t.add_({vec})", "{box!}.t += {vec}", "{box!}.t[0] = {float}", "{int!} <<= 1", "{vec!} @= {mat}.t() @ {mat}",
    "{vec!}.requires_grad_(False)", "{int!}, {vec!}, *rest_ = {tup}", "SEEN.append(type({box}).__name__)",
    "torch.manual_seed({int} % 5)", "{tlist!}[0].mul_(0.5)", "{list!} = {list!} = {list}", "{vec!} = {mat!}[0]; {vec!}.add_(1)",
)  # fmt: skip


class _Names:
    """Variables in scope by kind; inner blocks see outer ones, and what they bind may stay unbound."""

    def __init__(self) -> None:
        self.by_kind: dict[str, list[str]] = defaultdict(list)

    def copy(self) -> _Names:
        other = _Names()
        for kind, names in self.by_kind.items():
            other.by_kind[kind] = list(names)
        return other

    def add(self, kind: str, name: str) -> None:
        for names in self.by_kind.values():
            if name in names:
                names.remove(name)
        self.by_kind[kind].append(name)


class _Generator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.counter = 0
        self.functions: list[str] = []  # helpers: callable on (vec, int)
        self.loop = self.inner = 0
        self.lines: list[str] = []

    # -- expressions ------------------------------------------------------------

    def expr(self, kind: str, names: _Names, depth: int) -> str:
        known = names.by_kind[kind]
        roll = self.random.random()
        if depth <= 0 or roll < 0.25:
            pool = known if known and self.random.random() < 0.8 else LEAVES[kind]
            return self.random.choice(pool)
        if self.functions and kind == "vec" and roll < 0.32:
            return f"{self.random.choice(self.functions)}({self.expr('vec', names, depth - 1)}, {self.expr('int', names, 1)})"
        text = self.fill(self.random.choice(ALTERNATIVES[kind]), names, depth - 1)
        return f"({text})"

    def fill(self, template: str, names: _Names, depth: int) -> str:
        out, at = [], 0
        while at < len(template):
            char = template[at]
            if template.startswith(("{{", "}}"), at) and not template.startswith("{{{", at):
                out.append(char)
                at += 2
            elif template.startswith("{{{", at):
                out.append("{")
                at += 2
            elif char == "{":
                end = template.index("}", at)
                out.append(self._part(template[at + 1 : end], names, depth))
                at = end + 1
            else:
                out.append(char)
                at += 1
        return "".join(out)

    def _part(self, what: str, names: _Names, depth: int) -> str:
        if what == "n":
            return str(self.random.choice([0, 1, 2, 3, 5, -2]))
        if what == "r":
            return str(self.random.choice([0.0, 0.5, -1.25, 3.0]))
        if what == "s":
            return self.random.choice(["'a'", "'bc'", "''", "'K9'"])
        if what.endswith("!"):
            kind = what[:-1]
            known = names.by_kind[kind]
            return self.random.choice(known) if known else self.random.choice(("x", "items", "box", "table"))
        return self.expr(what, names, depth)

    # -- statements ---------------------------------------------------------------

    def fresh(self) -> str:
        self.counter += 1
        return f"v{self.counter}"

    def block(self, names: _Names, depth: int, indent: int, size: int | None = None) -> None:
        for _ in range(size or self.random.choice([1, 1, 2, 2, 3])):
            self.statement(names, depth, indent)

    def put(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def statement(self, names: _Names, depth: int, indent: int) -> None:
        pick = self.random.random()
        if pick < 0.34 or depth <= 0:
            kind = self.random.choice(KINDS)
            name = self.random.choice(names.by_kind[kind]) if names.by_kind[kind] and pick < 0.08 else self.fresh()
            self.put(indent, f"{name} = {self.expr(kind, names, 2)}")
            names.add(kind, name)
        elif pick < 0.56:
            self.put(indent, self.fill(self.random.choice(SIMPLE), names, 1))
        else:
            self.random.choice(self.COMPOUND)(self, names, depth - 1, indent)

    def if_(self, names: _Names, depth: int, indent: int) -> None:
        self.put(
            indent, f"if {self.expr(self.random.choice(['bool', 'bool', 'bool', 'int', 'list', 'sc']), names, 2)}:"
        )
        self.block(names.copy() if self.random.random() < 0.7 else names, depth, indent + 1)
        if self.random.random() < 0.5:
            if self.random.random() < 0.3:
                self.put(indent, f"elif {self.expr('bool', names, 2)}:")
                self.block(names.copy(), depth, indent + 1)
            self.put(indent, "else:")
            self.block(names.copy(), depth, indent + 1)

    def for_(self, names: _Names, depth: int, indent: int) -> None:
        inner = names.copy()
        a, b = self.fresh(), self.fresh()
        head, kinds = self.random.choice([
            (f"{a} in range({self.random.randint(0, 4)})", {a: "int"}),
            (f"{a} in {self.expr('list', names, 1)}[:4]", {a: "int"}),
            (f"{a}, {b} in enumerate({self.expr('tlist', names, 1)}[:3])", {a: "int", b: "vec"}),
            (f"{a} in {self.expr('tlist', names, 1)}[:3]", {a: "vec"}),
            (f"{a}, {b} in list({self.expr('dict', names, 1)}.items())[:4]", {a: "str", b: "int"}),
            (f"{a}, {b} in zip({self.expr('list', names, 1)}[:3], {self.expr('tlist', names, 1)})", {a: "int", b: "vec"}),
            (f"{a} in {self.expr('mat', names, 1)}", {a: "vec"}),
            (f"{a} in counting(3, SEEN)", {a: "int"}),
            (f"{a} in reversed({self.expr('list', names, 1)}[:3])", {a: "int"}),
            (f"{a}, {b} in itertools.product(range(2), {self.expr('list', names, 1)}[:2])", {a: "int", b: "int"}),
        ])  # fmt: skip
        self.put(indent, f"for {head}:")
        for name, kind in kinds.items():
            inner.add(kind, name)
        self.loop += 1
        self.block(inner, depth, indent + 1)
        if self.random.random() < 0.25:
            self.leave(inner, indent + 1)
        self.loop -= 1
        if self.random.random() < 0.15:
            self.put(indent, "else:")
            self.block(names.copy(), depth, indent + 1, 1)

    def leave(self, names: _Names, indent: int) -> None:
        self.put(indent, f"if {self.expr('bool', names, 1)}:")
        self.put(indent + 1, self.random.choice(["break", "continue", "break"]))

    def while_(self, names: _Names, depth: int, indent: int) -> None:
        name = self.fresh()
        self.put(indent, f"{name} = {self.random.randint(1, 3)}")
        self.put(indent, f"while {name} > 0:" if self.random.random() < 0.7 else "while True:")
        always = self.lines[-1].endswith("True:")
        self.put(indent + 1, f"{name} -= 1")
        inner = names.copy()
        if always:
            self.put(indent + 1, f"if {name} < 0:")
            self.put(indent + 2, "break")
        self.loop += 1
        self.block(inner, depth, indent + 1)
        self.loop -= 1

    def try_(self, names: _Names, depth: int, indent: int) -> None:
        self.put(indent, "try:")
        inner = names.copy()
        self.block(inner, depth, indent + 1)
        if self.random.random() < 0.6:
            error = self.random.choice(["ValueError", "KeyError", "ZeroDivisionError", "IndexError", "RuntimeError"])
            text = self.random.choice([
                f"raise {error}({self.expr('str', names, 1)})", f"{self.fresh()} = {self.expr('int', names, 1)} // ({self.expr('int', names, 1)} % 2)",
                f"{self.expr('list', names, 1)}[9]", f"{self.expr('dict', names, 1)}['nope']", f"raise {error}",
                f"torch.cat([{self.expr('vec', names, 1)}, {self.expr('mat', names, 1)}])", f"assert {self.expr('bool', names, 1)}",
                f"raise Failure({self.expr('int', names, 1)}, {self.expr('vec', names, 1)})", f"raise {error}('x') from Failure(1)", f"raises({error}, 'y')",
                f"{self.expr('vec', names, 1)}[{self.expr('int', names, 1)} + 3]", f"F.embedding(torch.tensor([9]), {self.expr('mat', names, 1)})",
            ])  # fmt: skip
            if self.random.random() < 0.5:
                self.put(indent + 1, f"if {self.expr('bool', names, 1)}:")
                self.put(indent + 2, text)
            else:
                self.put(indent + 1, text)
        handlers = self.random.random()
        if handlers < 0.85:
            caught = self.random.choice(
                [
                    "Exception",
                    "(ValueError, KeyError)",
                    "ZeroDivisionError",
                    "LookupError",
                    "RuntimeError",
                    "Failure",
                    "(Failure, IndexError)",
                ]
            )
            bound = self.random.random() < 0.6
            self.put(indent, f"except {caught}{' as error' if bound else ''}:")
            if bound and self.random.random() < 0.7:
                self.put(
                    indent + 1,
                    self.random.choice(
                        ["SEEN.append(str(error)[:30])", "SEEN.append(type(error).__name__)", "print(repr(error)[:30])"]
                    ),
                )
            self.block(names.copy(), depth, indent + 1, 1)
            if self.random.random() < 0.12:
                self.put(
                    indent + 1,
                    self.random.choice(
                        [
                            "raise",
                            "raise KeyError('again')",
                            "raise ValueError(n) from None",
                            "raise Failure(2) from ValueError(1)",
                        ]
                    ),
                )
            if self.random.random() < 0.25:
                self.put(indent, "else:")
                self.block(names.copy(), depth, indent + 1, 1)
        if handlers >= 0.85 or self.random.random() < 0.35:
            self.put(indent, "finally:")
            self.block(names.copy(), 0 if self.random.random() < 0.7 else depth, indent + 1, 1)

    def with_(self, names: _Names, depth: int, indent: int) -> None:
        text = self.random.choice([
            "Manager(SEEN, 'a')", "Manager(SEEN, 'b', (ValueError, KeyError))", "tracked(SEEN, 'c')", "torch.no_grad()",
            "contextlib.suppress(ValueError, ZeroDivisionError)", "Manager(SEEN, 'd') as mgr, torch.no_grad()", "torch.enable_grad()",
            "tracked(SEEN, 'e') as depth_", "contextlib.nullcontext()", "torch.set_grad_enabled(False)", "contextlib.ExitStack() as stack_",
            "(Manager(SEEN, 'f', (Failure,)), tracked(SEEN, 'g') as depth_)", "torch.autocast('cpu', dtype=torch.bfloat16)", "contextlib.suppress(Exception)",
            "torch.inference_mode()", "torch.inference_mode(mode=False)", "Manager(SEEN, 'h') as mgr, torch.inference_mode()",
            "torch.inference_mode({bool}) as mode_", "contextlib.closing(counting(2, SEEN)) as gen_", "warnings.catch_warnings()", "torch.autograd.profiler.record_function('r')",
        ])  # fmt: skip
        self.put(indent, f"with {text.replace('{bool}', self.expr('bool', names, 1))}:")
        self.block(names, depth, indent + 1)

    def function(self, names: _Names, depth: int, indent: int) -> None:
        name, argument = self.fresh(), self.fresh()
        inner = names.copy()
        signature = self.random.choice(
            [argument, f"{argument}, k=2", f"{argument}, *rest", f"{argument}, /, *, k=1", f"{argument}, **options"]
        )
        self.put(indent, f"def {name}({signature}):")
        outer_ints = [v for v in names.by_kind["int"] if v.startswith("v")]
        inner.add("vec", argument)
        if outer_ints and indent > 0 and self.random.random() < 0.5:
            target = self.random.choice(outer_ints)
            if self.inner == 0:
                self.put(indent + 1, f"nonlocal {target}")
                self.put(indent + 1, f"{target} += 1")
        loop, self.loop = self.loop, 0
        self.inner += 1
        # Assignments to outer names would make them local: only new names are bound inside.
        for kind in KINDS:
            inner.by_kind[kind] = list(inner.by_kind[kind])
        lines, self.lines = self.lines, []
        self.block(_Frozen(inner), depth - 1, indent + 1, self.random.choice([1, 2]))
        body, self.lines = self.lines, lines
        self.lines += body
        self.put(indent + 1, f"return {self.expr('vec', inner, 2)}")
        self.inner -= 1
        self.loop = loop
        names.add("fn", name)

    def match_(self, names: _Names, depth: int, indent: int) -> None:
        kind = self.random.choice(["int", "list", "dict", "tup", "box", "str"])
        self.put(indent, f"match {self.expr(kind, names, 1)}:")
        cases = {
            "int": ["0 | 1", "int(w_) if w_ > 2"], "list": ["[]", "[w_]", "[w_, *_]"], "dict": ["{'a': 1}", "{'a': w_, **rest_}"],
            "tup": ["(w_, torch.Tensor() as t_)", "(1, _)"], "box": ["Loud(n=w_)", "Box(items=[w_, *_])"], "str": ["'a' | 'b'", "str() as w_"],
        }[kind]  # fmt: skip
        for case in cases:
            self.put(indent + 1, f"case {case}:")
            self.block(names.copy(), depth, indent + 2, 1)
        self.put(indent + 1, "case _:")
        self.block(names.copy(), depth, indent + 2, 1)

    def generator_function(self, names: _Names, depth: int, indent: int) -> None:
        """A generator made here, consumed in one of the ways that there are."""
        name, item, out = self.fresh(), self.fresh(), self.fresh()
        self.put(indent, f"def {name}({item}):")
        body = self.random.choice([
            (f"try: yield {item}\n", f"finally: SEEN.append('left {name}')\n", f"yield {item} * 2"), (f"yield from [{item}, {item} + 1]",),
            ("for i_ in range(3):\n", f"    got_ = yield {item} * i_\n", "    if got_: SEEN.append(got_)"), (f"yield (yield {item})",),
            (f"with tracked(SEEN, '{name}'):\n", f"    yield {item}\n", "    yield WEIGHT"), (f"yield {item}\n", "raise ValueError('in a generator')"),
        ])  # fmt: skip
        for line in "".join(body).split("\n"):
            self.put(indent + 1, line)
        vec = self.expr("vec", names, 1)
        for line in self.random.choice([
            (f"{out} = list({name}({vec}))",), (f"{out} = [*{name}({vec})]",), (f"{out} = [{vec}]", f"for q_ in {name}({vec}):", f"    {out}.append(q_)", "    break"),
            (f"it_ = {name}({vec})", f"{out} = [next(it_)]", "it_.close()"), (f"it_ = {name}({vec})", f"{out} = [next(it_), next(it_, {vec})]"),
            (f"{out} = [q_ + 1 for q_ in {name}({vec}) if q_ is not None]",), (f"first_, *{out} = {name}({vec})",), (f"it_ = {name}({vec})", f"{out} = [next(it_)]", f"{out}.append(it_.send({vec}))"),
        ]):  # fmt: skip
            self.put(indent, line)
        names.add("tlist", out)

    def closures(self, names: _Names, depth: int, indent: int) -> None:
        """Functions over the cells of a loop or of a counter, called after these have changed."""
        name, item, out = self.fresh(), self.fresh(), self.fresh()
        for line in self.random.choice([
            (f"{name} = []", f"for {item} in range(3):", f"    {name}.append(lambda q, k={item}: q * k + {item})", f"{out} = {name}[0]({self.expr('vec', names, 1)})"),
            (f"def {name}(q):", f"    k_ = {self.expr('int', names, 1)}", "    def inner_(z):", "        nonlocal k_", "        k_ += 1", "        return z * k_", "    inner_(q)", "    return inner_(q) + k_",
             f"{out} = {name}({self.expr('vec', names, 1)})"),
            (f"def {name}(k):", f"    return {self.expr('vec', names, 1)} if k <= 0 else {name}(k - 1) + k", f"{out} = {name}(3)"),
            ("@scaled(2)", f"def {name}(q, /, r=1, *s, t=2, **u):", "    return q * r + len(s) + t + len(u)", f"{out} = {name}({self.expr('vec', names, 1)}, 2, 3, t=4, z=5)"),
            (f"{item} = {self.expr('vec', names, 1)}", f"{name} = lambda: {item} + 1", f"{item} = {self.expr('vec', names, 1)}", f"{out} = {name}()"),
            (f"class {name.upper()}(Square):", "    side = Positive()", "    @property", "    def t(self):", f"        return {self.expr('vec', names, 1)} * self.side", f"{out} = {name.upper()}({self.expr('int', names, 1)}).t"),
        ]):  # fmt: skip
            self.put(indent, line)
        names.add("vec", out)

    def left_by_finally(self, names: _Names, depth: int, indent: int) -> None:
        """A `finally` that leaves a loop or goes on with it, whatever was raised; a loop with `else`; groups."""
        error = self.random.choice(["ValueError(1)", "Failure(3)", "KeyError('k')"])
        name = self.fresh()
        if self.random.random() < 0.25:
            self.put(indent, "try:")
            self.put(indent + 1, f"raise ExceptionGroup('group', [{error}, TypeError('t')])")
            self.put(indent, "except* (ValueError, KeyError, Failure):")
            self.put(indent + 1, f"SEEN.append({self.expr('int', names, 1)})")
            self.put(indent, "except* TypeError as group_:")
            self.put(indent + 1, "SEEN.append(len(group_.exceptions))")
            return
        self.put(indent, f"{name} = 3")
        self.put(indent, f"while {name}:")
        self.put(indent + 1, f"{name} -= 1")
        self.put(indent + 1, "try:")
        self.loop += 1
        self.block(names.copy(), depth, indent + 2, 1)
        self.loop -= 1
        self.put(indent + 2, f"if {self.expr('bool', names, 1)}:")
        self.put(indent + 3, f"raise {error}")
        self.put(indent + 1, "finally:")
        self.put(indent + 2, f"SEEN.append({name})")
        self.put(indent + 2, self.random.choice(["break", "continue", "pass", "continue"]))
        self.put(indent, "else:")
        self.block(names.copy(), 0, indent + 1, 1)

    def global_(self, names: _Names, depth: int, indent: int) -> None:
        self.put(
            indent,
            self.random.choice([f"COUNT = {self.expr('int', names, 1)}", "COUNT += 1", "COUNT = COUNT * 2 % 50"])
            if not self.inner
            else "pass",
        )

    def leave_early(self, names: _Names, depth: int, indent: int) -> None:
        self.put(indent, f"if {self.expr('bool', names, 1)}:")
        if self.loop and self.random.random() < 0.6:
            self.put(indent + 1, self.random.choice(["break", "continue"]))
        else:
            self.put(indent + 1, f"return {self.expr('vec', names, 1)}")

    def delete(self, names: _Names, depth: int, indent: int) -> None:
        name = self.fresh()
        kind = self.random.choice(KINDS)
        self.put(indent, f"{name} = {self.expr(kind, names, 1)}")
        self.put(indent, f"SEEN.append(type({name}).__name__)")
        self.put(indent, f"del {name}")

    def class_(self, names: _Names, depth: int, indent: int) -> None:
        name = self.fresh()
        self.put(indent, f"class {name.upper()}({self.random.choice(['Box', 'Loud'])}):")
        self.put(indent + 1, f"extra = {self.expr('int', names, 1)}")
        self.put(indent + 1, "def bump(self, by=1):")
        self.put(indent + 2, f"self.n -= {self.expr('int', names, 1)}")
        self.put(indent + 2, "return super().bump(by + self.extra % 3)")
        self.put(indent, f"{name} = {name.upper()}({self.expr('int', names, 1)}, {self.expr('vec', names, 1)})")
        names.add("box", name)

    def generator(self, names: _Names, depth: int, indent: int) -> None:
        name, item = self.fresh(), self.fresh()
        self.put(
            indent,
            f"{name} = ({self.expr('vec', _with(names, 'int', item), 1)} for {item} in range({self.random.randint(0, 3)}))",
        )
        out = self.fresh()
        self.put(indent, f"{out} = [{self.expr('vec', names, 1)}, *{name}]")
        names.add("tlist", out)

    COMPOUND = (
        if_,
        if_,
        if_,
        for_,
        for_,
        for_,
        while_,
        try_,
        try_,
        with_,
        with_,
        function,
        match_,
        global_,
        leave_early,
        delete,
        class_,
        generator,
        generator_function,
        closures,
        left_by_finally,
    )

    # -- whole programs -------------------------------------------------------------

    def helper(self, index: int) -> None:
        name = f"helper{index}"
        self.put(0, f"def {name}(x, n=2, *, y=WEIGHT):")
        self.put(1, "m, f, items, table, box = torch.stack([x, y]), 0.5, [n, 1, 2], {'a': n}, Box(n, y)")
        names = _Names()
        for argument, kind in ARGUMENTS.items():
            names.add(kind, argument)
        self.inner = 1
        self.block(names, 1, 1)
        self.put(1, f"return {self.expr('vec', names, 2)}")
        self.inner = 0
        self.put(0, "")
        self.functions.append(name)

    def program(self) -> str:
        self.put(0, "def einsum_(a, b):")
        self.put(1, "return torch.einsum('ij,j->j', a, b)")
        self.put(0, "def statistics_(values):")
        self.put(1, "return sum(values) / max(len(values), 1)")
        for index in range(self.random.choice([0, 1, 1, 2])):
            self.helper(index)
        names = _Names()
        self.put(0, f"def main({', '.join(ARGUMENTS)}):")
        self.put(1, "global COUNT")
        for argument, kind in ARGUMENTS.items():
            names.add(kind, argument)
        self.block(names, 3, 1, self.random.choice([3, 4, 6, 8]))
        results = [self.expr(kind, names, 1) for kind in self.random.sample(KINDS, 3)]
        held = [v for kind in ("vec", "int", "list", "box", "tlist") for v in names.by_kind[kind][-1:]]
        self.put(1, f"return {', '.join(results + held)}")
        return PRELUDE + "\n\n" + "\n".join(self.lines) + "\n"


class _Frozen(_Names):
    """Names of an enclosing function: read, never assigned."""

    def __init__(self, outer: _Names) -> None:
        super().__init__()
        self.outer = outer.by_kind
        self.by_kind = _Reading(outer.by_kind)

    def copy(self) -> _Names:
        return self


class _Reading(dict):
    def __init__(self, outer: dict[str, list[str]]) -> None:
        super().__init__({kind: list(names) for kind, names in outer.items()})

    def __missing__(self, kind: str) -> list[str]:
        return self.setdefault(kind, [])


def _with(names: _Names, kind: str, name: str) -> _Names:
    inner = names.copy()
    inner.add(kind, name)
    return inner


def generate(seed: int) -> str:
    """The program of a seed; the same text each time."""
    attempt = 0
    while True:
        text = _Generator(seed * 1000 + attempt).program()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                compile(text, "<program>", "exec")
        except SyntaxError:  # a walrus where there can't be one
            attempt += 1
        else:
            return text
