// The kernel of the fused operator, and the Python face of the passes.
#include "optimizer.h"

#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

static at::Tensor add_relu(const at::Tensor& x, const at::Tensor& y, const at::Scalar& alpha) {
    bool plain = x.is_cpu() && y.is_cpu() && x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat &&
                 x.sizes() == y.sizes();
    if (!plain) return at::relu(at::add(x, y, alpha));
    at::Tensor a = x.contiguous(), b = y.contiguous();
    at::Tensor out = at::empty_like(a);
    const float *pa = a.const_data_ptr<float>(), *pb = b.const_data_ptr<float>();
    float* po = out.mutable_data_ptr<float>();
    const float scale = alpha.to<float>();
    at::parallel_for(0, a.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            float sum = pa[i] + scale * pb[i];
            po[i] = sum < 0.0f ? 0.0f : sum;  // keeps NaN, as relu does
        }
    });
    return out;
}

TORCH_LIBRARY(opt, library) { library.def("add_relu(Tensor x, Tensor y, Scalar alpha=1) -> Tensor"); }
TORCH_LIBRARY_IMPL(opt, CompositeExplicitAutograd, library) { library.impl("add_relu", add_relu); }

PYBIND11_MODULE(torchscript_pass, module) {
    module.doc() = "Graph passes for TorchScript: add + relu, add and div into addcdiv, and opt::CompilationGroup";
    module.def("enable", [] { opt::enable(true); }, "Run the passes whenever TorchScript optimizes a graph");
    module.def("disable", [] { opt::enable(false); });
    module.def("fuse_add_relu", [](std::shared_ptr<torch::jit::Graph> graph) { opt::fuse_add_relu(graph); });
    module.def("fuse_add_div", [](std::shared_ptr<torch::jit::Graph> graph) { opt::fuse_add_div(graph); });
    module.def("make_groups", [](std::shared_ptr<torch::jit::Graph> graph) { opt::make_groups(graph); });
    module.def("compiles", &opt::compiles);
    module.def("runs", &opt::runs);
}
