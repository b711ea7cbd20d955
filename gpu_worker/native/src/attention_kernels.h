// Attention of some queries over one block of keys, with the running maximum of the online softmax
// (Milakov and Gimelshein, 2018), and the merging of partial results by log-sum-exp.
//
// A query's numbers never depend on which other queries come with it: every score, every weight and
// every sum has an order of its own, fixed by the key's place in the row.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace radixd {
namespace {

constexpr int kKeysAhead = 32;  // keys fetched ahead of their use; they may lie anywhere in the pool
constexpr int kHeadStep = 16;   // head_dim is a multiple of it

inline const float* at(const HeadView& view, int32_t slot) {
  return view.base + size_t(slot) * view.stride;
}

// While the first queries are scored: keys that come soon, near; this block's values, not as near.
inline void prefetch_slot(const KeyBlock& block, int k, int head_dim) {
  const int ahead = k + kKeysAhead < block.count ? k + kKeysAhead : block.count - 1;
  const float* key = at(block.keys, block.slots[ahead]);
  const float* value = at(block.values, block.slots[k]);
  for (int d = 0; d < head_dim; d += 16) {  // a cache line
    __builtin_prefetch(key + d, 0, 3);
    __builtin_prefetch(value + d, 0, 2);
  }
}

// Scores of R queries with four keys.
template <class V, int R>
inline void score_tile(const float* q, int head_dim, const float* const keys[4], float* scores) {
  using Vec = typename V::Vec;
  Vec acc[R][4];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int k = 0; k < 4; ++k) acc[r][k] = Vec{};
  for (int d = 0; d < head_dim; d += V::kWidth) {
    Vec query[R];
    UNROLL for (int r = 0; r < R; ++r) query[r] = V::load(q + r * head_dim + d);
    UNROLL for (int k = 0; k < 4; ++k) {
      const Vec key = V::load(keys[k] + d);
      UNROLL for (int r = 0; r < R; ++r) acc[r][k] = V::fma(query[r], key, acc[r][k]);
    }
  }
  UNROLL for (int r = 0; r < R; ++r)
    V::store_sums(scores + r * kBlock, acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}

template <class V, int R>
inline void score_rows(const float* q, int head_dim, const KeyBlock& block, float* scores,
                       bool fetch) {
  for (int k = 0; k < block.count; k += 4) {
    const float* keys[4];
    for (int i = 0; i < 4; ++i) {
      keys[i] = at(block.keys, block.slots[k + i < block.count ? k + i : block.count - 1]);
    }
    if (fetch)
      for (int i = k; i < block.count && i < k + 4; ++i) prefetch_slot(block, i, head_dim);
    score_tile<V, R>(q, head_dim, keys, scores + k);
  }
}

// Scores of one query to weights exp(score - largest); gives the factor by which what came before
// shrinks.  Weights of keys it does not see are 0.
template <class V>
inline float weigh(float* scores, int visible, float& largest_so_far, float& sum_so_far) {
  using Vec = typename V::Vec;
  const int whole = visible / V::kWidth * V::kWidth, left = visible - whole;
  const Vec lowest = V::all(-__builtin_inff());
  Vec top = lowest;
  for (int k = 0; k < whole; k += V::kWidth) top = V::max(top, V::load(scores + k));
  if (left > 0) top = V::max(top, V::first_lanes(left, V::load(scores + whole), lowest));
  const float most = V::largest(top), before = largest_so_far, now = before > most ? before : most;
  Vec total{};
  const auto weight = [&](int k) { return exp<V>(V::load(scores + k) - V::all(now)); };
  const auto put = [&](int k, Vec weights) {
    V::store(scores + k, weights);
    total = total + weights;
  };
  for (int k = 0; k < whole; k += V::kWidth) put(k, weight(k));
  if (left > 0) put(whole, V::first_lanes(left, weight(whole), Vec{}));
  for (int k = whole + (left > 0) * V::kWidth; k < kBlock; k += V::kWidth)
    V::store(scores + k, Vec{});
  const float shrink = before == now ? 1.0f : exp_of<V>(before - now);
  largest_so_far = now;
  sum_so_far = sum_so_far * shrink + V::sum(total);
  return shrink;
}

// Adds the weighted values of a block to C vectors of R queries.
template <class V, int R, int C>
inline void mix_tile(const float* weights, const float* shrink, const KeyBlock& block, int d,
                     int head_dim, float* weighted) {
  using Vec = typename V::Vec;
  constexpr int W = V::kWidth;
  Vec acc[R][C];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int c = 0; c < C; ++c)
      acc[r][c] = V::load(weighted + r * head_dim + d + W * c) * V::all(shrink[r]);
  for (int k = 0; k < block.count; ++k) {
    const float* value = at(block.values, block.slots[k]) + d;
    Vec weight[R];
    UNROLL for (int r = 0; r < R; ++r) weight[r] = V::all(weights[r * kBlock + k]);
    UNROLL for (int c = 0; c < C; ++c) {
      const Vec v = V::load(value + W * c);
      UNROLL for (int r = 0; r < R; ++r) acc[r][c] = V::fma(weight[r], v, acc[r][c]);
    }
  }
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int c = 0; c < C; ++c) V::store(weighted + r * head_dim + d + W * c, acc[r][c]);
}

