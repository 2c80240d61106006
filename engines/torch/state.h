// Copies of a module that differ in what a run changes and share the rest.
#pragma once

#include <unordered_set>

#include <ATen/core/ivalue.h>

#include "effects.h"

namespace millpond {

using Storages = std::unordered_set<c10::StorageImpl *>;

// The memory that runs of `module` write to.
Storages written_storages(const torch::jit::Module &module, const Effects &effects);

// A copy of the module `object` and all below it. Tensors in `written` memory are copied (those that shared memory
// share the copy), containers are copied whole, every other tensor is shared.
c10::intrusive_ptr<c10::ivalue::Object> fork_object(c10::ivalue::Object &object, const Storages &written);

} // namespace millpond
