#include "module.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Logging.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>

#include "device.h"
#include "guard.h"
#include "pool.h"

namespace {

using millpond::Argument;
using millpond::Common;
using millpond::guarded;

// Reads the caller's file. A failed read returns 0 bytes, which LibTorch reports as a damaged archive. The caller
// replaces that message by the real reason.
class Source final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit Source(const mpt_load &load) : load_(load) {}
  size_t size() const override { return load_.bytes; }
  size_t read(uint64_t offset, void *buffer, size_t bytes, const char *) const override {
    return load_.read(load_.context, offset, buffer, bytes);
  }

 private:
  mpt_load load_;
};

int32_t kind_of(const c10::TypePtr &type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return MPT_TENSOR;
    case c10::TypeKind::IntType:
      return MPT_INT;
    case c10::TypeKind::FloatType:
      return MPT_FLOAT;
    case c10::TypeKind::BoolType:
      return MPT_BOOL;
    case c10::TypeKind::OptionalType:
      return kind_of(type->containedType(0));
    default:
      return MPT_OTHER;
  }
}

std::vector<Argument> arguments_of(const c10::FunctionSchema &schema) {
  std::vector<Argument> arguments;
  for (size_t i = 1; i < schema.arguments().size(); i++) {
    const auto &argument = schema.arguments()[i];
    const bool absent = argument.type()->kind() == c10::TypeKind::OptionalType;
    arguments.push_back({argument.name(), argument.type()->annotation_str(), kind_of(argument.type()),
                         absent || argument.default_value().has_value(),
                         argument.default_value().value_or(c10::IValue())});
  }
  return arguments;
}

mpt_module *load_script(const mpt_load &load) {
  const c10::InferenceMode inference;
  auto common = std::make_shared<Common>();
  common->device = millpond::device_of(load.cuda);
  auto module = [&] {
    const millpond::PoolScope pool(load.arena, load.arena_bytes);
    // Loaded straight to its device: constants of a graph cannot be moved there later.
    auto loaded = torch::jit::load(std::make_shared<Source>(load), common->device, /*load_debug_files=*/false);
    common->arena_used = pool.used();
    return loaded;
  }();
  TORCH_CHECK(module.find_method("forward").has_value(), "the module has no method forward");
  module.eval();
  // Other streams read the loaded parameters.
  millpond::finish(common->device);
  common->effects = millpond::effects_of(module);
  common->written = millpond::written_storages(module, common->effects);
  auto forward = module.get_method("forward");
  const auto &schema = forward.function().getSchema();
  common->arguments = arguments_of(schema);
  common->result_type = schema.returns().at(0).type();
  common->results = millpond::result_names(common->result_type);
  common->declaration = c10::toString(schema);
  auto stream = common->effects.threads ? millpond::default_stream_of(common->device) : std::nullopt;
  return new mpt_module{std::move(common), std::move(forward), stream};
}

// LibTorch keeps this count for each thread. A thread that never set it uses all processors.
void use_threads(int32_t threads) {
  thread_local int32_t set = 0;
  if (set != threads) {
    // The first query makes LibTorch copy the count of another thread. It must not happen later.
    (void)at::get_num_threads();
    at::set_num_threads(threads);
    set = threads;
  }
}

c10::IValue argument(const mpt_value &value, const Argument &wanted, const Common &common) {
  if (value.given == 0) {
    return wanted.otherwise;
  }
  switch (wanted.kind) {
    case MPT_INT:
      return *static_cast<const int64_t *>(value.data);
    case MPT_FLOAT:
      return *static_cast<const double *>(value.data);
    case MPT_BOOL:
      return *static_cast<const uint8_t *>(value.data) != 0;
    default:
      break;
  }
  const auto options = at::TensorOptions(static_cast<c10::ScalarType>(value.dtype));
  const at::IntArrayRef sizes(value.dims, static_cast<size_t>(value.rank));
  if (c10::multiply_integers(sizes) == 0) {
    return at::empty(sizes, options.device(common.device));
  }
  // LibTorch takes a mutable pointer for every tensor. Code that writes to an input gets a copy.
  const auto borrowed = at::from_blob(const_cast<void *>(value.data), sizes, options);
  const auto tensor = millpond::incoming(borrowed, common.device);
  // A module with a state may keep the tensor, and so the caller's memory, after the run. So may a part that runs in
  // parallel, if forward fails or returns before it waits for the part.
  const auto &effects = common.effects;
  const bool own = common.device.is_cpu() && (effects.writes_inputs || effects.stateful || effects.threads);
  return own ? tensor.clone() : tensor;
}

std::vector<millpond::Result> run_package(const Common &common, const mpt_value *values, size_t count) {
  std::vector<at::Tensor> inputs;
  const Argument any{"", "", MPT_TENSOR, false, {}};
  for (size_t i = 0; i < count; i++) {
    inputs.push_back(argument(values[i], any, common).toTensor());
  }
  std::vector<at::Tensor> outputs;
  bool is_first = false;
  std::call_once(common.first_run, [&] {
    is_first = true;
    outputs = common.package->boxed_run(std::move(inputs));
    // Other streams read the folded constants. Packages of earlier versions of LibTorch do not wait for their kernels.
    millpond::finish(common.device);
  });
  if (!is_first) {
    outputs = common.package->boxed_run(std::move(inputs));
  }
  std::vector<millpond::Result> results;
  for (size_t i = 0; i < outputs.size(); i++) {
    // A constant of the package lies in memory that is freed with the package.
    const auto &output = outputs[i];
    const bool shared = output.use_count() > 1 || output.storage().use_count() > 1;
    results.push_back({"output_" + std::to_string(i), millpond::outgoing(output, shared)});
  }
  return results;
}

