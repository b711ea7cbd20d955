#include "attention_plan.h"

#include <algorithm>
#include <cstring>

#include "kernels.h"

namespace radixd {
namespace {

// Whether both rows have the whole block that begins at this key, in the same slots.
bool share_block(const RowSpan& a, const RowSpan& b, int key) {
  if (a.length() < key + kBlock || b.length() < key + kBlock) return false;
  return std::memcmp(a.slots + key, b.slots + key, kBlock * sizeof(int32_t)) == 0;
}

// Orders rows so that those with a common beginning stand together.
bool comes_before(const RowSpan& a, const RowSpan& b) {
  return std::lexicographical_compare(a.slots, a.slots + a.length(), b.slots,
                                      b.slots + b.length());
}

}  // namespace

void AttentionPlan::build(const std::vector<RowSpan>& rows) {
  tiles.clear(), decodes.clear(), splits.clear(), calls.clear();
  num_partials = 0;
  int most_splits = 0;
  for (int row = 0; row < int(rows.size()); ++row) {
    const RowSpan& span = rows[row];
    if (span.extend_len > 1) {
      for (int begin = 0; begin < span.extend_len; begin += kTileTokens)
        tiles.push_back({row, begin, std::min(begin + kTileTokens, span.extend_len)});
    } else {
      const int num_splits = (span.length() + kSplit - 1) / kSplit;
      decodes.push_back({row, num_splits, -1});
      most_splits = std::max(most_splits, num_splits);
    }
  }
  std::reverse(tiles.begin(), tiles.end());
  std::stable_sort(decodes.begin(), decodes.end(), [&](const Decode& a, const Decode& b) {
    return comes_before(rows[a.row], rows[b.row]);
  });
  for (Decode& decode : decodes) {
    if (decode.num_splits == 1) continue;
    decode.first_partial = num_partials;
    num_partials += decode.num_splits;
  }
  for (int index = 0; index < most_splits; ++index) {
    const int key = index * kSplit;
    for (int begin = 0, end; begin < int(decodes.size()); begin = end) {
      end = begin + 1;
      const RowSpan& first = rows[decodes[begin].row];
      if (first.length() <= key) continue;
      while (end < int(decodes.size()) && end - begin < kSplitRows &&
             share_block(first, rows[decodes[end].row], key))
        ++end;
      add_split(rows, index, begin, end);
    }
  }
}

void AttentionPlan::add_split(const std::vector<RowSpan>& rows, int index, int begin, int end) {
  const int first_call = int(calls.size());
  for (int block = 0; block < kSplit / kBlock; ++block) {
    const int key = index * kSplit + block * kBlock;
    for (int i = begin, next; i < end; i = next) {
      next = i + 1;
      const RowSpan& first = rows[decodes[i].row];
      if (first.length() <= key) continue;
      while (next < end && share_block(first, rows[decodes[next].row], key)) ++next;
      const int count = std::min(kBlock, first.length() - key);
      calls.push_back({key, count, first.slots + key, i - begin, next - begin});
    }
  }
  splits.push_back({index, begin, end, first_call, int(calls.size())});
}

}  // namespace radixd
