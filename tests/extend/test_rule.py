"""Rewrite rules find their pattern in every spelling and refuse what they can't do exactly."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from firebrick.config import Config
from firebrick.errors import PassError
from firebrick.extend import Context, PassReport, apply_passes, rule, set_fake_values, trace_torch
from firebrick.trace import trace_inference

LENIENT = Config(strict=False)


def graph_of(fn, *inputs):
    return set_fake_values(fx.symbolic_trace(fn), inputs)


def trace_aten(fn, inputs):
    return trace_inference(trace_torch(fn, len(inputs)), inputs, Config()).gm


def apply(step, fn, *inputs, aten=False, verify=True):
    """Apply a rule to `fn`; check that the results stay; return the rewritten graph and the report."""
    gm = trace_aten(fn, inputs) if aten else graph_of(fn, *inputs)
    (report,) = apply_passes(gm, [step], trace=trace_aten, verify=verify)
    gm.recompile()
    gm.graph.lint()
    wanted, found = fn(*inputs), gm(*inputs)
    found = found if isinstance(wanted, (tuple, list)) else (found[0] if isinstance(found, tuple) else found)
    torch.testing.assert_close(found, wanted)
    return gm, report


def ops(gm):
    return [getattr(n.target, "__name__", n.target) for n in gm.graph.nodes if n.op.startswith("call")]


def div_before(x, w, c: float):
    return (x @ w) / c


def div_after(x, w, c: float):
    return x @ (w / c)


X, W = torch.randn(4, 8), torch.randn(8, 8)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: (x @ w) / 8,
        lambda x, w: torch.matmul(x, w).div(8.0),
        lambda x, w: torch.true_divide(x.matmul(w), 8),
        lambda x, w: torch.div(input=x @ w, other=8),
    ],
)
def test_every_spelling_matches(fn):
    gm, report = apply(rule(div_before, div_after), fn, X, W)
    assert report.applied == 1
    assert ops(gm) == ["truediv", "matmul"]
    assert "- matmul = " in str(report)


def test_scalar_must_be_a_number():
    _, report = apply(rule(div_before, div_after), lambda x, w: (x @ w) / x.sum(), X, W)
    assert report.applied == 0
    assert "no constant number (c)" in report.sites[0].reason


def test_commutative_ops_match_in_both_orders():
    step = rule(lambda x, y: torch.relu(x * 2 + y), lambda x, y: torch.relu(y + x + x), name="r")
    _, report = apply(step, lambda a, b: torch.relu(b + 2 * a), X, X + 1)
    assert report.applied == 1


def test_several_outputs():
    def before(x, a, b, c):
        return x @ a, x @ b, x @ c

    def after(x, a, b, c):
        return torch.cat([x @ a, x @ b, x @ c], -1).chunk(3, -1)

    def program(x, a, b, c):
        q = torch.relu(x @ a)
        return q + (x @ b) * 2, x @ c

    # chunk returns a tuple of proxies only when indexed, so the rule indexes it.
    def indexed(x, a, b, c):
        both = torch.cat([a, b, c], 1)
        joined = x @ both
        return joined[:, :8], joined[:, 8:16], joined[:, 16:]

    gm, report = apply(rule(before, indexed), program, X, W, W + 1, W + 2)
    assert report.applied == 1
    assert sum(n == "matmul" for n in ops(gm)) == 1


def test_a_cycle_is_refused():
    def before(x, a, b):
        return x @ a, x @ b

    def after(x, a, b):
        return x @ a, x @ b

    def program(x, a):
        first = x @ a
        return x @ (first.t() @ first)

    _, report = apply(rule(before, after), program, X, W)
    assert report.applied == 0


def test_shared_inner_value_is_refused_unless_asked():
    def program(x, w):
        y = x @ w
        return y / 4 + y

    _, report = apply(rule(div_before, div_after), program, X, W)
    assert "used outside of the pattern" in report.sites[0].reason
    _, report = apply(rule(div_before, div_after, keep_shared=True), program, X, W)
    assert report.applied == 1


def test_in_place_writes_between_are_refused():
    def program(x, w):
        x = x + 1
        y = x @ w
        x.add_(1)
        return y / 4 + x

    _, report = apply(rule(div_before, div_after), program, X, W)
    assert "writes in place" in report.sites[0].reason


def test_predicate_gives_its_reason():
    step = rule(div_before, div_after, where=lambda c, w: "too big" if c > 10 else w.dim() == 2)
    _, report = apply(step, lambda x, w: (x @ w) / 3 + (x @ w) / 30, X, W)
    assert report.applied == 1
    assert [s.reason for s in report.sites if not s.applied] == ["too big"]


def test_views_that_cancel_are_looked_through():
    def before(x, w, c: float):
        return torch.softmax((x @ w) / c, -1)

    def after(x, w, c: float):
        return torch.softmax(x @ (w / c), -1)

    def program(x, w):
        return torch.softmax(((x @ w).view(2, 2, 8).reshape(4, 8)) / 4, -1)

    _, report = apply(rule(before, after), program, X, W)
    assert report.applied == 1


def test_views_move_behind_pointwise_ops():
    def program(x, w):
        return (x @ w).view(2, 2, 8).transpose(0, 1) / 4

    gm, report = apply(rule(div_before, div_after), program, X, W)
    assert report.applied == 1
    assert ops(gm) == ["truediv", "matmul", "view", "transpose"]


def test_views_before_other_ops_are_not_looked_through():
    def before(x):
        return torch.softmax(torch.relu(x), -1)

    _, report = apply(rule(before, before), lambda x: torch.softmax(torch.relu(x).t(), -1), X)
    assert report.applied == 0
    assert "stands between" in report.sites[0].reason


def test_casts_are_looked_through_when_asked():
    def program(x, w):
        return (x @ w).to(torch.float64) / 4

    _, report = apply(rule(div_before, div_after), program, X, W)
    assert report.applied == 0
    gm = graph_of(program, X, W)
    (report,) = apply_passes(gm, [rule(div_before, div_after, through=("views", "casts"))])
    assert report.applied == 1


def test_patterns_match_after_decomposition():
    def before(x, w, b, c: float):
        return F.linear(x, w, b) / c

    def after(x, w, b, c: float):
        return F.linear(x, w / c, b / c)

    examples = [torch.randn(5, 3, 7), torch.randn(11, 7), torch.randn(11)]
    step = rule(before, after, level="aten", examples=examples)
    gm, report = apply(step, lambda x, w, b: (F.linear(x, w, b) / 8).relu(), torch.randn(2, 4, 8), W, W[0], aten=True)
    assert report.applied == 1, report


def test_gelu_is_found_after_decomposition():
    step = rule(lambda x: F.gelu(x), lambda x: F.relu(x), name="g", level="aten", examples=[X], tolerance=1.0)
    gm = trace_aten(lambda x: F.gelu(x), [X])
    (report,) = apply_passes(gm, [step], trace=trace_aten)
    assert report.applied == 1


def test_a_rule_that_never_ends_is_named():
    step = rule(lambda x: torch.relu(x), lambda x: torch.relu(x), name="endless", repeat=True)
    gm = graph_of(lambda x: torch.relu(x), X)
    with pytest.raises(PassError, match="rule endless still matches"):
        step.apply(gm, Context())


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (lambda x, w, c: x @ (w / -c), "is off by"),
        (lambda x, w, c: (x @ (w / c)).double().float().half(), "replacement gives float16"),
        (lambda x, w, c: (x @ (w / c)).t(), "replacement gives"),
    ],
)
def test_wrong_replacements_are_not_applied(after, reason):
    gm = graph_of(lambda x, w: (x @ w) / 4, X, W)
    wanted = gm(X, W)
    step = rule(div_before, after, name=f"wrong {reason}")
    if "off" in reason:
        with pytest.warns(UserWarning, match="is wrong"):
            (report,) = apply_passes(gm, [step], config=LENIENT, verify=True)
    else:
        (report,) = apply_passes(gm, [step], config=LENIENT, verify=True)
    assert report.applied == 0
    assert reason in report.sites[0].reason
    gm.recompile()
    torch.testing.assert_close(gm(X, W), wanted)


def test_pattern_errors_are_named():
    with pytest.raises(PassError, match="writes in place"):
        rule(lambda x: torch.relu_(x), lambda x: x, name="p").run(graph_of(lambda x: torch.relu(x), X))
    with pytest.raises(PassError, match="must return tensors"):
        rule(lambda x: x, lambda x: x, name="p").run(graph_of(lambda x: torch.relu(x), X))
    with pytest.raises(PassError, match="look through"):
        rule(lambda x: x, lambda x: x, through=("walls",))
    assert isinstance(Context().report, PassReport)
