// opt::CompilationGroup: an operator that holds a subgraph, compiles it when it first runs, and runs it off the
// interpreter's stack. Here it holds matmuls and divisions by a constant; a division is folded into the matmul before.
#include "optimizer.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/utils/subgraph_utils.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

namespace opt {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Value;

static const auto group_kind = c10::Symbol::fromQualString("opt::CompilationGroup");
static std::atomic<int64_t> compile_count{0}, run_count{0};

int64_t compiles() { return compile_count; }
int64_t runs() { return run_count; }

static bool divides_by_constant(const Node* node) {
    return node->kind() == c10::aten::div && node->inputs().size() == 2 &&
           node->input(1)->node()->kind() == c10::prim::Constant &&
           !node->input(1)->type()->isSubtypeOf(*c10::TensorType::get());
}

static bool can_handle(const Node* node) {
    return node->kind() == c10::aten::matmul || divides_by_constant(node);
}

// One step of a compiled group: left @ right / divisor, or left / divisor.
struct Step {
    int left, right, out;
    double divisor;
};

struct Compiled {
    std::vector<Step> steps;
    std::vector<int> outputs;
    int slots;
};

static Compiled compile(const Graph& graph) {
    ++compile_count;
    Compiled compiled;
    std::unordered_map<const Value*, int> slot;
    for (const Value* input : graph.inputs()) slot.emplace(input, static_cast<int>(slot.size()));
    for (const Node* node : graph.nodes()) {
        if (node->kind() == c10::prim::Constant) continue;
        if (node->kind() == c10::aten::matmul) {
            int out = static_cast<int>(slot.size());
            slot.emplace(node->output(), out);
            compiled.steps.push_back({slot.at(node->input(0)), slot.at(node->input(1)), out, 1.0});
            continue;
        }
        double divisor = torch::jit::toIValue(node->input(1))->toScalar().toDouble();
        int left = slot.at(node->input(0));
        bool last = !compiled.steps.empty() && compiled.steps.back().out == left && node->input(0)->uses().size() == 1;
        if (last && compiled.steps.back().right >= 0) {
            compiled.steps.back().divisor *= divisor;
            slot.emplace(node->output(), left);
        } else {
            int out = static_cast<int>(slot.size()) + 1000;
            slot.emplace(node->output(), out);
            compiled.steps.push_back({left, -1, out, divisor});
        }
    }
    for (const Value* output : graph.outputs()) compiled.outputs.push_back(slot.at(output));
    compiled.slots = static_cast<int>(slot.size());
    return compiled;
}

static torch::jit::Operation make_operation(const Node* node) {
    std::shared_ptr<Graph> graph = node->g(c10::attr::Subgraph);
    struct State {
        std::once_flag once;
        Compiled compiled;
    };
    auto state = std::make_shared<State>();
    return [graph, state](Stack& stack) {
        // Compiled at the first run; later runs find it ready.
        std::call_once(state->once, [&] { state->compiled = compile(*graph); });
        ++run_count;
        const size_t count = graph->inputs().size();
        std::map<int, at::Tensor> values;
        for (size_t i = 0; i < count; ++i) {
            const c10::IValue& value = stack[stack.size() - count + i];
            if (value.isTensor()) values[static_cast<int>(i)] = value.toTensor();
        }
        torch::jit::drop(stack, count);
        for (const Step& step : state->compiled.steps) {
            const at::Tensor& left = values.at(step.left);
            if (step.right < 0) {
                values[step.out] = left / step.divisor;
                continue;
            }
            // (a @ b) / c as (a / c) @ b: the smaller operand takes the division.
            const at::Tensor& right = values.at(step.right);
            if (step.divisor == 1.0) values[step.out] = at::matmul(left, right);
            else if (left.numel() <= right.numel()) values[step.out] = at::matmul(left / step.divisor, right);
            else values[step.out] = at::matmul(left, right / step.divisor);
        }
        for (int output : state->compiled.outputs) stack.emplace_back(values.at(output));
    };
}

static torch::jit::RegisterOperators registered({torch::jit::Operator(
    group_kind, make_operation, c10::AliasAnalysisKind::PURE_FUNCTION)});

static void visit(Block* block) {
    for (auto it = block->nodes().rbegin(); it != block->nodes().rend();) {
        Node* node = *it++;
        for (Block* inner : node->blocks()) visit(inner);
        if (!can_handle(node)) continue;
        Node* group = torch::jit::SubgraphUtils::createSingletonSubgraph(node, group_kind);
        // Take in the producers that the group can run and that nothing else reads.
        bool grew = true;
        while (grew) {
            grew = false;
            for (Value* input : group->inputs()) {
                Node* producer = input->node();
                if (!can_handle(producer) || producer->owningBlock() != block || input->uses().size() != 1) continue;
                torch::jit::SubgraphUtils::mergeNodeIntoSubgraph(producer, group);
                grew = true;
                break;
            }
        }
        it = ++group->reverseIterator();
    }
}

void make_groups(std::shared_ptr<Graph>& graph) {
    visit(graph->block());
    torch::jit::EliminateDeadCode(graph);
}

}  // namespace opt
