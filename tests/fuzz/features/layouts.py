"""Arguments of every layout, views of them, results whose strides tell how they were computed."""

from __future__ import annotations

from tests.fuzz.features.frame import Feature, Tensor, Writer
from tests.fuzz.features.statements import PAIRS, POINTWISE


def laid_out(w: Writer) -> None:
    """Two arguments of one shape in layouts of their own meet."""
    a = w.argument()
    b = w.argument(a.shape)
    w.bind(w.random.choice(PAIRS).format(a=a.name, b=b.name), a, grad=a.grad or b.grad)


def views(w: Writer, a: Tensor) -> list[tuple[str, tuple[int, ...]]]:
    """Texts of views of `a` with their shapes."""
    rank, shape = a.rank, a.shape
    found = [
        (f"{a.name}.unsqueeze(0)", (1, *shape)),
        (f"{a.name}[...]", shape),
        (f"{a.name}.flatten()", (_numel(shape),)),
    ]
    if rank == 0:
        return found
    dim = w.random.randrange(rank)
    rest = (*shape[:dim], *shape[dim + 1 :])
    found += [(f"{a.name}.select({dim}, 0)", rest), (f"{a.name}.unsqueeze({dim}).squeeze({dim})", shape)]
    found.append((f"{a.name}.expand(2, {', '.join(['-1'] * rank)})", (2, *shape)))
    if shape[dim] > 1:
        found.append(
            (f"{a.name}.narrow({dim}, 1, {shape[dim] - 1})", (*shape[:dim], shape[dim] - 1, *shape[dim + 1 :]))
        )
    if rank > 1:
        i, j = sorted(w.random.sample(range(rank), 2))
        turned = list(shape)
        turned[i], turned[j] = turned[j], turned[i]
        order = list(range(rank))
        w.random.shuffle(order)
        found += [
            (f"{a.name}.transpose({i}, {j})", tuple(turned)),
            (f"{a.name}.permute({order})", tuple(shape[d] for d in order)),
        ]
        found += [
            (f"{a.name}.transpose({i}, {j}).contiguous()", tuple(turned)),
            (f"{a.name}.movedim({i}, {j})", _moved(shape, i, j)),
        ]
        found.append((f"{a.name}.reshape({shape[0]}, -1)", (shape[0], _numel(shape[1:]))))
        found.append((f"{a.name}.flatten(0, 1)", (shape[0] * shape[1], *shape[2:])))
    return found


def _numel(shape: tuple[int, ...]) -> int:
    size = 1
    for s in shape:
        size *= s
    return size


