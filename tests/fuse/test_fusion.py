"""Which nodes become one kernel, and the reason where they don't."""

from programs import plan, reasons, steps

from firebrick.ir.kernels.tree import loops_of
from firebrick.ir.loops.program import Store

SOFTMAX = """
loops f
  input  x: f32[512, 128]
  temp   m: f32[512, 1], e: f32[512, 128], s: f32[512, 1]
  output y: f32[512, 128]
  n0 for i in 512
    m[i] = max(x[128*i + r] for r in 128)
  n1 for i in 512, j in 128
    e[128*i + j] = exp(x[128*i + j] - m[i])
  n2 for i in 512
    s[i] = sum(e[128*i + r] for r in 128)
  n3 for i in 512, j in 128
    y[128*i + j] = e[128*i + j] / s[i]
  out  y
"""

LAYER_NORM = """
loops f
  input  x: f32[512, 768], a: f32[512, 768], w: f32[768], b: f32[768]
  temp   h: f32[512, 768], m: f32[512], v: f32[512], r: f32[512]
  output y: f32[512, 768]
  n0 for i in 512, j in 768
    h[768*i + j] = x[768*i + j] + a[768*i + j]
  n1 for i in 512
    m[i] = sum(h[768*i + k] for k in 768) / 768.0
  n2 for i in 512
    v0 = h[768*i + k] - m[i]
    v[i] = sum(v0 * v0 for k in 768) / 768.0
  n3 for i in 512
    r[i] = 1.0 / sqrt(v[i] + 1e-05)
  n4 for i in 512, j in 768
    y[768*i + j] = ((h[768*i + j] - m[i]) * r[i]) * w[j] + b[j]
  out  y
"""


def test_softmax_is_one_kernel_that_keeps_exponentials():
    result = plan(SOFTMAX)
    assert steps(result) == [["n0", "n1", "n2", "n3"]]
    (kernel,) = result.kernels
    assert [p.written for p in kernel.params] == [False, True]
    assert "Scratch(name='t0', dtype='f32', size=128)" in repr(kernel.body)
    assert result.arena_bytes == 0


def test_layer_norm_with_residual_is_one_kernel():
    result = plan(LAYER_NORM)
    assert steps(result) == [["n0", "n1", "n2", "n3", "n4"]]
    assert set(result.steps[0].args) == {"x", "a", "w", "b", "y"}


def test_fusion_can_be_switched_off():
    assert steps(plan(SOFTMAX, fuse=False)) == [["n0"], ["n1"], ["n2"], ["n3"]]


def test_matmul_with_gelu_is_a_call_and_one_nest():
    result = plan("""
loops f
  input  x: f32[32, 64], w: f32[64, 128], b: f32[128]
  temp   h: f32[32, 128], e: f32[32, 128]
  output y: f32[32, 128]
  n0 extern h = aten::mm.out(x, w) into
  n1 for i in 32, j in 128
    e[128*i + j] = erf((h[128*i + j] + b[j]) * 0.70710677)
  n2 for i in 32, j in 128
    y[128*i + j] = ((h[128*i + j] + b[j]) * 0.5) * (e[128*i + j] + 1.0)
  out  y
""")
    assert steps(result) == [["n0"], ["n2"]], "what one nest reads is computed there"


def test_equal_layers_share_one_kernel():
    layers = "\n".join(
        f"""  n{3 * k} for i in 512, j in 128
    a{k}[128*i + j] = exp(a{k - 1 if k else ""}[128*i + j]) + c[j]
  n{3 * k + 1} extern b{k} = aten::sin.out(a{k}) into
  n{3 * k + 2} for i in 512, j in 128
    c{k}[128*i + j] = tanh(b{k}[128*i + j]) * c[j]"""
        for k in range(12)
    )
    temps = ", ".join(f"a{k}: f32[512, 128], b{k}: f32[512, 128]" for k in range(12))
    outs = ", ".join(f"c{k}: f32[512, 128]" for k in range(12))
    names = ", ".join(f"c{k}" for k in range(12))
    head = f"loops f\n  input  a: f32[512, 128], c: f32[128]\n  temp   {temps}\n  output {outs}\n"
    result = plan(f"{head}{layers}\n  out  {names}\n")
    assert len(result.kernels) == 2
    launched = [step.kernel for step in result.steps if hasattr(step, "kernel")]
    assert sorted(map(launched.count, set(launched))) == [1, 12]


