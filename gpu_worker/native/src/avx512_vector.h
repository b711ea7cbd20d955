// Sixteen floats at a time: what AVX-512 does with a vector, for the templates.
#pragma once

#include "avx2_vector.h"

namespace radixd {
namespace {

struct Avx512 {
  using Vec = __m512;
  using Ints = __m512i;
  static constexpr int kWidth = 16;
  using QueryTiles = Tiles<6, 3, 2, 1>;  // queries scored, or mixed, together

  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  // The end of an array of which `left` floats are left; other lanes are 0.
  static Vec load(const float* p, int left) { return _mm512_maskz_loadu_ps(lanes(left), p); }
  static void store(float* p, Vec v, int left) { _mm512_mask_storeu_ps(p, lanes(left), v); }
  static __mmask16 lanes(int left) { return left >= 16 ? 0xffff : __mmask16((1u << left) - 1); }

  static Vec all(float x) { return _mm512_set1_ps(x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec size(Vec x) { return _mm512_abs_ps(x); }
  static Vec nearest(Vec x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec times_power_of_two(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }
  // v in the first `count` lanes, `other` in the rest.
  static Vec first_lanes(int count, Vec v, Vec other) {
    return _mm512_mask_mov_ps(other, lanes(count), v);
  }

  // Halves first, and these as AVX2 does.
  static __m256 low(Vec v) { return _mm512_castps512_ps256(v); }
  static __m256 high(Vec v) { return _mm512_extractf32x8_ps(v, 1); }
  static float sum(Vec v) { return Avx2::sum(low(v) + high(v)); }
  static float largest(Vec v) { return Avx2::largest(Avx2::max(low(v), high(v))); }
  // The sums of four vectors, each of fours of neighbours first, and then of these.
  static void store_sums(float* p, Vec a, Vec b, Vec c, Vec d) {
    const Vec ab = add_pairs(a, b), cd = add_pairs(c, d);
    const Vec crossed = _mm512_permute_ps(_mm512_mask_blend_ps(0xcccc, cd, ab), 0x4e);
    const Vec quads = _mm512_mask_blend_ps(0xcccc, ab, cd) + crossed;
    const __m256 y = low(quads) + high(quads);
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
  }
  // Neighbouring lanes of a and of b added: a, b, a, b...  A blend costs less than a shuffle.
  static Vec add_pairs(Vec a, Vec b) {
    const Vec crossed = _mm512_permute_ps(_mm512_mask_blend_ps(0xaaaa, b, a), 0xb1);
    return _mm512_mask_blend_ps(0xaaaa, a, b) + crossed;
  }

  static Vec to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
  // A group's 32 integers, in two vectors, to their sum and to fewer bits.
  static Ints to_ints(Vec x) { return _mm512_cvtps_epi32(x); }
  static float sum(const Ints v[2]) {
    return float(_mm512_reduce_add_epi32(_mm512_add_epi32(v[0], v[1])));
  }
  static void store_int16(void* p, const Ints v[2]) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v[0]));
    _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, _mm512_cvtepi32_epi16(v[1]));
  }
  static void store_int8(void* p, const Ints v[2]) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v[0]));
    _mm_storeu_si128(static_cast<__m128i*>(p) + 1, _mm512_cvtepi32_epi8(v[1]));
  }

  // Four bytes, repeated: one quad of int8 or one pair of int16 for every output.
  static Ints repeat_word(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof(word));
    return _mm512_set1_epi32(word);
  }
};

}  // namespace
}  // namespace radixd
