"""What every random program starts with: names that its statements use."""

PRELUDE = """
import abc, collections, contextlib, dataclasses, enum, functools, itertools, math, operator, random, typing, warnings, weakref
import torch
import torch.nn.functional as F

COUNT = 0
TABLE = {"a": 1, "b": 2}
SEEN = []
RANDOM = random.Random(5)
GENERATOR = torch.Generator(torch.get_default_device()).manual_seed(5)
WEIGHT = torch.tensor([0.5, -1.0, 2.0])


class Box:
    scale = 2
    made = 0

    def __init__(self, n, t):
        self.n, self.t, self.items = n, t, [n]

    def bump(self, by=1):
        self.n += by
        self.items.append(self.n)
        return self

    @property
    def double(self):
        return self.t * self.scale

    @double.setter
    def double(self, value):
        self.t = value / self.scale

    @classmethod
    def make(cls, t, n=3):
        cls.made += 1
        return cls(n, t)

    @staticmethod
    def norm(t):
        return t.abs().sum()

    def __call__(self, x, k=1):
        return x * k + self.t

    def __add__(self, other):
        return type(self)(self.n + (other.n if isinstance(other, Box) else other), self.t)

    def __iadd__(self, other):
        self.n += other
        return self

    def __len__(self):
        return len(self.items)

    def __getitem__(self, key):
        return self.items[key]

    def __setitem__(self, key, value):
        self.items[key] = value

    def __iter__(self):
        return iter(self.items)

    def __contains__(self, value):
        return value in self.items

    def __eq__(self, other):
        return isinstance(other, Box) and self.n == other.n

    def __lt__(self, other):
        return self.n < other.n

    def __getattr__(self, name):
        if name.startswith("lazy_"):
            return len(name)
        raise AttributeError(name)


class Loud(Box):
    scale = 3

    def __init__(self, n, t):
        super().__init__(n + 1, t)
        self.loud = True

    def bump(self, by=2):
        super().bump(by)
        self.items.append(-1)
        return self


@dataclasses.dataclass
class Pair:
    left: int
    right: object = None

    def swapped(self):
        return Pair(self.right, self.left)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    value: int
    rest: tuple = ()

    @functools.cached_property
    def doubled(self):
        return self.value * 2


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name, 0)

    def __set__(self, instance, value):
        if value < 0:
            raise ValueError("negative")
        setattr(instance, self.name, value)


class Registry(type):
    def __new__(mcs, name, bases, space):
        made = super().__new__(mcs, name, bases, space)
        made.label = name.lower()
        return made

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.born = len(args)
        return made

    def __contains__(cls, item):
        return item == cls.label


class Guarded(metaclass=Registry):
    __slots__ = ("__dict__", "slot")
    value = Positive()

    def __init__(self, slot=None):
        self.slot = slot

    def __setattr__(self, name, value):
        if name == "sealed":
            raise AttributeError(name)
        object.__setattr__(self, name, value)

    def __bool__(self):
        return self.value > 1

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return isinstance(other, Guarded) and self.value == other.value

    def __rmul__(self, other):
        return other * (self.value + 1)

    def __matmul__(self, other):
        return other + self.value

    def __delitem__(self, key):
        SEEN.append(("del", key))


GUARDED = Guarded()


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    def twice(self):
        return self.area() * 2


class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side * self.side


class Wide(Square):
    def area(self):
        return super().area() + self.side


class Failure(Exception):
    def __init__(self, code, t=None):
        super().__init__(f"failure {code}")
        self.code, self.t = code, t


@functools.lru_cache(maxsize=8)
def cached(n):
    return n * n


@functools.singledispatch
def kind_of(value):
    return 0


@kind_of.register
def _(value: int):
    return 1 + value % 2


@kind_of.register(list)
def _(value):
    return 2 + len(value)


def delegate(n, log=None):
    got = yield from counting(n, log)
    yield -1
    return got


def echo(log):
    total = 0
    while True:
        try:
            got = yield total
        except ValueError:
            log.append("thrown")
            got = 10
        if got is None:
            return
        total += got


def echoed(values, log, throw=False):
    it = echo(log)
    next(it)
    out = [it.send(v) for v in values]
    if throw:
        out.append(it.throw(ValueError("x")))
    it.close()
    return sum(out)


def raises(kind, *args):
    raise kind(*args)


def fact(n):
    return 1 if n <= 1 else n * fact(n - 1)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k=2):
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.k, None


class Manager:
    def __init__(self, log, name, swallow=()):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append("enter " + self.name)
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append("exit " + self.name + " " + (kind.__name__ if kind else "-"))
        return kind is not None and issubclass(kind, self.swallow)


@torch.inference_mode()
def inferred(x, n=2):
    SEEN.append(torch.is_inference_mode_enabled())
    return x * n


@contextlib.contextmanager
def tracked(log, name):
    log.append("in " + name)
    try:
        yield len(log)
    finally:
        log.append("out " + name)


def counting(n, log=None):
    try:
        for i in range(n):
            yield i
    finally:
        if log is not None:
            log.append("closed")


def scaled(factor):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs) * factor
        return wrapper
    return decorate


def apply(fn, *args, **kwargs):
    return fn(*args, **kwargs)


def variadic(first, second=2, *rest, key=1, **options):
    return first + second * key + len(rest) + len(options)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])
        self.register_buffer("calls", torch.zeros(1))
        self.count = 0

    def forward(self, x, twice=False):
        self.count += 1
        for block in self.blocks:
            x = torch.relu(block(x))
        if twice:
            x = self.linear(x)
        return self.linear(x) + self.calls


torch.manual_seed(1)
NET = Net().eval()
SEQ = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.LayerNorm(3)).eval()
MODULES = torch.nn.ModuleDict({"a": torch.nn.Tanh(), "b": torch.nn.Linear(3, 3, bias=False)}).eval()
"""