def test_reader_at_another_address_stays_apart():
    result = plan("""
loops f
  input  x: f32[64, 64]
  output t: f32[64, 64], y: f32[64, 64]
  n0 for i in 64, j in 64
    t[64*i + j] = exp(x[64*i + j])
  n1 for i in 64, j in 64
    y[64*i + j] = t[64*i - j + 63] + x[64*i + j]
  out  t, y
""")
    assert steps(result) == [["n0"], ["n1"]]
    assert reasons(result)["n0", "n1"] == "t is read at another index than it is written"


def test_call_between_keeps_groups_apart():
    result = plan("""
loops f
  input  x: f32[64, 64]
  temp   t: f32[64, 64], u: f32[64, 64]
  output y: f32[64, 64]
  n0 for i in 64, j in 64
    t[64*i + j] = exp(x[64*i + j])
  n1 extern u = aten::mm.out(t, x) into
  n2 for i in 64, j in 64
    y[64*i + j] = u[64*i + j] + t[64*i + j]
  out  y
""")
    assert steps(result) == [["n0"], ["n1"], ["n2"]]
    assert reasons(result)["n0", "n2"] == "n1 must run between them"


def test_updates_stay_alone():
    result = plan("""
loops f
  input  x: f32[64], i: i64[64]
  output y: f32[8], z: f32[64]
  n0 for k in 8
    y[k] = f32(0.0)
  n1 for k in 64
    y[d, d := below(i[k], 8)] = atomic_add(x[k])
  n2 for k in 64
    z[k] = x[k] * 2.0
  out  y, z
""")
    assert steps(result) == [["n0"], ["n1"], ["n2"]]
    meet = "n1 updates in place at addresses that may meet"
    assert reasons(result) == {("n0", "n1"): meet, ("n1", "n2"): meet}


def test_views_that_split_axes_fuse():
    result = plan("""
loops f
  input  x: f32[128, 768]
  output t: f32[128, 768], y: f32[12, 128, 64]
  n0 for i in 128, j in 768
    t[768*i + j] = exp(x[768*i + j])
  n1 for h in 12, i in 128, d in 64
    y[8192*h + 64*i + d] = t[768*i + 64*h + d] * 2.0
  out  t, y
""")
    assert steps(result) == [["n0", "n1"]]


def test_pointwise_work_joins_a_reduction_of_everything():
    result = plan("""
loops f
  input  x: f32[1000000]
  temp   t: f32[1000000]
  output s: f32[]
  n0 for i in 1000000
    t[i] = exp(x[i])
  n1 once
    s[0] = sum(t[r] for r in 1000000)
  out  s
""")
    assert steps(result) == [["n1"]]
    assert result.steps[0].args == ("x", "s")


def test_loops_too_few_for_threads_stay_apart():
    result = plan("""
loops f
  input  x: f32[1000000]
  temp   s: f32[]
  output y: f32[1000000]
  n0 once
    s[0] = sum(x[r] for r in 1000000)
  n1 for i in 1000000
    y[i] = x[i] / s[0]
  out  y
""")
    assert steps(result) == [["n0"], ["n1"]]
    assert reasons(result)["n0", "n1"] == "the loops that they share have too few iterations to be shared out"


def test_siblings_with_the_same_loops_share_reads():
    result = plan("""
loops f
  input  x: f32[64, 100]
  output y: f32[64, 100], z: f32[64, 100]
  n0 for i in 64, j in 100
    y[100*i + j] = exp(x[100*i + j])
  n1 for i in 64, j in 100
    z[100*i + j] = tanh(x[100*i + j])
  out  y, z
""")
    assert steps(result) == [["n0", "n1"]]


