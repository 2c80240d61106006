// AOTInductor packages: a model compiled to a shared library.

#include <dlfcn.h>

#include <c10/core/InferenceMode.h>

#include "device.h"
#include "guard.h"
#include "module.h"

namespace {

constexpr const char *kModel = "model";

// A package runs on the kind of device that it was compiled for. It does not notice tensors of another kind.
void check_device(const char *path, bool cuda) {
  const auto metadata = torch::inductor::AOTIModelPackageLoader::load_metadata_from_package(path, kModel);
  const auto known = metadata.find("AOTI_DEVICE_KEY");
  TORCH_CHECK(known != metadata.end(), "the package does not say which device it was compiled for");
  const std::string wanted = cuda ? "cuda" : "cpu";
  TORCH_CHECK(known->second == wanted, "the package was compiled for the device \"", known->second,
              "\", and is to run on \"", wanted, "\"");
}

} // namespace

MPT_EXPORT int32_t mpt_package_load(const char *path, int32_t cuda, mpt_module **out) {
  return millpond::guarded([&] {
    // A package needs libtorch.so, which in the wheel only links to all of CUDA. An empty library of that name lies
    // beside this one. Once it is open, the loader finds it by name.
    TORCH_CHECK(dlopen("libtorch.so", RTLD_NOW | RTLD_LOCAL) != nullptr, "the empty libtorch.so is missing beside ",
                "libmillpond_torch.so");
    const c10::InferenceMode inference;
    check_device(path, cuda >= 0);
    auto common = std::make_shared<millpond::Common>();
    common->device = millpond::device_of(cuda);
    // Compiled code does not say if it writes to its inputs. So each run gets copies.
    common->effects.writes_inputs = true;
    common->package = std::make_unique<torch::inductor::AOTIModelPackageLoader>(
        path, kModel, /*run_single_threaded=*/true, /*num_runners=*/1, static_cast<c10::DeviceIndex>(cuda));
    // Other streams read the loaded parameters.
    millpond::finish(common->device);
    *out = new mpt_module{std::move(common), std::nullopt, std::nullopt};
  });
}
