// Which tables of kernels this processor runs.  Asked here, as a file that is compiled for an instruction
// set may not even ask where that is missing.
#include "kernels.h"

#include <cstring>

namespace radixd {
namespace {

bool has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

bool has_avx512() {
#if defined(__x86_64__)
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

}  // namespace

const Kernels* best_kernels() { return find_kernels("auto"); }

const Kernels* find_kernels(const char* name) {
  const Kernels* const by_speed[] = {has_avx512() ? avx512_kernels() : nullptr,
                                     has_avx2() ? avx2_kernels() : nullptr};
  for (const Kernels* kernels : by_speed)
    if (kernels != nullptr && (!std::strcmp(name, "auto") || !std::strcmp(name, kernels->name)))
      return kernels;
  return nullptr;
}

}  // namespace radixd
