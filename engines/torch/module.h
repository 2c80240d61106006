// A loaded module: TorchScript or a compiled package.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/api/module.h>

#include "effects.h"
#include "millpond_torch.h"
#include "results.h"
#include "state.h"

namespace millpond {

// One argument of forward.
struct Argument {
  std::string name;
  std::string type;
  int32_t kind;
  bool optional;
  // What stands where a run leaves it out.
  c10::IValue otherwise;
};

// What all forks of a module have in common.
struct Common {
  std::vector<Argument> arguments;
  std::optional<std::vector<std::string>> results;
  c10::TypePtr result_type;
  std::string declaration;
  Effects effects;
  Storages written;
  at::Device device = at::kCPU;
  size_t arena_used = 0;
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> package;
};

} // namespace millpond

struct mpt_module {
  std::shared_ptr<const millpond::Common> common;
  // Absent in a package.
  std::optional<torch::jit::Method> forward;
  // Where a fork on a GPU is made and runs, whichever thread asks for it: work on one stream is done in order, and the
  // memory of a state goes back to the stream that it was taken on. Without one it is the asking thread's. A module
  // whose parts run on LibTorch's own threads, which are on the default stream, is there as a whole: nothing would have
  // one stream wait for the other.
  std::optional<c10::Stream> stream;
};

struct mpt_answer {
  std::vector<millpond::Result> results;
};

struct mpt_tensor {
  at::Tensor tensor;
};
