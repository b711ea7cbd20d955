// Rows times a matrix in panels, for each format of the weights.
//
// A tile is one panel (two for float32) and up to six rows, so that a weight is unpacked once for
// all of them.  Along the inputs every row adds in the same order whatever the tile.
#pragma once

#include "avx2_vector.h"
#include "kernels.h"

namespace radixd::avx2 {

constexpr int kStretch = 64;  // inputs of a float product summed before they join the rest
constexpr int kAhead = 8;  // groups fetched ahead of their use

inline void prefetch(const uint8_t* p, int bytes) {
  for (int i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
}

// Sums of integers may be added in any order, and GCC picks one that keeps all summands alive until
// the end, in memory as there are not that many registers.  Half the speed; this forbids it.
inline void keep_order(Ints& sum) { asm("" : "+x"(sum)); }

// int4 x int8.  Nibbles are 0..15 and inputs at most 127 in size, so that the eight products of a
// lane in a group, at most 2 * 15 * 127 each, fit 16 bits.
template <int T>
inline void int4_tile(const uint8_t* panel, const Rows& x, int row, float* y, size_t ldy) {
  const int groups = x.inputs / kGroup;
  const int8_t* quants = static_cast<const int8_t*>(x.quants) + size_t(row) * x.inputs;
  const float* scales = x.scales + size_t(row) * groups;
  const float* sums = x.sums + size_t(row) * groups;
  const Ints low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  Vec acc[T];
  for (int t = 0; t < T; ++t) acc[t] = _mm256_setzero_ps();
  for (int g = 0; g < groups; ++g, panel += kInt4Bytes) {
    prefetch(panel + kAhead * kInt4Bytes, kInt4Bytes);
    Ints dot[T];
    for (int c = 0; c < 4; ++c) {
      const Ints both = load_bytes(panel + 32 * c);
      const Ints w0 = _mm256_and_si256(both, low);
      const Ints w1 = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
      for (int t = 0; t < T; ++t) {
        const int8_t* q = quants + size_t(t) * x.inputs + g * kGroup + 4 * c;
        const Ints p0 = _mm256_maddubs_epi16(w0, repeat_word(q));
        const Ints p1 = _mm256_maddubs_epi16(w1, repeat_word(q + 16));
        const Ints p = _mm256_add_epi16(p0, p1);
        dot[t] = c == 0 ? p : _mm256_add_epi16(dot[t], p);
        keep_order(dot[t]);
      }
    }
    const Vec scale = load_halves(panel + 128), minimum = load_halves(panel + 144);
    for (int t = 0; t < T; ++t) {
      const Vec whole = _mm256_cvtepi32_ps(_mm256_madd_epi16(dot[t], ones));
      const Vec d = _mm256_mul_ps(scale, all(scales[size_t(t) * groups + g]));
      acc[t] = _mm256_fmadd_ps(whole, d, acc[t]);
      acc[t] = _mm256_fmadd_ps(minimum, all(sums[size_t(t) * groups + g]), acc[t]);
    }
  }
  for (int t = 0; t < T; ++t) store(y + size_t(t) * ldy, acc[t]);
}

// int8 x int16: exact in 32 bits, as 32 products of at most 2**7 * 2**15 make 2**27.
template <int T>
inline void int8_tile(const uint8_t* panel, const Rows& x, int row, float* y, size_t ldy) {
  const int groups = x.inputs / kGroup;
  const int16_t* quants = static_cast<const int16_t*>(x.quants) + size_t(row) * x.inputs;
  const float* scales = x.scales + size_t(row) * groups;
  const float* sums = x.sums + size_t(row) * groups;
  Vec acc[T];
  for (int t = 0; t < T; ++t) acc[t] = _mm256_setzero_ps();
  for (int g = 0; g < groups; ++g, panel += kInt8Bytes) {
    prefetch(panel + kAhead * kInt8Bytes, kInt8Bytes);
    Ints dot[T];
    for (int c = 0; c < 16; ++c) {
      const Ints w = _mm256_cvtepi8_epi16(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel + 16 * c)));
      for (int t = 0; t < T; ++t) {
        const int16_t* q = quants + size_t(t) * x.inputs + g * kGroup + 2 * c;
        const Ints p = _mm256_madd_epi16(w, repeat_word(q));
        dot[t] = c == 0 ? p : _mm256_add_epi32(dot[t], p);
        keep_order(dot[t]);
      }
    }
    const Vec scale = load_halves(panel + 256), minimum = load_halves(panel + 272);
    for (int t = 0; t < T; ++t) {
      const Vec d = _mm256_mul_ps(scale, all(scales[size_t(t) * groups + g]));
      acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[t]), d, acc[t]);
      acc[t] = _mm256_fmadd_ps(minimum, all(sums[size_t(t) * groups + g]), acc[t]);
    }
  }
  for (int t = 0; t < T; ++t) store(y + size_t(t) * ldy, acc[t]);
}

// Inputs are summed in stretches, whose sums are added: one sum of all would round as often as there
// are inputs.
template <int P, int T>
inline void float_tile(const float* panel, size_t panel_floats, const Rows& x, int row, float* y,
                       size_t ldy) {
  const float* in = x.values + size_t(row) * x.inputs;
  Vec total[P][T];
  for (int p = 0; p < P; ++p)
    for (int t = 0; t < T; ++t) total[p][t] = _mm256_setzero_ps();
  for (int first = 0; first < x.inputs; first += kStretch) {
    const int end = first + kStretch < x.inputs ? first + kStretch : x.inputs;
    Vec acc[P][T];
    for (int p = 0; p < P; ++p)
      for (int t = 0; t < T; ++t) acc[p][t] = _mm256_setzero_ps();
    for (int k = first; k < end; ++k, panel += kPanel) {
      Vec w[P];
      for (int p = 0; p < P; ++p) {
        w[p] = load(panel + p * panel_floats);
        _mm_prefetch(reinterpret_cast<const char*>(panel + p * panel_floats + 256), _MM_HINT_T0);
      }
      for (int t = 0; t < T; ++t) {
        const Vec v = all(in[size_t(t) * x.inputs + k]);
        for (int p = 0; p < P; ++p) acc[p][t] = _mm256_fmadd_ps(w[p], v, acc[p][t]);
      }
    }
    for (int p = 0; p < P; ++p)
      for (int t = 0; t < T; ++t) total[p][t] = _mm256_add_ps(total[p][t], acc[p][t]);
  }
  for (int p = 0; p < P; ++p)
    for (int t = 0; t < T; ++t) store(y + size_t(t) * ldy + p * kPanel, total[p][t]);
}

}  // namespace radixd::avx2
