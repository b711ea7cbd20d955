// What is done to one token's vector between two products.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace radixd {
namespace {

template <class V>
inline float inverse_rms(const float* x, int size, float eps) {
  typename V::Vec squares{};
  for (int i = 0; i < size; i += V::kWidth) {
    const auto v = V::load(x + i, size - i);
    squares = V::fma(v, v, squares);
  }
  return 1.0f / __builtin_sqrtf(V::sum(squares) / float(size) + eps);
}

template <class V>
void rms_norm(const float* x, const float* weight, float* y, int size, float eps) {
  const auto factor = V::all(inverse_rms<V>(x, size, eps));
  for (int i = 0; i < size; i += V::kWidth) {
    const int left = size - i;
    V::store(y + i, V::load(x + i, left) * factor * V::load(weight + i, left), left);
  }
}

template <class V>
void add_rms_norm(float* x, float* y, const float* weight, int size, float eps) {
  for (int i = 0; i < size; i += V::kWidth) {
    const int left = size - i;
    V::store(x + i, V::load(x + i, left) + V::load(y + i, left), left);
  }
  rms_norm<V>(x, weight, y, size, eps);
}

template <class V>
void silu_mul(const float* gate, float* y, int size) {
  for (int i = 0; i < size; i += V::kWidth) {
    const int left = size - i;
    const auto x = V::load(gate + i, left);
    const auto silu = x / (V::all(1.0f) + exp<V>(-x));
    V::store(y + i, silu * V::load(gate + size + i, left), left);
  }
}

template <class V>
void quantise(Format format, const float* x, int inputs, void* quants, float* scales, float* sums) {
  constexpr int kVectors = kGroup / V::kWidth;
  const bool wide = format == Format::kInt8;
  const float most = wide ? 32767.0f : 127.0f;
  for (int g = 0; g < inputs / kGroup; ++g) {
    typename V::Vec v[kVectors], top;
    UNROLL for (int i = 0; i < kVectors; ++i) {
      v[i] = V::load(x + g * kGroup + i * V::kWidth);
      top = i == 0 ? V::size(v[i]) : V::max(top, V::size(v[i]));
    }
    const float size = V::largest(top), scale = size / most;
    const auto factor = V::all(size > 0.0f ? most / size : 0.0f);
    typename V::Ints whole[kVectors];
    UNROLL for (int i = 0; i < kVectors; ++i) whole[i] = V::to_ints(v[i] * factor);
    if (wide)
      V::store_int16(static_cast<int16_t*>(quants) + g * kGroup, whole);
    else
      V::store_int8(static_cast<int8_t*>(quants) + g * kGroup, whole);
    // Of the rounded values: the error then is w * (rounded - x), not minimum * (rounded - x) too.
    scales[g] = scale;
    sums[g] = scale * V::sum(whole);
  }
}

}  // namespace
}  // namespace radixd
