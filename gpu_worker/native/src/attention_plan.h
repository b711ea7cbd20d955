// How the attention of a step is cut into pieces, the same for every layer and head.
//
// Keys are cut at fixed places, into splits of kSplit and blocks of kBlock, so that a query's result
// depends on its row alone.  Rows that decode and have the same slots in a block attend to it together:
// the keys of a shared prefix are then read once for all of them (Juravsky et al., Hydragen, 2024).
#pragma once

#include <cstdint>
#include <vector>

namespace radixd {

// One row's part of a step.
struct RowSpan {
  const int32_t* slots;  // [prefix_len + extend_len]
  int32_t prefix_len;
  int32_t extend_len;
  int32_t first_token;  // among the tokens of the step

  int32_t length() const { return prefix_len + extend_len; }
};

constexpr int kTileTokens = 16;  // tokens of a prompt that attend together
constexpr int kSplitRows = 16;   // decoding rows that do

// Some tokens of one row, attending to all they see.
struct Tile {
  int row;
  int begin;  // among the tokens the row computes
  int end;
};

// A block of keys for some rows of a split.
struct Call {
  int key;  // place of the first key in the row
  int count;
  const int32_t* slots;
  int begin;  // among the rows of the split
  int end;
};

// One split of keys for decoding rows that stand next to each other in `decodes`.
struct Split {
  int index;
  int begin;  // among `decodes`
  int end;
  int first_call;
  int last_call;
};

struct Decode {
  int row;
  int num_splits;
  int first_partial;  // where its partial results begin, one for each split; -1: it has one split
};

struct AttentionPlan {
  std::vector<Tile> tiles;  // the last of a row first: it sees the most keys
  std::vector<Decode> decodes;
  std::vector<Split> splits;
  std::vector<Call> calls;
  int num_partials = 0;

  void build(const std::vector<RowSpan>& rows);

 private:
  void add_split(const std::vector<RowSpan>& rows, int index, int begin, int end);
};

}  // namespace radixd
