// Copies of a module with their own state. They share everything that a run does not change.
#pragma once

#include <unordered_set>

#include <ATen/core/ivalue.h>

#include "effects.h"

namespace millpond {

using Storages = std::unordered_set<c10::StorageImpl *>;

// Returns the memory that runs of `module` write to.
Storages written_storages(const torch::jit::Module &module, const Effects &effects);

// Copies the module `object` and its submodules. Tensors in `written` memory are copied (tensors that shared memory share
// the copy), containers are copied completely, all other tensors are shared.
c10::intrusive_ptr<c10::ivalue::Object> fork_object(c10::ivalue::Object &object, const Storages &written);

} // namespace millpond
