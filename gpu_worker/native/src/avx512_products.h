// How AVX-512 reads two neighbouring panels, whose 16 outputs fill a vector, and what is its own of a
// product.
#pragma once

#include "avx512_vector.h"
#include "product_kernels.h"

// Rows of a tile are to stay a loop where their addresses would take more registers than there are.
#define ONE_BY_ONE _Pragma("GCC unroll 1")

namespace radixd {
namespace {

struct Avx512Panels {
  using V = Avx512;
  using Ints = V::Ints;
  using Vec = V::Vec;
  using Int4Tiles = Tiles<16, 8, 4, 2, 1>;
  using Int8Tiles = Tiles<12, 8, 4, 2, 1>;
  using FloatTiles = Tiles<12, 8, 4, 2, 1>;
  static constexpr int kPanels = 2;
  // Rows computed before the next panels: their inputs stay in the second-level cache.
  static constexpr int kRowBlock = 96;

  // Where there is no second panel, the first stands in for it and its results are not kept.
  const uint8_t* a;
  const uint8_t* b;
  __mmask16 kept;

  Avx512Panels(const uint8_t* a, const uint8_t* b, __mmask16 kept) : a(a), b(b), kept(kept) {}
  Avx512Panels(const Matrix& w, int p, int end)
      : a(w.panels + size_t(p) * w.panel_bytes()), b(p + 1 < end ? a + w.panel_bytes() : a),
        kept(p + 1 < end ? 0xffff : 0x00ff) {}

  Avx512Panels at(size_t offset) const { return {a + offset, b + offset, kept}; }
  void prefetch_at(size_t offset, int count) const {
    prefetch(a + offset, count), prefetch(b + offset, count);
  }
  __m256i load_16_bytes(int offset) const {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + offset));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + offset));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
  Ints int16_pairs(int offset) const { return _mm512_cvtepi8_epi16(load_16_bytes(offset)); }
  Ints nibbles(int offset) const {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + offset));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + offset));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  Vec halves(int offset) const { return _mm512_cvtph_ps(load_16_bytes(offset)); }
  Vec floats() const {
    const __m256 low = _mm256_loadu_ps(reinterpret_cast<const float*>(a));
    const __m256 high = _mm256_loadu_ps(reinterpret_cast<const float*>(b));
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
  }
  void store(float* y, Vec v) const { _mm512_mask_storeu_ps(y, kept, v); }

  // sum += weights * the pair in memory, for every output.
  static void add_products(Ints& sum, Ints weights, const int16_t* pair) {
    sum = _mm512_dpwssd_epi32(sum, weights, V::repeat_word(pair));
  }

  template <int T>
  static void int4_tile(Avx512Panels w, const Rows& x, int row, float* y, size_t ldy);
};

// A group's 4-bit weights of 16 outputs, in quads of inputs.
struct Nibbles {
  Avx512::Ints of[8];
};

inline Nibbles int4_quads(const Avx512Panels& group) {
  const Avx512::Ints low = _mm512_set1_epi8(15);
  Nibbles w;
  UNROLL for (int c = 0; c < 4; ++c) {
    const Avx512::Ints both = group.nibbles(32 * c);
    w.of[c] = _mm512_and_si512(both, low);
    w.of[4 + c] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
  }
  return w;
}

// sum += weights * the quad in memory, for every output.  GCC 12 does not know that the instruction can
// repeat a word by itself.
inline void add_quads(Avx512::Ints& sum, Avx512::Ints weights, const int8_t* quad) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(weights), "m"(*reinterpret_cast<const int32_t*>(quad)));
}

// int4 x int8, in 32 bits.
inline Avx512::Ints int4_dot(const Nibbles& w, const int8_t* q) {
  // Two sums, as each addition waits for the one before.
  Avx512::Ints first{}, second{};
  UNROLL for (int c = 0; c < 4; ++c) {
    add_quads(first, w.of[c], q + 4 * c);
    add_quads(second, w.of[4 + c], q + 16 + 4 * c);
  }
  return _mm512_add_epi32(first, second);
}

// Row after row, as a group's weights fit the registers: AVX2 must keep the rows there instead.
template <int T>
ALONE void Avx512Panels::int4_tile(Avx512Panels w, const Rows& x, int row, float* y,
                                    size_t ldy) {
  const int groups = x.inputs / kGroup;
  const int8_t* quants = static_cast<const int8_t*>(x.quants) + size_t(row) * x.inputs;
  const float* scales = x.scales + size_t(row) * groups;
  const float* sums = x.sums + size_t(row) * groups;
  Vec acc[T];
  UNROLL for (int t = 0; t < T; ++t) acc[t] = Vec{};
  for (int g = 0; g < groups; ++g) {
    const Avx512Panels group = w.at(size_t(g) * kInt4Bytes);
    group.prefetch_at(kAhead * kInt4Bytes, kInt4Bytes);
    const Nibbles quads = int4_quads(group);
    const Vec scale = group.halves(128), minimum = group.halves(144);
    const int8_t* q = quants + g * kGroup;
    const float *s = scales + g, *m = sums + g;
    ONE_BY_ONE for (int t = 0; t < T; ++t, q += x.inputs, s += groups, m += groups)
      acc[t] = add_group<V>(acc[t], V::to_floats(int4_dot(quads, q)), scale, minimum, *s, *m);
  }
  UNROLL for (int t = 0; t < T; ++t) w.store(y + size_t(t) * ldy, acc[t]);
}

}  // namespace
}  // namespace radixd
