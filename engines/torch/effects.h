// Side effects of a run on the module, found in its graph.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>

namespace millpond {

struct Effects {
  // An attribute is set, or a tensor in an attribute is written to.
  bool stateful = false;
  // An input tensor is written to, or may be.
  bool writes_inputs = false;
  // Written tensors and containers of tensors, as attribute names from the module down.
  std::vector<std::vector<std::string>> written;
  // Some written tensors have no name, so any tensor may be written to.
  bool written_unknown = false;
  // Parts may run on LibTorch's own threads.
  bool threads = false;
};

// Analyses `forward` in evaluation mode. If the graph is ambiguous, the result assumes a side effect.
Effects effects_of(const torch::jit::Module &module);

} // namespace millpond
