// Eight floats at a time: the few operations that the AVX2 files share.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace radixd::avx2 {

using Vec = __m256;
using Ints = __m256i;

inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline Vec all(float x) { return _mm256_set1_ps(x); }
inline Ints load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const Ints*>(p)); }

// Four bytes, repeated: one quad of int8 or one pair of int16 for every output of a panel.
inline Ints repeat_word(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof(word));
  return _mm256_set1_epi32(word);
}

inline Vec load_halves(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

// Sums pairs of lanes always in the same order.
inline float sum(Vec v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

inline float largest(Vec v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

// Neighbouring lanes of a and of b added: a, b, a, b...  A blend costs less than a shuffle.
inline Vec add_pairs(Vec a, Vec b) {
  const Vec crossed = _mm256_permute_ps(_mm256_blend_ps(b, a, 0xaa), 0xb1);
  return _mm256_add_ps(_mm256_blend_ps(a, b, 0xaa), crossed);
}

// The sums of four vectors, each in the order ((0+1)+(2+3)) + ((4+5)+(6+7)).
inline __m128 sums(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = add_pairs(a, b), cd = add_pairs(c, d);
  const Vec crossed = _mm256_permute_ps(_mm256_blend_ps(cd, ab, 0xcc), 0x4e);
  const Vec quads = _mm256_add_ps(_mm256_blend_ps(ab, cd, 0xcc), crossed);
  return _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1));
}

// exp to about 1e-7 relative on [-87, 88]; below it, exp(-87).  Cody and Waite's reduction and the
// polynomial of the Cephes library (Moshier, 1992).
inline Vec exp(Vec x) {
  // In this order of operands NaN stays NaN.
  x = _mm256_min_ps(all(88.0f), _mm256_max_ps(all(-87.0f), x));
  const Vec n = _mm256_round_ps(_mm256_mul_ps(x, all(1.44269504f)),
                                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  Vec r = _mm256_fnmadd_ps(n, all(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, all(-2.12194440e-4f), r);
  Vec p = all(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, all(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, all(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, all(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, all(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, all(5.0000001201e-1f));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, all(1.0f)));
  const Ints power = _mm256_slli_epi32(
      _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

}  // namespace radixd::avx2
