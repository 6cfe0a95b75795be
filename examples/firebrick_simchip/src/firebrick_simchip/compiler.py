"""From a claimed group of ATen ops to a program of chip commands."""

import operator
import threading

import torch

from firebrick.extend import SubgraphCompiler, call_of, value_of

__all__ = ["SimChip"]

BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "div"}
WITH_NUMBER = {"add": "add_scalar", "mul": "mul_scalar", "div": "div_scalar"}
UNARY = {"relu": "relu", "tanh": "tanh"}
MATMULS = ("mm", "bmm", "matmul", "addmm")
RESHAPES = ("view", "unsqueeze", "squeeze")


class SimChip(SubgraphCompiler):
    """Claims matmuls, a division by a constant after them, and pointwise ops of float32."""

    name = "simchip"
    dtypes = frozenset({torch.float32})
    devices = frozenset({"cpu"})
    contiguous = True
    tolerance = 1e-4

    def __init__(self, chip):
        self.chip = chip

    def supports(self, node):
        """One of the chip's kernels, a reshape, or the transposed weight of a matmul."""
        call = call_of(node)
        arguments = call.arguments
        other = arguments.get("other")
        if call.name in MATMULS:
            return "scaled addmm" if {"alpha", "beta"} & set(arguments) else True
        if call.name in BINARY:
            if set(arguments) != {"self", "other"} or not isinstance(arguments["self"], torch.fx.Node):
                return "a form of it that the chip lacks"
            return isinstance(other, torch.fx.Node) or call.name in WITH_NUMBER or "no such kernel with a number"
        if call.name == "gelu":
            return arguments.get("approximate") == "tanh" or "only the tanh form of gelu"
        if call.name == "transpose":
            return node.args[0].op == "get_attr" or "only weights can be transposed"
        return call.name in UNARY or call.name in RESHAPES or "no kernel for it"

    def compile(self, graph, example_inputs):
        """Load the weights and translate the nodes; a matmul and the division after it become one command."""
        return Program(self.chip, graph)


class Program:
    """A compiled group: weights stay on the chip, the rest is allocated for each call."""

    def __init__(self, chip, graph):
        self.chip, self.steps, self.weights = chip, [], {}
        self.inputs = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
        fused = {}
        for node in graph.graph.nodes:
            if node.op == "get_attr":
                weight = getattr(graph, node.target).detach()
                for user in node.users:
                    if call_of(user) is not None and call_of(user).name == "transpose":
                        self.weights[user.name] = chip.write(weight.transpose(*user_dims(user)).contiguous().numpy())
                if any(call_of(u) is None or call_of(u).name != "transpose" for u in node.users):
                    self.weights[node.name] = chip.write(weight.contiguous().numpy())
            elif node.op == "output":
                self.outputs = [(fused.get(n.name, n.name), tuple(value_of(n).shape)) for n in node.args[0]]
            elif node.op == "call_function" and node.name not in self.weights and node.target is not operator.getitem:
                self._step(node, fused)
        last = {name: i for i, (_, names, *_rest) in enumerate(self.steps) for name in names}
        self.last = last
        chip.wait()
        self.lock = threading.Lock()

    def _step(self, node, fused):
        call = call_of(node)
        names = [fused.get(n.name, n.name) for n in node.all_input_nodes]
        shape = tuple(value_of(node).shape)
        if call.name == "div" and not isinstance(call.arguments["other"], torch.fx.Node):
            before = node.all_input_nodes[0]
            if (
                self.steps
                and self.steps[-1][0] == "matmul"
                and self.steps[-1][2] == names[0]
                and len(before.users) == 1
            ):
                _, inputs, output, shape, _ = self.steps.pop()
                self.steps.append(("matmul_div", inputs, output, shape, (call.arguments["other"],)))
                fused[node.name] = output
                return
        numbers = ()
        if call.name in RESHAPES:
            kernel = "reshape"
        elif call.name == "addmm":
            kernel, names = "matmul_add", [names_of(node, k, fused) for k in ("mat1", "mat2", "self")]
        elif call.name in MATMULS:
            kernel, names = (
                "matmul",
                [names_of(node, k, fused) for k in ("self", "other" if call.name == "matmul" else "mat2")],
            )
        elif call.name == "gelu":
            kernel = "gelu_tanh"
        elif call.name in BINARY and isinstance(call.arguments["other"], torch.fx.Node):
            kernel, names = BINARY[call.name], [names_of(node, k, fused) for k in ("self", "other")]
        elif call.name in BINARY:
            kernel, numbers = WITH_NUMBER[call.name], (call.arguments["other"],)
        else:
            kernel = UNARY[call.name]
        self.steps.append((kernel, names, node.name, shape, numbers))

    def __call__(self, *tensors):
        with self.lock:
            return self._run(tensors)

    def _run(self, tensors):
        chip, known = self.chip, dict(self.weights)
        owned = {}
        try:
            for name, tensor in zip(self.inputs, tensors, strict=True):
                known[name] = owned[name] = chip.write(tensor.detach().contiguous().numpy())
            for kernel, names, output, shape, numbers in self.steps:
                if kernel == "reshape":
                    known[output] = chip.reshaped(known[names[0]], shape)
                    continue
                known[output] = owned[output] = chip.allocate(shape)
                chip.run(kernel, [known[n] for n in names], known[output], numbers)
            return tuple(torch.from_numpy(chip.read(chip.reshaped(known[n], shape))) for n, shape in self.outputs)
        finally:
            for buffer in owned.values():
                chip.release(buffer)
            chip.wait()


def names_of(node, parameter, fused):
    """The name of the value that an op reads as `parameter`."""
    name = call_of(node).arguments[parameter].name
    return fused.get(name, name)


def user_dims(node):
    """The two dimensions that a transpose exchanges."""
    arguments = call_of(node).arguments
    return arguments["dim0"], arguments["dim1"]
