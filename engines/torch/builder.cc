// Writes modules for tests and benchmarks, which then need no Python.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>

#include "guard.h"

struct mpt_builder {
  torch::jit::Module module{"__torch__.Built"};
};

namespace {

using millpond::guarded;

// Resolves `fork`, which saved modules write for `torch.jit.fork`.
struct Names final : torch::jit::NativeResolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(const std::string &name, torch::jit::GraphFunction &function,
                                                         const torch::jit::SourceRange &at) override {
    if (name == "fork") {
      return torch::jit::SpecialFormValue::create(c10::prim::fork);
    }
    return NativeResolver::resolveValue(name, function, at);
  }
};

void add(mpt_builder &builder, const char *name, const at::Tensor &tensor, bool buffer) {
  if (buffer) {
    builder.module.register_buffer(name, tensor);
  } else {
    builder.module.register_parameter(name, tensor, false);
  }
}

} // namespace

MPT_EXPORT int32_t mpt_builder_new(mpt_builder **out) {
  return guarded([&] {
    *out = new mpt_builder;
    (*out)->module.register_attribute("training", c10::BoolType::get(), true);
  });
}

MPT_EXPORT int32_t mpt_builder_tensor(mpt_builder *builder, const char *name, int32_t dtype, const int64_t *dims,
                                      int32_t rank, int32_t buffer, void **data) {
  return guarded([&] {
    const auto options = at::TensorOptions(static_cast<c10::ScalarType>(dtype));
    const auto tensor = at::empty(at::IntArrayRef(dims, static_cast<size_t>(rank)), options);
    add(*builder, name, tensor, buffer != 0);
    *data = tensor.mutable_data_ptr();
  });
}

MPT_EXPORT int32_t mpt_builder_view(mpt_builder *builder, const char *name, const char *of, int64_t start,
                                    const int64_t *dims, int32_t rank, int32_t buffer) {
  return guarded([&] {
    const auto whole = builder->module.attr(of).toTensor().flatten();
    const at::IntArrayRef sizes(dims, static_cast<size_t>(rank));
    const auto view = whole.narrow(0, start, c10::multiply_integers(sizes)).view(sizes);
    add(*builder, name, view, buffer != 0);
  });
}

MPT_EXPORT int32_t mpt_builder_save(mpt_builder *builder, const char *source, const char *path) {
  return guarded([&] {
    builder->module.define(source, std::make_shared<Names>());
    builder->module.save(path);
  });
}

MPT_EXPORT void mpt_builder_drop(mpt_builder *builder) {
  (void)guarded([&] { delete builder; });
}
