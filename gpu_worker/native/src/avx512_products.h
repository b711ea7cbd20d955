// Rows times a matrix in panels, for each format of the weights.
//
// A tile is two neighbouring panels, 16 outputs, and up to 16 rows, so that a weight is unpacked once for
// all of them.  Along the inputs every row adds in the same order whatever the tile.
#pragma once

#include "avx512_vector.h"
#include "kernels.h"

namespace radixd::avx512 {
namespace {

constexpr int kStretch = 64;  // inputs of a float product summed before they join the rest
constexpr int kAhead = 8;     // groups fetched ahead of their use
constexpr int kFloatsAhead = 256;

// Two panels side by side.  Where there is no second one, the first stands in for it and its results
// are not kept.
struct Pair {
  const uint8_t* a;
  const uint8_t* b;
  __mmask16 kept;
};

// 32 bytes, 16 bytes, 8 halves and 8 floats of either panel.
inline Ints load_bytes(const uint8_t* a, const uint8_t* b) {
  const Ints low = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)));
  return _mm512_inserti64x4(low, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)), 1);
}

inline __m256i load_16_bytes(const uint8_t* a, const uint8_t* b) {
  const __m256i low = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
  return _mm256_inserti128_si256(low, _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}

inline Vec load_halves(const uint8_t* a, const uint8_t* b) {
  return _mm512_cvtph_ps(load_16_bytes(a, b));
}

inline Vec load_floats(const float* a, const float* b) {
  const Vec low = _mm512_castps256_ps512(_mm256_loadu_ps(a));
  return _mm512_insertf32x8(low, _mm256_loadu_ps(b), 1);
}

inline void prefetch(const uint8_t* p, int bytes) {
  for (int i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
}

// What a group of inputs adds to a row's outputs.
inline Vec add_group(Vec acc, Ints dot, Vec scale, Vec minimum, float row_scale, float row_sum) {
  acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scale, all(row_scale)), acc);
  return _mm512_fmadd_ps(minimum, all(row_sum), acc);
}

// A group's 4-bit weights of 16 outputs, in quads of inputs.
struct Nibbles {
  Ints of[8];
};

inline Nibbles int4_quads(const uint8_t* a, const uint8_t* b) {
  const Ints low = _mm512_set1_epi8(15);
  Nibbles w;
  UNROLL for (int c = 0; c < 4; ++c) {
    const Ints both = load_bytes(a + 32 * c, b + 32 * c);
    w.of[c] = _mm512_and_si512(both, low);
    w.of[4 + c] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
  }
  return w;
}

// sum += weights * the quad in memory, for every output.  GCC 12 does not know that the instruction can
// repeat a word by itself.
inline void add_product(Ints& sum, Ints weights, const int8_t* quad) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(weights), "m"(*reinterpret_cast<const int32_t*>(quad)));
}

// int4 x int8, in 32 bits.
inline Ints int4_dot(const Nibbles& w, const int8_t* q) {
  // Two sums, as each addition waits for the one before.
  Ints first = _mm512_setzero_si512(), second = first;
  UNROLL for (int c = 0; c < 4; ++c) {
    add_product(first, w.of[c], q + 4 * c);
    add_product(second, w.of[4 + c], q + 16 + 4 * c);
  }
  return _mm512_add_epi32(first, second);
}

template <int T>
inline void int4_tile(const Pair& w, const Rows& x, int row, float* y, size_t ldy) {
  const int groups = x.inputs / kGroup;
  const int8_t* quants = static_cast<const int8_t*>(x.quants) + size_t(row) * x.inputs;
  const float* scales = x.scales + size_t(row) * groups;
  const float* sums = x.sums + size_t(row) * groups;
  Vec acc[T];
  UNROLL for (int t = 0; t < T; ++t) acc[t] = none();
  for (int g = 0; g < groups; ++g) {
    const uint8_t *a = w.a + size_t(g) * kInt4Bytes, *b = w.b + size_t(g) * kInt4Bytes;
    prefetch(a + kAhead * kInt4Bytes, kInt4Bytes), prefetch(b + kAhead * kInt4Bytes, kInt4Bytes);
    const Nibbles quads = int4_quads(a, b);
    const Vec scale = load_halves(a + 128, b + 128), minimum = load_halves(a + 144, b + 144);
    const int8_t* q = quants + g * kGroup;
    const float *s = scales + g, *m = sums + g;
    ONE_BY_ONE for (int t = 0; t < T; ++t, q += x.inputs, s += groups, m += groups)
      acc[t] = add_group(acc[t], int4_dot(quads, q), scale, minimum, *s, *m);
  }
  UNROLL for (int t = 0; t < T; ++t) store(y + size_t(t) * ldy, acc[t], w.kept);
}

