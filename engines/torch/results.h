// Results of forward as a flat list of named tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace millpond {

struct Result {
  std::string name;
  at::Tensor tensor;
};

// Returns the names if the type determines them; a list or a dictionary may have any length.
std::optional<std::vector<std::string>> result_names(const c10::TypePtr &type);

// Returns the tensors of `value` of type `type`, contiguous and on the processor. Tensors of a GPU are copied to pinned
// memory and are valid once the stream has been waited for. If `shared`, the module may still use their memory, so they
// are copied.
std::vector<Result> results_of(const c10::IValue &value, const c10::TypePtr &type, bool shared);

// One output tensor.
at::Tensor outgoing(const at::Tensor &tensor, bool shared);

} // namespace millpond
