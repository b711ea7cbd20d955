// The table of kernels for x86-64 with AVX2, FMA and F16C; compiled with those switched on.
#include "kernels.h"

#if !defined(__x86_64__)

const radixd::Kernels* radixd::avx2_kernels() { return nullptr; }

#else

#include "attention_kernels.h"
#include "avx2_products.h"
#include "row_kernels.h"

namespace radixd {
namespace {

using Vec = Avx2::Vec;
using Ints = Avx2::Ints;

void rotate(float* head, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  for (int d = 0; d < half; d += 8) {
    const Vec a = Avx2::load(head + d), b = Avx2::load(head + half + d);
    const Vec c = Avx2::load(cos + d), s = Avx2::load(sin + d);
    Avx2::store(head + d, _mm256_fmsub_ps(a, c, b * s));
    Avx2::store(head + half + d, _mm256_fmadd_ps(b, c, a * s));
  }
}

float to_int8(const float* x, int size, int8_t* out) {
  Vec top{};
  for (int i = 0; i < size; i += 8) top = Avx2::max(top, Avx2::size(Avx2::load(x + i)));
  const float most = Avx2::largest(top);
  const Vec factor = Avx2::all(most > 0.0f ? 127.0f / most : 0.0f);
  for (int i = 0; i < size; i += 8) {
    const Ints whole = Avx2::to_ints(Avx2::load(x + i) * factor);
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + i), _mm_packs_epi16(words, words));
  }
  return most / 127.0f;
}

void from_int8(const int8_t* x, float scale, int size, float* out) {
  for (int i = 0; i < size; i += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x + i));
    Avx2::store(out + i, Avx2::to_floats(_mm256_cvtepi8_epi32(bytes)) * Avx2::all(scale));
  }
}

constexpr Kernels kTable = {
    .name = "avx2",
    .product = product<Avx2Panel>,
    .quantise = quantise<Avx2>,
    .rms_norm = rms_norm<Avx2>,
    .add_rms_norm = add_rms_norm<Avx2>,
    .silu_mul = silu_mul<Avx2>,
    .rotate = rotate,
    .attend = attend<Avx2>,
    .merge = merge<Avx2>,
    .finish = finish<Avx2>,
    .to_int8 = to_int8,
    .from_int8 = from_int8,
};

}  // namespace

const Kernels* avx2_kernels() { return &kTable; }

}  // namespace radixd

#endif
