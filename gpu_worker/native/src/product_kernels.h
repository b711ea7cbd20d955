// Rows times a matrix in panels, for each format of the weights.
//
// A tile is some panels and some rows, so that a weight is unpacked once for all of them.  Along the
// inputs every row adds in the same order whatever the tile.  A struct W says how an instruction set
// reads the kPanels panels that fill one of its vectors, and what sizes its registers allow.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace radixd {
namespace {

constexpr int kStretch = 64;       // inputs of a float product summed before they join the rest
constexpr int kAhead = 8;          // groups fetched ahead of their use
constexpr int kFloatsAhead = 256;  // the same of floats

inline void prefetch(const uint8_t* p, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
}

// What a group of inputs adds to a row's outputs.
template <class V>
inline typename V::Vec add_group(typename V::Vec acc, typename V::Vec whole, typename V::Vec scale,
                                 typename V::Vec minimum, float row_scale, float row_sum) {
  return V::fma(minimum, V::all(row_sum), V::fma(whole, scale * V::all(row_scale), acc));
}

// int8 x int16: exact in 32 bits, as 32 products of at most 2**7 * 2**15 make 2**27.
template <class W, int T>
ALONE void int8_tile(W w, const Rows& x, int row, float* y, size_t ldy) {
  using V = typename W::V;
  const int groups = x.inputs / kGroup;
  const int16_t* quants = static_cast<const int16_t*>(x.quants) + size_t(row) * x.inputs;
  const float* scales = x.scales + size_t(row) * groups;
  const float* sums = x.sums + size_t(row) * groups;
  typename V::Vec acc[T];
  UNROLL for (int t = 0; t < T; ++t) acc[t] = typename V::Vec{};
  for (int g = 0; g < groups; ++g) {
    const W group = w.at(size_t(g) * kInt8Bytes);
    group.prefetch_at(kAhead * kInt8Bytes, kInt8Bytes);
    typename V::Ints dot[T];
    UNROLL for (int t = 0; t < T; ++t) dot[t] = typename V::Ints{};
    UNROLL for (int c = 0; c < 16; ++c) {
      const typename V::Ints pairs = group.int16_pairs(16 * c);
      UNROLL for (int t = 0; t < T; ++t)
        W::add_products(dot[t], pairs, quants + size_t(t) * x.inputs + g * kGroup + 2 * c);
    }
    const auto scale = group.halves(256), minimum = group.halves(272);
    UNROLL for (int t = 0; t < T; ++t)
      acc[t] = add_group<V>(acc[t], V::to_floats(dot[t]), scale, minimum,
                            scales[size_t(t) * groups + g], sums[size_t(t) * groups + g]);
  }
  UNROLL for (int t = 0; t < T; ++t) w.store(y + size_t(t) * ldy, acc[t]);
}

// P times kPanels panels, `next` bytes apart.  Inputs are summed in stretches, whose sums are added: one
// sum of all would round as often as there are inputs.
template <class W, int P, int T>
ALONE void float_tile(W w, size_t next, const Rows& x, int row, float* y, size_t ldy) {
  using V = typename W::V;
  using Vec = typename V::Vec;
  // Few counters and addresses, or they do not fit the registers.
  const size_t ldx = x.inputs;
  const float* in = x.values + size_t(row) * ldx;
  const float* const stop = in + ldx;
  Vec total[P][T];
  UNROLL for (int p = 0; p < P; ++p)
    UNROLL for (int t = 0; t < T; ++t) total[p][t] = Vec{};
  while (in < stop) {
    const float* const end = stop - in > kStretch ? in + kStretch : stop;
    Vec acc[P][T];
    UNROLL for (int p = 0; p < P; ++p)
      UNROLL for (int t = 0; t < T; ++t) acc[p][t] = Vec{};
    for (; in < end; ++in, w = w.at(kPanel * sizeof(float))) {
      Vec weights[P];
      UNROLL for (int p = 0; p < P; ++p) {
        const W input = w.at(p * next);
        weights[p] = input.floats();
        input.prefetch_at(kFloatsAhead * sizeof(float), 1);
      }
      UNROLL for (int t = 0; t < T; ++t) {
        const Vec v = V::all(in[t * ldx]);
        UNROLL for (int p = 0; p < P; ++p) acc[p][t] = V::fma(weights[p], v, acc[p][t]);
      }
    }
    UNROLL for (int p = 0; p < P; ++p)
      UNROLL for (int t = 0; t < T; ++t) total[p][t] = total[p][t] + acc[p][t];
  }
  UNROLL for (int p = 0; p < P; ++p)
    UNROLL for (int t = 0; t < T; ++t)
      w.store(y + size_t(t) * ldy + p * W::kPanels * kPanel, total[p][t]);
}

template <class W>
void product(const Matrix& w, const Rows& x, float* y, size_t ldy, int begin, int end) {
  const size_t next = W::kPanels * w.panel_bytes();
  for (int first = 0; first < x.count; first += W::kRowBlock) {
    const int last = x.count < first + W::kRowBlock ? x.count : first + W::kRowBlock;
    for (int p = begin; p < end; p += W::kPanels) {
      const W panels(w, p, end);
      float* const out = y + size_t(p) * kPanel;
      const auto tiles = [&](auto sizes, const auto& tile) {
        in_tiles(sizes, first, last, [&](auto rows, int row) { tile(rows, row, out + row * ldy); });
      };
      if (w.format == Format::kInt4) {
        tiles(typename W::Int4Tiles{}, [&](auto rows, int row, float* to) {
          W::template int4_tile<rows.value>(panels, x, row, to, ldy);
        });
      } else if (w.format == Format::kInt8) {
        tiles(typename W::Int8Tiles{}, [&](auto rows, int row, float* to) {
          int8_tile<W, rows.value>(panels, x, row, to, ldy);
        });
      } else if (p + 2 * W::kPanels <= end) {
        tiles(typename W::FloatTiles{}, [&](auto rows, int row, float* to) {
          float_tile<W, 2, rows.value>(panels, next, x, row, to, ldy);
        });
        p += W::kPanels;
      } else {
        tiles(typename W::FloatTiles{}, [&](auto rows, int row, float* to) {
          float_tile<W, 1, rows.value>(panels, next, x, row, to, ldy);
        });
      }
    }
  }
}

}  // namespace
}  // namespace radixd
