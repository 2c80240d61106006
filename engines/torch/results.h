// What forward gives, as a flat list of named tensors.
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

// The names, where the type alone tells them: a list or dictionary may have any length.
std::optional<std::vector<std::string>> result_names(const c10::TypePtr &type);

// The tensors of `value`, which is of `type`, contiguous and on the processor: those of a GPU on their way to pinned
// memory, there once the stream has been waited for. `shared` says that the module may go on using their memory, so that
// they are copied.
std::vector<Result> results_of(const c10::IValue &value, const c10::TypePtr &type, bool shared);

// One tensor as it goes out.
at::Tensor outgoing(const at::Tensor &tensor, bool shared);

} // namespace millpond
