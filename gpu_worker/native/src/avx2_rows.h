// What is done to one token's vector between two products.
#pragma once

#include <cmath>

#include "avx2_vector.h"
#include "kernels.h"

namespace radixd::avx2 {

inline float inverse_rms(const float* x, int size, float eps) {
  Vec squares = _mm256_setzero_ps();
  for (int i = 0; i < size; i += 8) squares = _mm256_fmadd_ps(load(x + i), load(x + i), squares);
  return 1.0f / std::sqrt(sum(squares) / float(size) + eps);
}

inline void rms_norm(const float* x, const float* weight, float* y, int size, float eps) {
  const Vec factor = all(inverse_rms(x, size, eps));
  for (int i = 0; i < size; i += 8)
    store(y + i, _mm256_mul_ps(_mm256_mul_ps(load(x + i), factor), load(weight + i)));
}

inline void add_rms_norm(float* x, float* y, const float* weight, int size, float eps) {
  for (int i = 0; i < size; i += 8) store(x + i, _mm256_add_ps(load(x + i), load(y + i)));
  rms_norm(x, weight, y, size, eps);
}

inline void silu_mul(const float* gate, float* y, int size) {
  for (int i = 0; i < size; i += 8) {
    const Vec x = load(gate + i);
    const Vec e = exp(_mm256_sub_ps(_mm256_setzero_ps(), x));
    const Vec silu = _mm256_div_ps(x, _mm256_add_ps(all(1.0f), e));
    store(y + i, _mm256_mul_ps(silu, load(gate + size + i)));
  }
}

inline void rotate(float* head, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  for (int d = 0; d < half; d += 8) {
    const Vec a = load(head + d), b = load(head + half + d), c = load(cos + d), s = load(sin + d);
    store(head + d, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
    store(head + half + d, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
  }
}

inline Vec size_of(Vec x) { return _mm256_andnot_ps(all(-0.0f), x); }

// A group's 32 floats to integers of at most `most` in size, in `whole`; gives the scale.
inline float round_group(const float* x, float most, Ints whole[4]) {
  Vec v[4], top = _mm256_setzero_ps();
  for (int i = 0; i < 4; ++i) {
    v[i] = load(x + 8 * i);
    top = _mm256_max_ps(top, size_of(v[i]));
  }
  const float size = largest(top);
  const Vec factor = all(size > 0.0f ? most / size : 0.0f);
  for (int i = 0; i < 4; ++i) whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], factor));
  return size / most;
}

// Lanes of packed 64-bit quarters back in order.
inline Ints in_order(Ints packed) { return _mm256_permute4x64_epi64(packed, 0xd8); }

inline void quantise(Format format, const float* x, int inputs, void* quants, float* scales,
                     float* sums_out) {
  const bool wide = format == Format::kInt8;
  for (int g = 0; g < inputs / kGroup; ++g) {
    Ints v[4];
    const float scale = round_group(x + g * kGroup, wide ? 32767.0f : 127.0f, v);
    const Ints low = in_order(_mm256_packs_epi32(v[0], v[1]));
    const Ints high = in_order(_mm256_packs_epi32(v[2], v[3]));
    if (wide) {
      Ints* out = reinterpret_cast<Ints*>(static_cast<int16_t*>(quants) + g * kGroup);
      _mm256_storeu_si256(out, low);
      _mm256_storeu_si256(out + 1, high);
    } else {
      _mm256_storeu_si256(reinterpret_cast<Ints*>(static_cast<int8_t*>(quants) + g * kGroup),
                          in_order(_mm256_packs_epi16(low, high)));
    }
    // Of the rounded values: the error then is w * (rounded - x), not minimum * (rounded - x) too.
    const Ints total = _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
    scales[g] = scale;
    sums_out[g] = scale * sum(_mm256_cvtepi32_ps(total));
  }
}

inline float to_int8(const float* x, int size, int8_t* out) {
  Vec top = _mm256_setzero_ps();
  for (int i = 0; i < size; i += 8) top = _mm256_max_ps(top, size_of(load(x + i)));
  const float most = largest(top);
  const Vec factor = all(most > 0.0f ? 127.0f / most : 0.0f);
  for (int i = 0; i < size; i += 8) {
    const Ints whole = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + i), factor));
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + i), _mm_packs_epi16(words, words));
  }
  return most / 127.0f;
}

inline void from_int8(const int8_t* x, float scale, int size, float* out) {
  for (int i = 0; i < size; i += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x + i));
    store(out + i, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), all(scale)));
  }
}

}  // namespace radixd::avx2
