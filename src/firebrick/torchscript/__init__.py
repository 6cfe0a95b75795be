"""The TorchScript path: passes over torch.jit graphs, subgraph compilers behind them, and the way to Python and FX."""

from firebrick.extend import SubgraphCompiler
from firebrick.torchscript.python import ScriptModule, to_module, to_source
from firebrick.torchscript.rewriting import (
    OptimizedScript,
    ScriptPass,
    disable,
    enable,
    nodes_of,
    optimize,
    register_pass,
    registry,
    script_rule,
)
from firebrick.torchscript.subgraph import compile_subgraphs, to_fx

__all__ = [
    "OptimizedScript", "ScriptModule", "ScriptPass", "SubgraphCompiler", "compile_subgraphs", "disable", "enable",
    "nodes_of", "optimize", "register_pass", "registry", "script_rule", "to_fx", "to_module", "to_source",
]  # fmt: skip
