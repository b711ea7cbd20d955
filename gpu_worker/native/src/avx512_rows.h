// What is done to one token's vector between two products.
#pragma once

#include "avx512_vector.h"
#include "kernels.h"

namespace radixd::avx512 {
namespace {

inline float inverse_rms(const float* x, int size, float eps) {
  Vec squares = none();
  for (int i = 0; i < size; i += 16) {
    const Vec v = load(x + i, lanes(size - i));
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  return 1.0f / __builtin_sqrtf(sum(squares) / float(size) + eps);
}

inline void rms_norm(const float* x, const float* weight, float* y, int size, float eps) {
  const Vec factor = all(inverse_rms(x, size, eps));
  for (int i = 0; i < size; i += 16) {
    const __mmask16 kept = lanes(size - i);
    const Vec scaled = _mm512_mul_ps(load(x + i, kept), factor);
    store(y + i, _mm512_mul_ps(scaled, load(weight + i, kept)), kept);
  }
}

inline void add_rms_norm(float* x, float* y, const float* weight, int size, float eps) {
  for (int i = 0; i < size; i += 16) {
    const __mmask16 kept = lanes(size - i);
    store(x + i, _mm512_add_ps(load(x + i, kept), load(y + i, kept)), kept);
  }
  rms_norm(x, weight, y, size, eps);
}

inline void silu_mul(const float* gate, float* y, int size) {
  for (int i = 0; i < size; i += 16) {
    const __mmask16 kept = lanes(size - i);
    const Vec x = load(gate + i, kept);
    const Vec e = exp(_mm512_sub_ps(none(), x));
    const Vec silu = _mm512_div_ps(x, _mm512_add_ps(all(1.0f), e));
    store(y + i, _mm512_mul_ps(silu, load(gate + size + i, kept)), kept);
  }
}

// A group's 32 floats to 16 integers of either half; gives the scale.
inline float round_group(const float* x, float most, Ints& a, Ints& b) {
  const Vec u = load(x), v = load(x + 16);
  const float size = largest(_mm512_max_ps(_mm512_abs_ps(u), _mm512_abs_ps(v)));
  const Vec factor = all(size > 0.0f ? most / size : 0.0f);
  a = _mm512_cvtps_epi32(_mm512_mul_ps(u, factor));
  b = _mm512_cvtps_epi32(_mm512_mul_ps(v, factor));
  return size / most;
}

inline void quantise(Format format, const float* x, int inputs, void* quants, float* scales,
                     float* sums_out) {
  const bool wide = format == Format::kInt8;
  for (int g = 0; g < inputs / kGroup; ++g) {
    Ints a, b;
    const float scale = round_group(x + g * kGroup, wide ? 32767.0f : 127.0f, a, b);
    if (wide) {
      __m256i* out = static_cast<__m256i*>(quants) + 2 * g;
      _mm256_storeu_si256(out, _mm512_cvtepi32_epi16(a));
      _mm256_storeu_si256(out + 1, _mm512_cvtepi32_epi16(b));
    } else {
      __m128i* out = static_cast<__m128i*>(quants) + 2 * g;
      _mm_storeu_si128(out, _mm512_cvtepi32_epi8(a));
      _mm_storeu_si128(out + 1, _mm512_cvtepi32_epi8(b));
    }
    // Of the rounded values: the error then is w * (rounded - x), not minimum * (rounded - x) too.
    scales[g] = scale;
    sums_out[g] = scale * float(_mm512_reduce_add_epi32(_mm512_add_epi32(a, b)));
  }
}

}  // namespace
}  // namespace radixd::avx512
