// Sixteen floats at a time: the few operations that the AVX-512 files share.
//
// In a namespace without a name, like all that is compiled for one instruction set: a copy of an inline
// function that the linker kept for another file would stop a processor that lacks the set.
#pragma once

#include <immintrin.h>

#include <cstdint>

// GCC leaves long loops over registers alone, and what they hold in memory.
#define UNROLL _Pragma("GCC unroll 16")
// Rows of a tile are to stay a loop where their addresses would take more registers than there are.
#define ONE_BY_ONE _Pragma("GCC unroll 1")

namespace radixd::avx512 {
namespace {

using Vec = __m512;
using Ints = __m512i;

inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline Vec all(float x) { return _mm512_set1_ps(x); }
inline Vec none() { return _mm512_setzero_ps(); }

// The lanes that an array of which `left` floats are left still fills; a load makes the others 0.
inline __mmask16 lanes(int left) { return left >= 16 ? 0xffff : __mmask16((1u << left) - 1); }
inline Vec load(const float* p, __mmask16 kept) { return _mm512_maskz_loadu_ps(kept, p); }
inline void store(float* p, Vec v, __mmask16 kept) { _mm512_mask_storeu_ps(p, kept, v); }

// Four bytes, repeated: one quad of int8 or one pair of int16 for every output.
inline Ints repeat_word(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Pairs of lanes are combined always in the same order.
inline float sum(Vec v) {
  __m256 y = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

inline float largest(Vec v) {
  __m256 y = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

inline float first(Vec v) { return _mm512_cvtss_f32(v); }

// Neighbouring lanes of a and of b added: a, b, a, b...  A blend costs less than a shuffle.
inline Vec add_pairs(Vec a, Vec b) {
  const Vec crossed = _mm512_permute_ps(_mm512_mask_blend_ps(0xaaaa, b, a), 0xb1);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, a, b), crossed);
}

// The sums of four vectors, each of fours of neighbours first, and then of these.
inline __m128 sums(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = add_pairs(a, b), cd = add_pairs(c, d);
  const Vec crossed = _mm512_permute_ps(_mm512_mask_blend_ps(0xcccc, cd, ab), 0x4e);
  const Vec quads = _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, ab, cd), crossed);
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(quads), _mm512_extractf32x8_ps(quads, 1));
  return _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
}

// exp to about 1e-7 relative on [-87, 88]; below it, exp(-87).  Cody and Waite's reduction and the
// polynomial of the Cephes library (Moshier, 1992).
inline Vec exp(Vec x) {
  // In this order of operands NaN stays NaN.
  x = _mm512_min_ps(all(88.0f), _mm512_max_ps(all(-87.0f), x));
  const Vec n = _mm512_roundscale_ps(_mm512_mul_ps(x, all(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  Vec r = _mm512_fnmadd_ps(n, all(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, all(-2.12194440e-4f), r);
  Vec p = all(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, all(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, all(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, all(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, all(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, all(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, all(1.0f)));
  return _mm512_scalef_ps(p, n);
}

}  // namespace
}  // namespace radixd::avx512
