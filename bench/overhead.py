"""What a call costs beyond its kernels: `x + 1`, and BERT-base with a compiler that returns a ready answer.

Run: python bench/overhead.py [--json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
from transformers import BertModel

import firebrick
from firebrick import _native
from firebrick.tools.models import build_model

ROUNDS = 7


def microseconds(call, count):
    """Median over rounds of the mean microseconds of a call."""
    call()
    means = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            call()
        means.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(means)


def answering(gm, example_inputs):
    """A compiler whose graphs cost nothing: they return what they returned the first time."""
    ready = []

    def call(*inputs):
        if not ready:
            ready.append(gm.forward(*inputs))
        return ready[0]

    return call


class Parameters(torch.nn.Module):
    """A module that adds one parameter of the many that it owns."""

    def __init__(self, count):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(1) for _ in range(count))

    def forward(self, x):
        return x + self.weights[0]


def guards_alone(model, inputs):
    """Median over rounds of one check of all guards of the entry that fits, in microseconds."""
    function = type(model).forward
    code = function.__code__
    values = {"self": model, "args": (), "kwargs": inputs}
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    frame = _native.Frame(function, tuple(values[name] for name in names))
    entry = next(entry for entry in _native.entries(code) if entry.plan.failing(frame) is None)
    means = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        passed = entry.plan.repeat(frame, 5000)
        means.append((time.perf_counter() - start) / 5000 * 1e6)
        assert passed == 5000
    return statistics.median(means)


def of_any_length(config, inputs):
    """A model with as many layers, inputs of another length than it is compiled for first, and the compiled model."""
    config.hidden_size, config.intermediate_size, config.vocab_size = 48, 48, 1000
    model = BertModel(config).eval()
    ids = inputs["input_ids"] % 1000
    rest = {key: value for key, value in inputs.items() if key != "input_ids"}
    compiled = firebrick.compile(model)
    compiled(input_ids=ids, **rest)
    longer = {key: torch.cat([value, value], 1) for key, value in {"input_ids": ids, **rest}.items()}
    compiled(**longer)
    return model, longer, compiled  # whose entries go with it


def compile_with(name):
    return firebrick.compile if name == "firebrick" else torch.compile


def measure(name):
    """All figures of one compiler, in microseconds."""
    make = compile_with(name)
    x = torch.randn(8)
    out = {}
    with torch.no_grad():
        out["x + 1, eager"] = microseconds(lambda: x + 1, 20000)
        add = make(lambda x: x + 1)
        out["x + 1, whole call"] = microseconds(lambda: add(x), 20000)
        model, inputs = build_model("bert")
        bert = make(model, backend=answering)
        out["BERT-base, guards and call"] = microseconds(lambda: bert(**inputs), 2000)
        if name == "firebrick":
            out["BERT-base, guards alone"] = guards_alone(model, inputs)
            model, longer, _kept = of_any_length(model.config, inputs)
            out["12 narrow layers of any length, guards alone"] = guards_alone(model, longer)
        for count in (10, 2000):
            module = make(Parameters(count), backend=answering)
            out[f"module of {count} parameters"] = microseconds(lambda module=module: module(x), 5000)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=("firebrick", "torch.compile"))
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only)))
        return
    results = {}
    for name in ("firebrick", "torch.compile"):
        command = [sys.executable, __file__, "--only", name]
        results[name] = json.loads(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        )
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'microseconds a call':42} {'firebrick':>12} {'torch.compile':>14}")
    for row in results["firebrick"]:
        other = results["torch.compile"].get(row)
        print(f"{row:42} {results['firebrick'][row]:12.2f} {'' if other is None else f'{other:.2f}':>14}")


if __name__ == "__main__":
    main()
