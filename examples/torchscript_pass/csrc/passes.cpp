// Two graph rewrites and the switch that puts them into TorchScript's own pipeline.
#include "optimizer.h"

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/ir/subgraph_matcher.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/passes/subgraph_rewrite.h>

namespace opt {

using torch::jit::Graph;

void fuse_add_relu(std::shared_ptr<Graph>& graph) {
    torch::jit::SubgraphRewriter rewriter;
    rewriter.RegisterRewritePattern(
        R"IR(graph(%x, %y, %alpha):
               %sum = aten::add(%x, %y, %alpha)
               %out = aten::relu(%sum)
               return (%out))IR",
        R"IR(graph(%x, %y, %alpha):
               %out = opt::add_relu(%x, %y, %alpha)
               return (%out))IR");
    rewriter.runOnGraph(graph);
}

void fuse_add_div(std::shared_ptr<Graph>& graph) {
    torch::jit::SubgraphRewriter rewriter;
    // addcdiv(x, y, z, value) is x + value * y / z; add's alpha is that value.
    rewriter.RegisterRewritePattern(
        R"IR(graph(%x, %y, %z, %alpha):
               %quotient : Tensor = aten::div(%y, %z)
               %out = aten::add(%x, %quotient, %alpha)
               return (%out))IR",
        R"IR(graph(%x, %y, %z, %alpha):
               %out = aten::addcdiv(%x, %y, %z, %alpha)
               return (%out))IR");
    rewriter.runOnGraph(graph, [](const torch::jit::Match& match, const std::unordered_map<std::string, torch::jit::Value*>& values) {
        // The same text matches division by a number, which addcdiv does not take.
        return match.values_map.at(values.at("z"))->type()->isSubtypeOf(*c10::TensorType::get());
    });
}

static bool enabled = false;

static void run_all(std::shared_ptr<Graph>& graph) {
    if (!enabled) return;
    fuse_add_div(graph);
    fuse_add_relu(graph);
    make_groups(graph);
}

// Runs whenever TorchScript optimizes a graph; the flag makes it a switch.
static torch::jit::RegisterPass registered(run_all);

void enable(bool on) { enabled = on; }

}  // namespace opt
