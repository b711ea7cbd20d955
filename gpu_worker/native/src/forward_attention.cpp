// The attention of a layer: tiles of prompts, splits of decoding rows, and their merging.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "forward.h"

namespace radixd {
namespace {

// Where a widened block's keys lie.
constexpr auto kPlaces = [] {
  struct {
    int32_t at[kBlock];
  } places{};
  for (int i = 0; i < kBlock; ++i) places.at[i] = i;
  return places;
}();

void clear(const Partial& partial, int queries, int head_dim) {
  std::fill_n(partial.largest, queries, -INFINITY);
  std::fill_n(partial.sum, queries, 0.0f);
  std::fill_n(partial.weighted, size_t(queries) * head_dim, 0.0f);
}

}  // namespace

void Forward::attention(Member& member, const Step& step, int index) {
  const int kv_heads = model_.sizes.kv_heads;
  const int num_tiles = int(plan_.tiles.size()), num_splits = int(plan_.splits.size());
  Desk& desk = desks_[member.index()];
  member.share((num_tiles + num_splits) * kv_heads, 1, [&](int item, int) {
    const int head = item % kv_heads, piece = item / kv_heads;
    if (piece < num_tiles)
      tile(desk, step, plan_.tiles[piece], index, head);
    else
      split(desk, step, plan_.splits[piece - num_tiles], index, head);
  });
  member.wait();
  if (plan_.num_partials == 0) return;
  member.share(int(plan_.decodes.size()) * kv_heads, 1, [&](int item, int) {
    merge_splits(plan_.decodes[item / kv_heads], item % kv_heads, step);
  });
  member.wait();
}

// The queries of a token that share a head of keys, scaled.
void Forward::load_query(float* q, int token, int head) const {
  const Sizes& s = model_.sizes;
  const float scale = 1.0f / std::sqrt(float(s.head_dim));
  const size_t size = size_t(s.groups()) * s.head_dim;
  const float* from = &qkv_[size_t(token) * s.qkv_size() + head * size];
  for (size_t i = 0; i < size; ++i) q[i] = from[i] * scale;
}

float* Forward::attended(int token, int head) {
  const Sizes& s = model_.sizes;
  return &attended_[size_t(token) * s.query_size() + size_t(head) * s.groups() * s.head_dim];
}

Partial Forward::stored(int partial, int head) {
  const Sizes& s = model_.sizes;
  const int groups = s.groups();
  float* at = &partials_[(size_t(partial) * s.heads + size_t(head) * groups) * (s.head_dim + 2)];
  return {at, at + groups, at + 2 * groups};
}

void Forward::attend(Desk& desk, const Call& call, int layer, int head, const Partial& into) {
  const Sizes& s = model_.sizes;
  const int groups = s.groups(), first = call.begin * groups;
  const LayerPool& pool = pool_[layer];
  const HeadView keys =
      pool.read(kernels_, false, head, call.slots, call.count, desk.keys.data());
  const HeadView values =
      pool.read(kernels_, true, head, call.slots, call.count, desk.values.data());
  const KeyBlock block{keys, values, s.kv_int8 ? kPlaces.at : call.slots, call.count};
  const Partial part{into.largest + first, into.sum + first, into.weighted + first * s.head_dim};
  kernels_.attend(desk.q.data() + first * s.head_dim, (call.end - call.begin) * groups, s.head_dim,
                  block, desk.visible.data() + first, part, desk.scores.data(), desk.shrink.data());
}

void Forward::tile(Desk& desk, const Step& step, const Tile& tile, int layer, int head) {
  const Sizes& s = model_.sizes;
  const RowSpan& row = step.rows[tile.row];
  const int groups = s.groups(), count = tile.end - tile.begin, queries = count * groups;
  float* numbers = desk.numbers.data();
  const Partial total{numbers, numbers + queries, desk.weighted.data()};
  const Partial part{numbers + 2 * queries, numbers + 3 * queries,
                     desk.weighted.data() + desk.weighted.size() / 2};
  for (int i = 0; i < count; ++i)
    load_query(&desk.q[size_t(i) * groups * s.head_dim], row.first_token + tile.begin + i, head);
  clear(total, queries, s.head_dim);
  const int end = row.prefix_len + tile.end;  // keys that the last of them sees
  for (int from = 0; from < end; from += kSplit) {
    const Partial& into = from == 0 ? total : part;
    if (from > 0) clear(part, queries, s.head_dim);
    for (int key = from; key < std::min(from + kSplit, end); key += kBlock) {
      const int keys = std::min(kBlock, end - key);
      for (int i = 0; i < queries; ++i) {
        const int sees = row.prefix_len + tile.begin + i / groups + 1 - key;
        desk.visible[i] = std::clamp(sees, 0, keys);
      }
      attend(desk, {key, keys, row.slots + key, 0, count}, layer, head, into);
    }
    if (from > 0) kernels_.merge(total, part, queries, s.head_dim);
  }
  for (int i = 0; i < queries; ++i)
    kernels_.finish(total, i, s.head_dim,
                    attended(row.first_token + tile.begin + i / groups, head) +
                        size_t(i % groups) * s.head_dim);
}

void Forward::split(Desk& desk, const Step& step, const Split& split, int layer, int head) {
  const Sizes& s = model_.sizes;
  const int groups = s.groups(), queries = (split.end - split.begin) * groups;
  float* numbers = desk.numbers.data();
  const Partial part{numbers, numbers + queries, desk.weighted.data()};
  for (int i = split.begin; i < split.end; ++i)
    load_query(&desk.q[size_t(i - split.begin) * groups * s.head_dim],
               step.rows[plan_.decodes[i].row].first_token, head);
  clear(part, queries, s.head_dim);
  for (int i = split.first_call; i < split.last_call; ++i) {
    const Call& call = plan_.calls[i];
    std::fill(desk.visible.begin() + call.begin * groups, desk.visible.begin() + call.end * groups,
              call.count);
    attend(desk, call, layer, head, part);
  }
  for (int i = split.begin; i < split.end; ++i) {
    const Decode& decode = plan_.decodes[i];
    const int first = (i - split.begin) * groups;
    if (decode.num_splits == 1) {
      float* out = attended(step.rows[decode.row].first_token, head);
      for (int g = 0; g < groups; ++g)
        kernels_.finish(part, first + g, s.head_dim, out + size_t(g) * s.head_dim);
      continue;
    }
    const Partial kept = stored(decode.first_partial + split.index, head);
    std::copy_n(part.largest + first, groups, kept.largest);
    std::copy_n(part.sum + first, groups, kept.sum);
    std::copy_n(part.weighted + size_t(first) * s.head_dim, size_t(groups) * s.head_dim,
                kept.weighted);
  }
}

void Forward::merge_splits(const Decode& decode, int head, const Step& step) {
  if (decode.num_splits == 1) return;
  const Sizes& s = model_.sizes;
  const Partial total = stored(decode.first_partial, head);
  for (int i = 1; i < decode.num_splits; ++i)
    kernels_.merge(total, stored(decode.first_partial + i, head), s.groups(), s.head_dim);
  float* out = attended(step.rows[decode.row].first_token, head);
  for (int g = 0; g < s.groups(); ++g)
    kernels_.finish(total, g, s.head_dim, out + size_t(g) * s.head_dim);
}

}  // namespace radixd