// int8 x int16: exact in 32 bits, as 32 products of at most 2**7 * 2**15 make 2**27.
template <int T>
inline void int8_tile(const Pair& w, const Rows& x, int row, float* y, size_t ldy) {
  const int groups = x.inputs / kGroup;
  const int16_t* quants = static_cast<const int16_t*>(x.quants) + size_t(row) * x.inputs;
  const float* scales = x.scales + size_t(row) * groups;
  const float* sums = x.sums + size_t(row) * groups;
  Vec acc[T];
  UNROLL for (int t = 0; t < T; ++t) acc[t] = none();
  for (int g = 0; g < groups; ++g) {
    const uint8_t *a = w.a + size_t(g) * kInt8Bytes, *b = w.b + size_t(g) * kInt8Bytes;
    prefetch(a + kAhead * kInt8Bytes, kInt8Bytes), prefetch(b + kAhead * kInt8Bytes, kInt8Bytes);
    Ints dot[T];
    UNROLL for (int t = 0; t < T; ++t) dot[t] = _mm512_setzero_si512();
    UNROLL for (int c = 0; c < 16; ++c) {
      const Ints pairs = _mm512_cvtepi8_epi16(load_16_bytes(a + 16 * c, b + 16 * c));
      UNROLL for (int t = 0; t < T; ++t) {
        const int16_t* q = quants + size_t(t) * x.inputs + g * kGroup + 2 * c;
        dot[t] = _mm512_dpwssd_epi32(dot[t], pairs, repeat_word(q));
      }
    }
    const Vec scale = load_halves(a + 256, b + 256), minimum = load_halves(a + 272, b + 272);
    UNROLL for (int t = 0; t < T; ++t)
      acc[t] = add_group(acc[t], dot[t], scale, minimum, scales[size_t(t) * groups + g],
                         sums[size_t(t) * groups + g]);
  }
  UNROLL for (int t = 0; t < T; ++t) store(y + size_t(t) * ldy, acc[t], w.kept);
}

// Inputs are summed in stretches, whose sums are added: one sum of all would round as often as there
// are inputs.
template <int P, int T>
inline void float_tile(const Pair* w, const Rows& x, int row, float* y, size_t ldy) {
  const float* in = x.values + size_t(row) * x.inputs;
  Vec total[P][T];
  UNROLL for (int p = 0; p < P; ++p)
    UNROLL for (int t = 0; t < T; ++t) total[p][t] = none();
  for (int first = 0; first < x.inputs; first += kStretch) {
    const int end = first + kStretch < x.inputs ? first + kStretch : x.inputs;
    Vec acc[P][T];
    UNROLL for (int p = 0; p < P; ++p)
      UNROLL for (int t = 0; t < T; ++t) acc[p][t] = none();
    for (int k = first; k < end; ++k) {
      Vec weights[P];
      UNROLL for (int p = 0; p < P; ++p) {
        const float* a = reinterpret_cast<const float*>(w[p].a) + size_t(k) * kPanel;
        const float* b = reinterpret_cast<const float*>(w[p].b) + size_t(k) * kPanel;
        weights[p] = load_floats(a, b);
        _mm_prefetch(reinterpret_cast<const char*>(a + kFloatsAhead), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(b + kFloatsAhead), _MM_HINT_T0);
      }
      UNROLL for (int t = 0; t < T; ++t) {
        const Vec v = all(in[size_t(t) * x.inputs + k]);
        UNROLL for (int p = 0; p < P; ++p) acc[p][t] = _mm512_fmadd_ps(weights[p], v, acc[p][t]);
      }
    }
    UNROLL for (int p = 0; p < P; ++p)
      UNROLL for (int t = 0; t < T; ++t) total[p][t] = _mm512_add_ps(total[p][t], acc[p][t]);
  }
  UNROLL for (int p = 0; p < P; ++p)
    UNROLL for (int t = 0; t < T; ++t)
      store(y + size_t(t) * ldy + 2 * p * kPanel, total[p][t], w[p].kept);
}

}  // namespace
}  // namespace radixd::avx512