template <class V, int R>
inline void mix_rows(const float* weights, const float* shrink, const KeyBlock& block,
                     int head_dim, float* weighted) {
  constexpr int kWide = 4 * V::kWidth;
  int d = 0;
  for (; d + kWide <= head_dim; d += kWide)
    mix_tile<V, R, 4>(weights, shrink, block, d, head_dim, weighted);
  for (; d < head_dim; d += kHeadStep)
    mix_tile<V, R, kHeadStep / V::kWidth>(weights, shrink, block, d, head_dim, weighted);
}

// A block's keys are read for all queries before its values are: either fits the first-level cache,
// both do not.
template <class V>
void attend(const float* q, int queries, int head_dim, const KeyBlock& block,
            const int32_t* visible, const Partial& into, float* scores, float* shrink) {
  in_tiles(typename V::QueryTiles{}, 0, queries, [&](auto rows, int i) {
    score_rows<V, rows.value>(q + size_t(i) * head_dim, head_dim, block,
                              scores + size_t(i) * kBlock, i == 0);
  });
  for (int i = 0; i < queries; ++i) {
    float* row = scores + size_t(i) * kBlock;
    shrink[i] = 1.0f;
    if (visible[i] > 0)
      shrink[i] = weigh<V>(row, visible[i], into.largest[i], into.sum[i]);
    else
      for (int k = 0; k < kBlock; k += V::kWidth) V::store(row + k, typename V::Vec{});
  }
  in_tiles(typename V::QueryTiles{}, 0, queries, [&](auto rows, int i) {
    mix_rows<V, rows.value>(scores + size_t(i) * kBlock, shrink + i, block, head_dim,
                            into.weighted + size_t(i) * head_dim);
  });
}

template <class V>
void merge(const Partial& into, const Partial& more, int queries, int head_dim) {
  for (int i = 0; i < queries; ++i) {
    if (more.sum[i] == 0.0f) continue;  // saw no key
    const float before = into.largest[i], top = before > more.largest[i] ? before : more.largest[i];
    const float a = exp_of<V>(before - top), b = exp_of<V>(more.largest[i] - top);
    float* x = into.weighted + size_t(i) * head_dim;
    const float* y = more.weighted + size_t(i) * head_dim;
    for (int d = 0; d < head_dim; d += V::kWidth)
      V::store(x + d, V::fma(V::load(y + d), V::all(b), V::load(x + d) * V::all(a)));
    into.sum[i] = into.sum[i] * a + more.sum[i] * b;
    into.largest[i] = top;
  }
}

template <class V>
void finish(const Partial& from, int query, int head_dim, float* out) {
  const typename V::Vec share = V::all(1.0f / from.sum[query]);
  const float* x = from.weighted + size_t(query) * head_dim;
  for (int d = 0; d < head_dim; d += V::kWidth) V::store(out + d, V::load(x + d) * share);
}

}  // namespace
}  // namespace radixd
