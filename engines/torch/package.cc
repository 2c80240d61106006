// Packages of AOTInductor: a model compiled to a shared library.

#include <dlfcn.h>

#include <c10/core/InferenceMode.h>

#include "device.h"
#include "guard.h"
#include "module.h"

MPT_EXPORT int32_t mpt_package_load(const char *path, int32_t cuda, mpt_module **out) {
  return millpond::guarded([&] {
    // A package asks for libtorch.so, which in the wheel does nothing but ask for all of CUDA. An empty library of that
    // name lies beside this one; once it is open, the package finds it by name.
    TORCH_CHECK(dlopen("libtorch.so", RTLD_NOW | RTLD_LOCAL) != nullptr, "the empty libtorch.so is missing beside ",
                "libmillpond_torch.so");
    const c10::InferenceMode inference;
    auto common = std::make_shared<millpond::Common>();
    common->device = millpond::device_of(cuda);
    common->package = std::make_unique<torch::inductor::AOTIModelPackageLoader>(
        path, "model", /*run_single_threaded=*/true, /*num_runners=*/1, static_cast<c10::DeviceIndex>(cuda));
    *out = new mpt_module{std::move(common), std::nullopt};
  });
}
