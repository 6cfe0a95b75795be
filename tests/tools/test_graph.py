"""`firebrick graph`: the captured graph by module, with its kernels, refused fusions and rules, in every form."""

import json
import re
import shutil
import subprocess
import sys
import types
import xml.etree.ElementTree as ET

import pytest
import torch
from typer.testing import CliRunner

from firebrick.errors import ConfigError
from firebrick.tools import graph_files
from firebrick.tools.cli import app
from firebrick.tools.graph_files import Views
from firebrick.tools.graph_picture import _boxes, to_svg
from firebrick.tools.graph_view import Group, group_nodes, layers_of, show_view
from firebrick.tools.subject import Target, capture

MODEL = """
import torch
from transformers import BertConfig, BertModel
def make():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    config._attn_implementation = "eager"
    return BertModel(config).eval(), (torch.randint(0, 500, (1, 16)),)
"""


def small(fn, *args):
    return Target("small", fn, args)


def view_of(fn, *args):
    return Views(capture(small(fn, *args))).views[0]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "graphed_bert.py").write_text(MODEL)
    sys.path.insert(0, str(folder))
    yield Target.load("graphed_bert:make")
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def views(bert):
    return Views(capture(bert))


def steps_of(view, *names):
    return [node.steps for node in view.nodes if node.name in names]


def test_every_op_has_a_kernel_or_a_reason_for_having_none(views):
    (view,) = views.views
    calls = [node for node in view.nodes if node.kind == "call"]
    assert len(calls) > 60
    for node in calls:
        assert node.role in ("kernel", "library") if node.steps else node.role in ("view", "folded", "gone"), node
    assert all(step.nodes for step in view.steps)
    assert not [
        node for node in calls if node.op in ("linear", "layer_norm", "gelu", "softmax", "matmul") and not node.steps
    ]


def test_ops_of_one_kernel_share_its_step():
    norm = torch.nn.LayerNorm(32)
    view = view_of(lambda x, y: norm(torch.relu(x) + y), torch.randn(8, 32), torch.randn(8, 32))
    (relu,), (add,), (ln,) = (steps_of(view, name) for name in ("relu", "add", "layer_norm"))
    assert relu == add == ln == [0]
    assert view.steps[0].label.startswith("fused_relu_add_layer_norm tools/test_graph.py:")


def test_an_activation_folded_into_a_matmul_belongs_to_it():
    up = torch.nn.Linear(256, 256)
    view = view_of(lambda x: torch.nn.functional.gelu(up(x)), torch.randn(64, 256))
    assert steps_of(view, "linear") == steps_of(view, "gelu") == [[0]]
    assert view.steps[0].kind == "kernel"


def test_constant_work_is_folded_and_views_cost_nothing():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return (x.transpose(0, 1) @ torch.exp(self.w)).view(64)

    view = view_of(Scaled().eval(), torch.randn(8, 8))
    roles = {node.op: node.role for node in view.nodes}
    assert (roles["exp"], roles["transpose"], roles["view"]) == ("folded", "view", "view")


def test_refused_fusions_name_their_steps():
    def residual(x, y):
        z = x.sin()
        return z + z @ y

    text = show_view(view_of(residual, torch.randn(8, 8), torch.randn(8, 8)))
    assert re.search(r"^  s\d+ s\d+: s\d+ must run between them$", text, re.M)
    assert not re.search(r": n\d+", text)


def test_rules_are_marked_where_they_match(views):
    rules = {rule.name: rule for rule in views.views[0].rules}
    assert len(rules["merge_linears"].nodes) == 2
    assert not rules["merge_linears"].enabled
    attention = next(rule for name, rule in rules.items() if name.startswith("attention") and rule.nodes)
    by_id = {node.id: node for node in views.views[0].nodes}
    assert {"matmul", "softmax"} <= {by_id[i].op for i in attention.nodes[0]}


def test_groups_are_the_modules_in_program_order(views):
    tree = group_nodes(views.views[0])
    names = [child.title for child in tree.children if isinstance(child, Group)]
    assert names == ["embeddings · BertEmbeddings", "encoder · BertEncoder", "pooler · BertPooler"]
    leaves = [node.id for node in tree.leaves()]
    assert leaves == sorted(leaves) == [node.id for node in views.views[0].nodes]


def test_a_module_called_twice_is_two_groups():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

        def forward(self, x):
            return self.inner(torch.sin(self.inner(x)))

    view = Views(capture(Target("twice", Twice().eval(), (torch.ones(2, 4),)))).views[0]
    tree = group_nodes(view)
    assert [child.path for child in tree.children if isinstance(child, Group)] == ["inner", "inner"]
    for row, below in zip(layers_of(tree.children), layers_of(tree.children)[1:], strict=False):
        assert max(row) < max(below)


def test_a_submodule_is_found_with_or_without_the_targets_name(bert):
    for path in ("encoder.layer.1.attention", "graphed_bert:make.encoder.layer.1.attention"):
        part = bert.submodule(path)
        view = Views(capture(part)).views[0]
        assert view.classes[""] == "BertAttention"
        assert {node.op for node in view.nodes} >= {"linear", "layer_norm"}


def test_unknown_names_suggest_near_ones(bert):
    with pytest.raises(ConfigError, match=r"(?s)no module 'encoder.layr.0'.*encoder\.layer\.0"):
        bert.submodule("encoder.layr.0")
    with pytest.raises(ConfigError, match=r"(?s)unknown target 'brt'.*bert"):
        Target.load("brt")
    with pytest.raises(ConfigError, match="no script missing.py"):
        Target.load("missing.py")
    with pytest.raises(ConfigError, match="has no modules by name"):
        small(torch.sin, torch.ones(1)).submodule("a")


