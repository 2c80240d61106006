#include "guard.h"

#include <c10/util/Exception.h>

namespace {

thread_local std::string last_message;

void remember(const char *text) noexcept {
  try {
    last_message = text;
  } catch (...) {
    last_message.clear();
  }
}

} // namespace

namespace millpond {

int32_t caught() noexcept {
  try {
    throw;
  } catch (const NoDevice &error) {
    remember(error.why.c_str());
    return MPT_NO_DEVICE;
  } catch (const c10::Error &error) {
    remember(error.what_without_backtrace());
  } catch (const std::exception &error) {
    remember(error.what());
  } catch (...) {
    remember("an exception that is none of the standard's");
  }
  return MPT_THREW;
}

} // namespace millpond

MPT_EXPORT const char *millpond_torch_message(void) { return last_message.c_str(); }
