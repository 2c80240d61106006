// A loaded module: TorchScript or a compiled package.
#pragma once

#include <memory>
#include <mutex>
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
  // Default for a run without this argument.
  c10::IValue otherwise;
};

// Data that all forks of a module share.
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
  // The first run of a package folds its constants and loads its kernels, without a lock. Other runs wait for it.
  mutable std::once_flag first_run;
};

} // namespace millpond

struct mpt_module {
  std::shared_ptr<const millpond::Common> common;
  // Absent in a package.
  std::optional<torch::jit::Method> forward;
  // Stream on which a fork on a GPU is made and runs, on any thread. Work on one stream is done in order, and a state's
  // memory returns to the stream that it was allocated on. Without a value, the calling thread's stream is used. If parts
  // of a module run on LibTorch's threads, which use the default stream, the whole module does, since nothing would make
  // one stream wait for the other.
  std::optional<c10::Stream> stream;
};

struct mpt_answer {
  std::vector<millpond::Result> results;
};

struct mpt_tensor {
  at::Tensor tensor;
};