def test_a_module_that_is_not_called_is_an_error():
    net = torch.nn.Module()
    net.unused, net.forward = torch.nn.Linear(2, 2), lambda x: x + 1
    with pytest.raises(ConfigError, match="does not call its module 'unused'"):
        Target("net", net, (torch.ones(2),)).submodule("unused")


def test_nothing_captured_is_an_error():
    with pytest.raises(ConfigError, match="no graph was captured from small"):
        capture(small(len, [1]))


def broken(x):
    y = torch.sin(x)
    if y.sum() > 0:
        return y + 1
    return y - 1


def test_a_broken_target_shows_each_graph_and_the_break(tmp_path):
    views = Views(capture(small(broken, torch.ones(3))))
    assert len(views.views) == 2
    assert "graph break at" in views.text() and "test_graph.py" in views.text()
    assert [p.name for p in views.write(tmp_path / "g.svg")] == ["g.0.svg", "g.1.svg"]
    assert len(views.write(tmp_path / "g.html")) == 1


def test_the_page_needs_nothing_else(views):
    page = views.html().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|src=|@import|<link", page)
    data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.S)[1])
    assert len(data["graphs"][0]["nodes"]) == len(views.views[0].nodes)


def test_text_of_the_program_can_not_end_the_pages_script():
    def named(x):
        return x.sin()

    page = Views(capture(Target("</script><b>", named, (torch.ones(1),)))).html()
    assert page.count("</script>") == 2
    assert "<b>" not in page


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_the_page_shows_cards_and_edges_in_a_browser(views, tmp_path):
    (page,) = views.write(tmp_path / "g.html")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", "--dump-dom"]
    done = subprocess.run([*command, f"{page.as_uri()}#gelu"], capture_output=True, text=True, timeout=120)
    calls = len(views.views[0].nodes)
    assert len(re.findall(r'class="card item[^"]*"', done.stdout)) == calls
    assert len(re.findall(r"<path [^>]*d=", done.stdout)) > 10
    assert re.search(r"<h2>gelu</h2>", done.stdout)


def test_the_drawing_is_xml_and_its_boxes_do_not_overlap(views):
    ET.fromstring(to_svg(views.views[0]))
    top = _boxes(group_nodes(views.views[0]), 20)
    top.place(0, 0)
    for box in top.walk():
        inside = [b for row in box.rows for b in row]
        for k, a in enumerate(inside):
            assert box.x <= a.x and a.x + a.width <= box.x + box.width + 0.01
            assert box.y < a.y and a.y + a.height <= box.y + box.height + 0.01
            for b in inside[k + 1 :]:
                assert a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y


def test_the_onnx_file_computes_the_same_and_knows_kernels(bert, views, tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    (path,) = views.write(tmp_path / "g.onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model)
    names = [node.name for node in model.graph.node if node.name]
    assert len(set(names)) == len(names)
    facts = {
        p.key: p.value for node in model.graph.node if node.op_type == "LayerNormalization" for p in node.metadata_props
    }
    assert "layer_norm" in facts["step"] and facts["module"].endswith("LayerNorm")
    session = runtime.InferenceSession(path)
    found = session.run(None, {session.get_inputs()[0].name: bert.args[0].numpy()})
    torch.testing.assert_close(torch.tensor(found[0]), bert().last_hidden_state, rtol=1e-4, atol=1e-5)


def test_ops_without_an_onnx_form_can_still_be_looked_at(tmp_path):
    onnx = pytest.importorskip("onnx")
    views = Views(capture(small(lambda x: torch.cumsum(x, 0).sin(), torch.ones(4))))
    model = onnx.load(views.write(tmp_path / "g.onnx")[0])
    assert [(n.domain, n.op_type) for n in model.graph.node][:2] == [("aten", "cumsum"), ("", "Sin")]


def test_missing_onnx_and_unknown_kinds_are_named(tmp_path, monkeypatch):
    views = Views(capture(small(torch.nn.ReLU(), torch.ones(4))))
    with pytest.raises(ConfigError, match=r"(?s)can't write g.png.*\.html"):
        views.write(tmp_path / "g.png")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"(?s)onnx is missing.*pip install onnx"):
        views.write(tmp_path / "g.onnx")


def test_view_starts_netron_on_localhost_or_writes_the_page(monkeypatch):
    pytest.importorskip("onnx")
    views, started = Views(capture(small(torch.nn.ReLU(), torch.ones(4)))), []

    def start(file, address, browse):
        started.append((file, address))
        return "localhost", 8123

    monkeypatch.setitem(sys.modules, "netron", types.SimpleNamespace(start=start))
    assert graph_files.view_files(views, browse=False) == "http://localhost:8123"
    assert started[0][0].endswith(".onnx") and started[0][1][0] == "localhost"
    monkeypatch.setitem(sys.modules, "netron", None)
    assert graph_files.view_files(views, browse=False).startswith("file:///")


def test_the_command_prints_text_json_and_writes_files(bert, tmp_path):
    run = CliRunner().invoke
    part = ["graph", "graphed_bert:make", "--module", "encoder.layer.0.output"]
    text = run(app, part)
    assert text.exit_code == 0 and "LayerNorm: layer_norm" in text.stdout
    data = json.loads(run(app, [*part, "--json"]).stdout)
    assert data["graphs"][0]["steps"][0]["label"]
    names = [tmp_path / f"g.{kind}" for kind in ("txt", "svg", "html", "json")]
    assert run(app, [*part, *(a for n in names for a in ("-o", str(n)))]).exit_code == 0
    assert all(n.stat().st_size > 500 for n in names)
