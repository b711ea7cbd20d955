// The table of kernels for x86-64 with AVX-512 (F, BW, DQ, VL, VNNI); compiled with those switched on.
#include "kernels.h"

#if !defined(__AVX512VNNI__)

const radixd::Kernels* radixd::avx512_kernels() { return nullptr; }

#else

#include "attention_kernels.h"
#include "avx512_products.h"
#include "row_kernels.h"

const radixd::Kernels* radixd::avx512_kernels() {
  static const Kernels table = [] {
    // Those of AVX2 stay where masks cost more than more lanes gain (rotate: half a head need not fill a
    // vector), and where only AVX2 has one (to_int8 and from_int8).
    Kernels t = *avx2_kernels();
    t.name = "avx512";
    t.product = product<Avx512Panels>;
    t.quantise = quantise<Avx512>;
    t.rms_norm = rms_norm<Avx512>;
    t.add_rms_norm = add_rms_norm<Avx512>;
    t.silu_mul = silu_mul<Avx512>;
    t.attend = attend<Avx512>;
    t.merge = merge<Avx512>;
    t.finish = finish<Avx512>;
    return t;
  }();
  return &table;
}

#endif
