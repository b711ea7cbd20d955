// Eight floats at a time: what AVX2 does with a vector, for the templates.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd.h"

namespace radixd {
namespace {

struct Avx2 {
  using Vec = __m256;
  using Ints = __m256i;
  static constexpr int kWidth = 8;
  using QueryTiles = Tiles<3, 2, 1>;  // queries scored, or mixed, together: what the registers hold

  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  // The end of an array of which `left` floats are left: always a whole vector here.
  static Vec load(const float* p, int /*left*/) { return load(p); }
  static void store(float* p, Vec v, int /*left*/) { store(p, v); }

  static Vec all(float x) { return _mm256_set1_ps(x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec size(Vec x) { return _mm256_andnot_ps(all(-0.0f), x); }
  static Vec nearest(Vec x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // x * 2^n, for whole n of which 2^n is a normal number.
  static Vec times_power_of_two(Vec x, Vec n) {
    const Ints power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return x * _mm256_castsi256_ps(_mm256_slli_epi32(power, 23));
  }
  // v in the first `count` lanes, `other` in the rest.
  static Vec first_lanes(int count, Vec v, Vec other) {
    const Ints places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const Ints kept = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), places);
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(kept));
  }

  // Pairs of lanes are combined always in the same order.
  static float sum(Vec v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }
  static float largest(Vec v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }
  // The sums of four vectors, each in the order ((0+1)+(2+3)) + ((4+5)+(6+7)).
  static void store_sums(float* p, Vec a, Vec b, Vec c, Vec d) {
    const Vec ab = add_pairs(a, b), cd = add_pairs(c, d);
    const Vec crossed = _mm256_permute_ps(_mm256_blend_ps(cd, ab, 0xcc), 0x4e);
    const Vec quads = _mm256_blend_ps(ab, cd, 0xcc) + crossed;
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
  }
  // Neighbouring lanes of a and of b added: a, b, a, b...  A blend costs less than a shuffle.
  static Vec add_pairs(Vec a, Vec b) {
    const Vec crossed = _mm256_permute_ps(_mm256_blend_ps(b, a, 0xaa), 0xb1);
    return _mm256_blend_ps(a, b, 0xaa) + crossed;
  }

  static Vec to_floats(Ints v) { return _mm256_cvtepi32_ps(v); }
  // A group's 32 integers, in four vectors, to their sum and to fewer bits.
  static Ints to_ints(Vec x) { return _mm256_cvtps_epi32(x); }
  static float sum(const Ints v[4]) {
    const Ints ab = _mm256_add_epi32(v[0], v[1]), cd = _mm256_add_epi32(v[2], v[3]);
    return sum(_mm256_cvtepi32_ps(_mm256_add_epi32(ab, cd)));
  }
  static void store_int16(void* p, const Ints v[4]) {
    _mm256_storeu_si256(static_cast<Ints*>(p), in_order(_mm256_packs_epi32(v[0], v[1])));
    _mm256_storeu_si256(static_cast<Ints*>(p) + 1, in_order(_mm256_packs_epi32(v[2], v[3])));
  }
  static void store_int8(void* p, const Ints v[4]) {
    const Ints low = in_order(_mm256_packs_epi32(v[0], v[1]));
    const Ints high = in_order(_mm256_packs_epi32(v[2], v[3]));
    _mm256_storeu_si256(static_cast<Ints*>(p), in_order(_mm256_packs_epi16(low, high)));
  }
  // Lanes of packed 64-bit quarters back in order.
  static Ints in_order(Ints packed) { return _mm256_permute4x64_epi64(packed, 0xd8); }

  // Four bytes, repeated: one quad of int8 or one pair of int16 for every output.
  static Ints repeat_word(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof(word));
    return _mm256_set1_epi32(word);
  }
};

}  // namespace
}  // namespace radixd