def _moved(shape: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    sizes = list(shape)
    sizes.insert(j, sizes.pop(i))
    return tuple(sizes)


def view(w: Writer) -> None:
    a = w.tensor()
    text, shape = w.random.choice(views(w, a))
    w.bind(text, a, shape)


def equal_values(w: Writer) -> None:
    """Equal values of which some take another shape in place."""
    a = w.tensor()
    text = w.random.choice([*POINTWISE, "{a}.t()" if a.rank == 2 else "{a}[...]"]).format(a=a.name)
    names = [w.fresh() for _ in range(3)]
    lines = [f"{name} = {text}" for name in names]
    for name in w.random.sample(names, w.random.choice([1, 1, 2])):
        change = w.random.choice(["{n}.unsqueeze_(0)", "{n}.unsqueeze_(-1)", "{n}.squeeze_()", "{n}.swapaxes_(0, -1)", "{n}.transpose_(0, -1).unsqueeze_(1)",
                                  "torch.ops.aten.unsqueeze_({n}, 1)"]).format(n=name)  # fmt: skip
        lines.insert(w.random.randint(names.index(name) + 1, len(lines)), change)
    for line in sorted(lines, key=lambda line: "=" not in line) if w.random.random() < 0.3 else lines:
        w.put(line)
    w.returns(*names, f"{w.random.choice(names)} + 1")


def residual(w: Writer) -> None:
    """A view meets its own elementwise function; then another layout is asked for."""
    a = w.tensor()
    b = w.bind(w.random.choice(POINTWISE).format(a=a.name), a)
    c = w.bind(f"{a.name} + {b.name}", a)
    text, shape = w.random.choice(views(w, c))
    w.bind(text, c, shape)


def bits(w: Writer) -> None:
    """Complex numbers and views that carry the conjugate and the negative bit."""
    shape = w.random.choice([(3, 4), (2, 3, 4), (4, 4)])
    z = w.argument(shape, "complex64", grad=False)
    turned = (*shape[:-2], shape[-1], shape[-2])
    text, found = w.random.choice([
        ("{z}.conj().imag", shape), ("{z}.conj().imag + 1", shape), ("{z}.mH.imag", turned), ("{z}.mH.real", turned), ("{z}.conj().resolve_conj().imag", shape),
        ("{z}.conj().imag.resolve_neg()", shape), ("torch.view_as_real({z}.conj().resolve_conj())", (*shape, 2)), ("{z}.conj().imag[0:1]", (1, *shape[1:])),
        ("({z}.conj() * {z}).real", shape), ("{z}.mH.contiguous().imag", turned), ("torch._neg_view({z}.real)", shape), ("{z}.conj().imag.clone()", shape),
        ("torch._conj_physical({z}).imag", shape), ("({z}.mH + 1).imag", turned), ("{z}.conj().abs()", shape), ("{z}.H.imag" if len(shape) == 2 else "{z}.mT.imag", turned),
        ("{z}.conj().imag.mul_(2)", shape), ("torch.angle({z}.conj())", shape), ("{z}.conj().imag.T" if len(shape) == 2 else "{z}.conj().imag.mT", turned),
    ])  # fmt: skip
    got = w.bind(text.format(z=z.name), z, found, dtype="float32")
    if w.random.random() < 0.5:
        w.returns(
            w.random.choice(
                [
                    f"{got.name}.is_neg()",
                    f"{z.name}.conj()",
                    f"{z.name}.mH",
                    f"{got.name}.is_contiguous()",
                    f"{z.name}.conj().is_conj()",
                ]
            )
        )


def one_storage(w: Writer) -> None:
    """Arguments that are views of one storage, with a write through one of them now and then."""
    base, one, two = w.fresh("base"), w.fresh("a"), w.fresh("a")
    shape = (4, 4)
    w.before(f"{base} = given({w.random.randrange(90)} + call, 6, 6)")
    w.before(
        f"{one} = {base}[1:5, 1:5]",
        f"{two} = {base}{w.random.choice(['[1:5, 1:5].t()', '[:4, :4]', '[2:, 2:]', '[1:5, 1:5]', '[::2, :4].repeat(2, 1)[:4]'])}",
    )
    w.arguments += [one, two]
    tensors = [Tensor(one, shape), Tensor(two, shape)]
    w.tensors += tensors
    if w.random.random() < 0.6:
        w.put(
            w.random.choice(
                [
                    f"{one}.add_(1)",
                    f"{one}.mul_({two})",
                    f"{two}[0] = {one}[1]",
                    f"{one}.copy_({two} * 2)",
                    f"{two}.t().sub_(0.5)",
                ]
            )
        )
    w.bind(w.random.choice(PAIRS).format(a=one, b=two), tensors[0])
    w.observes(base)


def same_argument(w: Writer) -> None:
    """One tensor given twice, or a tensor and its transpose; another pair in another call."""
    a = w.argument((4, 4))
    name = w.fresh("a")
    w.before(
        f"{name} = {w.random.choice([a.name, f'{a.name}.t()', f'{a.name} if call < 2 else given(7, 4, 4)', f'{a.name}.detach()'])}"
    )
    w.arguments.append(name)
    b = Tensor(name, a.shape, a.dtype, a.grad)
    w.tensors.append(b)
    w.bind(w.random.choice(PAIRS).format(a=a.name, b=name), a)


ROWS = (
    Feature("laid_out", 6, laid_out), Feature("view", 8, view), Feature("residual", 3, residual), Feature("equal_values", 2, equal_values),
    Feature("bits", 3, bits),
    Feature("one_storage", 2, one_storage), Feature("same_argument", 1, same_argument),
)  # fmt: skip
