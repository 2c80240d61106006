// What a run of a module leaves behind, told from its graph.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>

namespace millpond {

struct Effects {
  // An attribute is set, or a tensor that is one is written to.
  bool stateful = false;
  // A tensor among the inputs is written to.
  bool writes_inputs = false;
  // Tensors that are written to, as names from the module down.
  std::vector<std::vector<std::string>> written;
  // Some that are written to could not be named: any may be.
  bool written_unknown = false;
  // Parts may run on LibTorch's own threads.
  bool threads = false;
};

// Looks at `forward` as it is in evaluation. Where the graph leaves doubt, the answer is the careful one.
Effects effects_of(const torch::jit::Module &module);

} // namespace millpond
