"""What every random program starts with: names that its statements use."""

PRELUDE = """
import collections, contextlib, dataclasses, enum, functools, itertools, math, operator
import torch
import torch.nn.functional as F

COUNT = 0
TABLE = {"a": 1, "b": 2}
SEEN = []
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


class Manager:
    def __init__(self, log, name, swallow=()):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append("enter " + self.name)
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append("exit " + self.name + " " + (kind.__name__ if kind else "-"))
        return kind is not None and issubclass(kind, self.swallow)


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
"""