std::vector<millpond::Result> run_script(const mpt_module &module, const mpt_value *values, size_t count) {
  const auto &common = *module.common;
  TORCH_CHECK(count == common.arguments.size(), "forward takes ", common.arguments.size(), " arguments, not ", count);
  std::vector<c10::IValue> arguments;
  arguments.reserve(count + 1);
  for (size_t i = 0; i < count; i++) {
    arguments.push_back(argument(values[i], common.arguments[i], common));
  }
  const auto value = torch::jit::Method(*module.forward)(std::move(arguments));
  return millpond::results_of(value, common.result_type, common.effects.stateful);
}

std::vector<millpond::Result> run(const mpt_module &module, const mpt_value *values, size_t count) {
  const auto &common = *module.common;
  const c10::InferenceMode inference;
  const millpond::StreamScope stream(common.device, module.stream);
  auto results = module.forward ? run_script(module, values, count) : run_package(common, values, count);
  millpond::finish(common.device);
  return results;
}

} // namespace

MPT_EXPORT int32_t millpond_torch_abi(void) { return MILLPOND_TORCH_ABI; }

MPT_EXPORT const char *millpond_torch_version(void) { return TORCH_VERSION; }

MPT_EXPORT int32_t millpond_torch_start(void) {
  return guarded([] {
    millpond::open_cuda();
    millpond::install_allocator();
    at::set_num_threads(1);
    at::set_num_interop_threads(1);
    // Starts the thread of parts that run in parallel, which inherits the priority of this one. Otherwise the first such
    // run would start it, which may be the warm-up of a load at idle priority.
    at::launch([] {});
    // A module runs as compiled from the first request on. The profiling executor would observe the first run and
    // compile again in the second and for each new shape. Without fusion, which is off on a processor, it gains nothing.
    torch::jit::getProfilingMode() = false;
    // Stack traces are not used, and a client's bad request must not cost milliseconds of symbol lookup.
    c10::SetStackTraceFetcher([]() -> std::string { return ""; });
  });
}

MPT_EXPORT int32_t mpt_module_load(const mpt_load *load, mpt_module **out) {
  return guarded([&] {
    use_threads(1);
    *out = load_script(*load);
  });
}

MPT_EXPORT void mpt_module_describe(const mpt_module *module, mpt_description *out) {
  const auto &common = *module->common;
  *out = mpt_description{};
  out->arena_used = common.arena_used;
  out->stateful = common.effects.stateful ? 1 : 0;
  out->arguments = static_cast<int32_t>(common.arguments.size());
  out->results = common.results ? static_cast<int32_t>(common.results->size()) : -1;
  out->declaration = common.declaration.c_str();
}

MPT_EXPORT int32_t mpt_module_argument(const mpt_module *module, int32_t index, mpt_argument *out) {
  return guarded([&] {
    const auto &argument = module->common->arguments.at(static_cast<size_t>(index));
    *out = mpt_argument{argument.name.c_str(), argument.type.c_str(), argument.kind, argument.optional ? 1 : 0};
  });
}

MPT_EXPORT const char *mpt_module_result(const mpt_module *module, int32_t index) {
  const auto &names = module->common->results;
  const auto at = static_cast<size_t>(index);
  return names && at < names->size() ? (*names)[at].c_str() : nullptr;
}

MPT_EXPORT int32_t mpt_module_fork(const mpt_module *module, mpt_module **out) {
  return guarded([&] {
    TORCH_CHECK(module->forward.has_value(), "a package keeps no state");
    const c10::InferenceMode inference;
    const auto &common = *module->common;
    auto own = common.effects.threads ? millpond::default_stream_of(common.device) : millpond::stream_of(common.device);
    const millpond::StreamScope stream(common.device, own);
    auto object = millpond::fork_object(*module->forward->owner()._ivalue(), common.written);
    auto &function = module->forward->function();
    *out = new mpt_module{module->common, torch::jit::Method(std::move(object), &function), own};
  });
}

MPT_EXPORT void mpt_module_drop(mpt_module *module) {
  (void)guarded([&] { delete module; });
}

MPT_EXPORT int32_t mpt_run(const mpt_module *module, const mpt_value *values, size_t count, int32_t threads,
                           mpt_answer **out) {
  return guarded([&] {
    use_threads(threads);
    *out = new mpt_answer{run(*module, values, count)};
  });
}

MPT_EXPORT size_t mpt_answer_count(const mpt_answer *answer) { return answer->results.size(); }

MPT_EXPORT void mpt_answer_view(const mpt_answer *answer, size_t index, mpt_view *out) {
  // A failure leaves `out` as it was: the caller's view of a tensor without a type.
  (void)guarded([&] {
    const auto &result = answer->results.at(index);
    const auto &tensor = result.tensor;
    // A part of a zero tensor has an offset, which LibTorch adds to the null pointer.
    const bool has_memory = tensor.storage().data() != nullptr;
    *out = mpt_view{result.name.c_str(),
                    has_memory ? tensor.const_data_ptr() : nullptr,
                    tensor.nbytes(),
                    tensor.sizes().data(),
                    static_cast<int32_t>(tensor.dim()),
                    static_cast<int32_t>(tensor.scalar_type())};
  });
}

MPT_EXPORT mpt_tensor *mpt_answer_take(const mpt_answer *answer, size_t index) {
  mpt_tensor *taken = nullptr;
  (void)guarded([&] { taken = new mpt_tensor{answer->results.at(index).tensor}; });
  return taken;
}

MPT_EXPORT void mpt_answer_drop(mpt_answer *answer) {
  (void)guarded([&] { delete answer; });
}

MPT_EXPORT void mpt_tensor_drop(mpt_tensor *tensor) {
  (void)guarded([&] { delete tensor; });
}
