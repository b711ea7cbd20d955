// How AVX2 reads a panel, whose 8 outputs fill a vector, and what is its own of a product.
#pragma once

#include "avx2_vector.h"
#include "product_kernels.h"

namespace radixd {
namespace {

struct Avx2Panel {
  using V = Avx2;
  using Ints = V::Ints;
  using Vec = V::Vec;
  using Int4Tiles = Tiles<6, 4, 2, 1>;
  using Int8Tiles = Tiles<4, 2, 1>;
  using FloatTiles = Tiles<6, 4, 2, 1>;
  static constexpr int kPanels = 1;
  // Rows computed before the next panel: their inputs stay in the first-level cache.
  static constexpr int kRowBlock = 32;

  const uint8_t* bytes;

  explicit Avx2Panel(const uint8_t* bytes) : bytes(bytes) {}
  Avx2Panel(const Matrix& w, int p, int /*end*/) : bytes(w.panels + size_t(p) * w.panel_bytes()) {}

  Avx2Panel at(size_t offset) const { return Avx2Panel(bytes + offset); }
  void prefetch_at(size_t offset, int count) const { prefetch(bytes + offset, count); }
  Ints int16_pairs(int offset) const {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + offset)));
  }
  Ints nibbles(int offset) const {
    return _mm256_loadu_si256(reinterpret_cast<const Ints*>(bytes + offset));
  }
  Vec halves(int offset) const {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + offset)));
  }
  Vec floats() const { return V::load(reinterpret_cast<const float*>(bytes)); }
  void store(float* y, Vec v) const { V::store(y, v); }

  // Sums of integers may be added in any order, and GCC picks one that keeps all summands alive until
  // the end, in memory as there are not that many registers.  Half the speed; this forbids it.
  static void keep_order(Ints& sum) { asm("" : "+x"(sum)); }

  // sum += weights * the pair in memory, for every output.
  static void add_products(Ints& sum, Ints weights, const int16_t* pair) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(weights, V::repeat_word(pair)));
    keep_order(sum);
  }

  template <int T>
  static void int4_tile(Avx2Panel w, const Rows& x, int row, float* y, size_t ldy);
};

// int4 x int8.  Nibbles are 0..15 and inputs at most 127 in size, so that the eight products of a
// lane in a group, at most 2 * 15 * 127 each, fit 16 bits: sums that only this instruction set has.
template <int T>
ALONE void Avx2Panel::int4_tile(Avx2Panel w, const Rows& x, int row, float* y, size_t ldy) {
  const int groups = x.inputs / kGroup;
  const int8_t* quants = static_cast<const int8_t*>(x.quants) + size_t(row) * x.inputs;
  const float* scales = x.scales + size_t(row) * groups;
  const float* sums = x.sums + size_t(row) * groups;
  const Ints low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  Vec acc[T];
  UNROLL for (int t = 0; t < T; ++t) acc[t] = Vec{};
  for (int g = 0; g < groups; ++g) {
    const Avx2Panel group = w.at(size_t(g) * kInt4Bytes);
    group.prefetch_at(kAhead * kInt4Bytes, kInt4Bytes);
    Ints dot[T];
    UNROLL for (int c = 0; c < 4; ++c) {
      const Ints both = group.nibbles(32 * c);
      const Ints w0 = _mm256_and_si256(both, low);
      const Ints w1 = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
      UNROLL for (int t = 0; t < T; ++t) {
        const int8_t* q = quants + size_t(t) * x.inputs + g * kGroup + 4 * c;
        const Ints p0 = _mm256_maddubs_epi16(w0, V::repeat_word(q));
        const Ints p1 = _mm256_maddubs_epi16(w1, V::repeat_word(q + 16));
        const Ints p = _mm256_add_epi16(p0, p1);
        dot[t] = c == 0 ? p : _mm256_add_epi16(dot[t], p);
        keep_order(dot[t]);
      }
    }
    const Vec scale = group.halves(128), minimum = group.halves(144);
    UNROLL for (int t = 0; t < T; ++t)
      acc[t] = add_group<V>(acc[t], V::to_floats(_mm256_madd_epi16(dot[t], ones)), scale, minimum,
                            scales[size_t(t) * groups + g], sums[size_t(t) * groups + g]);
  }
  UNROLL for (int t = 0; t < T; ++t) w.store(y + size_t(t) * ldy, acc[t]);
}

}  // namespace
}  // namespace radixd