def test_write_back_comes_after_reads():
    result = plan("""
loops f
  input  x: f32[64]
  output y: f32[64]
  n0 for i in 64
    y[i] = x[i] + 1.0
  n1 for i in 64
    x[i] = x[i] * 2.0
  out  y
""")
    assert steps(result) == [["n0", "n1"]]
    (kernel,) = result.kernels
    (loop,) = loops_of(kernel.body)
    written = dict(zip([p.name for p in kernel.params], result.steps[0].args, strict=True))
    assert [written[s.buffer] for s in loop.body if isinstance(s, Store)] == ["y", "x"]


def test_copies_and_dead_work_vanish():
    result = plan("""
loops f
  input  x: f32[64, 64]
  temp   t: f32[64, 64], u: f32[64, 64], dead: f32[64, 64]
  output y: f32[64, 64]
  n0 extern t = aten::mm.out(x, x) into
  n1 for i in 64, j in 64
    u[64*i + j] = t[64*i + j]
  n2 for i in 64, j in 64
    dead[64*i + j] = exp(t[64*i + j])
  n3 extern y = aten::mm.out(u, x) into
  out  y
""")
    assert steps(result) == [["n0"], ["n3"]]
    assert result.steps[1].args[0].buffer == "t"


def test_what_an_optimizer_does_to_one_tensor_is_one_kernel_however_many_there_are():
    count = 150
    names = [f"{kind}{k}" for kind in "gmp" for k in range(count)]
    lines = [f"  n{k} for i0 in 64\n    %{k}[i0] = m{k}[i0] + g{k}[i0]" for k in range(count)]
    lines += [f"  n{count + k} for i0 in 64\n    m{k}[i0] = %{k}[i0]" for k in range(count)]
    lines += [f"  n{2 * count + k} for i0 in 64\n    p{k}[i0] = p{k}[i0] * %{k}[i0]" for k in range(count)]
    temps = ", ".join(f"%{k}: f32[64]" for k in range(count))
    result = plan(
        f"loops graph\n  input  {', '.join(f'{n}: f32[64]' for n in names)}\n  temp   {temps}\n"
        + "\n".join(lines)
        + f"\n  out  {', '.join(n for n in names if n[0] in 'mp')}\n"
    )
    assert steps(result) == [[f"n{k}", f"n{count + k}", f"n{2 * count + k}"] for k in range(count)]


def test_nests_of_other_sizes_that_share_an_input_stay_apart():
    result = plan("""
loops f
  input  x: f32[64, 64]
  output y: f32[64, 64], z: f32[32, 32]
  n0 for i in 64, j in 64
    y[64*i + j] = exp(x[64*i + j])
  n1 for i in 32, j in 32
    z[32*i + j] = tanh(x[64*i + j])
  out  y, z
""")
    assert steps(result) == [["n0"], ["n1"]]
    assert reasons(result)["n0", "n1"] == "they share inputs, but not all loops"


def test_nests_without_a_common_buffer_are_not_even_compared():
    result = plan("""
loops f
  input  x: f32[64], y: f32[64]
  output u: f32[64], v: f32[64]
  n0 for i in 64
    u[i] = exp(x[i])
  n1 for i in 64
    v[i] = exp(y[i])
  out  u, v
""")
    assert steps(result) == [["n0"], ["n1"]]
    assert reasons(result) == {}
    assert len(result.kernels) == 1


def test_a_kernel_has_no_more_buffers_than_its_machine_takes():
    count = 40
    inputs = ", ".join(f"x{k}: f32[64]" for k in range(count))
    outputs = ", ".join(f"y{k}: f32[64]" for k in range(count))
    nests = "\n".join(f"  n{k} for i in 64\n    y{k}[i] = exp(x{k}[i]) + z[i]" for k in range(count))
    names = ", ".join(f"y{k}" for k in range(count))
    result = plan(f"loops f\n  input  z: f32[64], {inputs}\n  output {outputs}\n{nests}\n  out  {names}\n")
    sizes = [len(step.args) for step in result.steps]
    assert max(sizes) == 31 and sorted(n for s in steps(result) for n in s) == sorted(f"n{k}" for k in range(count))
