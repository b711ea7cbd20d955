// Attention of some queries over one block of keys, with the running maximum of the online softmax
// (Milakov and Gimelshein, 2018), and the merging of partial results by log-sum-exp.
//
// The same as avx2_attention.h, 16 dimensions or keys at a time.  A query's numbers never depend on
// which other queries come with it: every score, every weight and every sum has an order of its own,
// fixed by the key's place in the row.
#pragma once

#include <type_traits>

#include "avx512_vector.h"
#include "kernels.h"

namespace radixd::avx512 {
namespace {

constexpr int kKeysAhead = 32;  // keys fetched ahead of their use; they may lie anywhere in the pool

inline const float* at(const HeadView& view, int32_t slot) {
  return view.base + size_t(slot) * view.stride;
}

// While the first queries are scored: keys that come soon, near; this block's values, not as near.
inline void prefetch_slot(const KeyBlock& block, int k, int head_dim) {
  const int ahead = k + kKeysAhead < block.count ? k + kKeysAhead : block.count - 1;
  const char* key = reinterpret_cast<const char*>(at(block.keys, block.slots[ahead]));
  const char* value = reinterpret_cast<const char*>(at(block.values, block.slots[k]));
  for (size_t i = 0; i < head_dim * sizeof(float); i += 64) {
    _mm_prefetch(key + i, _MM_HINT_T0);
    _mm_prefetch(value + i, _MM_HINT_T1);
  }
}

template <int R>
using Count = std::integral_constant<int, R>;

// Scores of R queries with four keys.
template <int R>
inline void score_tile(const float* q, int head_dim, const float* const keys[4], float* scores) {
  Vec acc[R][4];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int k = 0; k < 4; ++k) acc[r][k] = none();
  for (int d = 0; d < head_dim; d += 16) {
    Vec query[R];
    UNROLL for (int r = 0; r < R; ++r) query[r] = load(q + r * head_dim + d);
    UNROLL for (int k = 0; k < 4; ++k) {
      const Vec key = load(keys[k] + d);
      UNROLL for (int r = 0; r < R; ++r) acc[r][k] = _mm512_fmadd_ps(query[r], key, acc[r][k]);
    }
  }
  UNROLL for (int r = 0; r < R; ++r)
    _mm_storeu_ps(scores + r * kBlock, sums(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
}

template <int R>
inline void score_rows(const float* q, int head_dim, const KeyBlock& block, float* scores,
                       bool fetch) {
  for (int k = 0; k < block.count; k += 4) {
    const float* keys[4];
    for (int i = 0; i < 4; ++i) {
      keys[i] = at(block.keys, block.slots[k + i < block.count ? k + i : block.count - 1]);
    }
    if (fetch)
      for (int i = k; i < block.count && i < k + 4; ++i) prefetch_slot(block, i, head_dim);
    score_tile<R>(q, head_dim, keys, scores + k);
  }
}

// Scores of one query to weights exp(score - largest); gives the factor by which what came before
// shrinks.  Weights of keys it does not see are 0.
inline float weigh(float* scores, int visible, float& largest_so_far, float& sum_so_far) {
  Vec top = all(-__builtin_inff());
  for (int k = 0; k < visible; k += 16)
    top = _mm512_mask_max_ps(top, lanes(visible - k), top, load(scores + k));
  const float most = largest(top), before = largest_so_far, now = before > most ? before : most;
  Vec total = none();
  for (int k = 0; k < kBlock; k += 16) {
    const __mmask16 seen = lanes(visible > k ? visible - k : 0);
    const Vec weight = _mm512_maskz_mov_ps(seen, exp(_mm512_sub_ps(load(scores + k), all(now))));
    store(scores + k, weight);
    total = _mm512_add_ps(total, weight);
  }
  const float shrink = before == now ? 1.0f : first(exp(all(before - now)));
  largest_so_far = now;
  sum_so_far = sum_so_far * shrink + sum(total);
  return shrink;
}

// Adds the weighted values of a block to 16 * C dimensions of R queries.
template <int R, int C>
inline void mix_tile(const float* weights, const float* shrink, const KeyBlock& block, int d,
                     int head_dim, float* weighted) {
  Vec acc[R][C];
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int c = 0; c < C; ++c)
      acc[r][c] = _mm512_mul_ps(load(weighted + r * head_dim + d + 16 * c), all(shrink[r]));
  for (int k = 0; k < block.count; ++k) {
    const float* value = at(block.values, block.slots[k]) + d;
    Vec weight[R];
    UNROLL for (int r = 0; r < R; ++r) weight[r] = all(weights[r * kBlock + k]);
    UNROLL for (int c = 0; c < C; ++c) {
      const Vec v = load(value + 16 * c);
      UNROLL for (int r = 0; r < R; ++r) acc[r][c] = _mm512_fmadd_ps(weight[r], v, acc[r][c]);
    }
  }
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int c = 0; c < C; ++c) store(weighted + r * head_dim + d + 16 * c, acc[r][c]);
}

template <int R>
inline void mix_rows(const float* weights, const float* shrink, const KeyBlock& block,
                     int head_dim, float* weighted) {
  int d = 0;
  for (; d + 64 <= head_dim; d += 64)
    mix_tile<R, 4>(weights, shrink, block, d, head_dim, weighted);
  for (; d < head_dim; d += 16) mix_tile<R, 1>(weights, shrink, block, d, head_dim, weighted);
}

// A block's keys are read for all queries before its values are: either fits the first-level cache,
// both do not.
inline void attend(const float* q, int queries, int head_dim, const KeyBlock& block,
                   const int32_t* visible, const Partial& into, float* scores, float* shrink) {
  int i = 0;
  const auto score = [&](auto rows) {
    constexpr int R = decltype(rows)::value;
    for (; i + R <= queries; i += R)
      score_rows<R>(q + size_t(i) * head_dim, head_dim, block, scores + size_t(i) * kBlock, i == 0);
  };
  score(Count<6>{}), score(Count<3>{}), score(Count<2>{}), score(Count<1>{});
  for (i = 0; i < queries; ++i) {
    float* row = scores + size_t(i) * kBlock;
    shrink[i] = 1.0f;
    if (visible[i] > 0)
      shrink[i] = weigh(row, visible[i], into.largest[i], into.sum[i]);
    else
      for (int k = 0; k < kBlock; k += 16) store(row + k, none());
  }
  i = 0;
  const auto mix = [&](auto rows) {
    constexpr int R = decltype(rows)::value;
    for (; i + R <= queries; i += R)
      mix_rows<R>(scores + size_t(i) * kBlock, shrink + i, block, head_dim,
                  into.weighted + size_t(i) * head_dim);
  };
  mix(Count<6>{}), mix(Count<3>{}), mix(Count<2>{}), mix(Count<1>{});
}

}  // namespace
}  // namespace radixd::avx512
