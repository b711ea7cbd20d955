// Which table of kernels this processor runs.  Asked here, as a file that is compiled for an instruction
// set may not even ask where that is missing.
#include "kernels.h"

namespace radixd {

const Kernels* best_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c"))
    return avx2_kernels();
#endif
  return nullptr;
}

}  // namespace radixd
