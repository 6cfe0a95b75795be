#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <memory>

namespace opt {

void fuse_add_relu(std::shared_ptr<torch::jit::Graph>& graph);
void fuse_add_div(std::shared_ptr<torch::jit::Graph>& graph);
void make_groups(std::shared_ptr<torch::jit::Graph>& graph);
void enable(bool on);

// How often a group was compiled and how often one ran, for tests.
int64_t compiles();
int64_t runs();

}  // namespace opt
