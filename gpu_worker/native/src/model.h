// A Llama-family model and its pool of keys and values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"

namespace radixd {

struct Sizes {
  int32_t layers;
  int32_t hidden;
  int32_t inner;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t vocab;
  int32_t max_length;
  int32_t num_slots;
  int32_t kv_int8;
  float norm_eps;

  int groups() const { return heads / kv_heads; }
  int query_size() const { return heads * head_dim; }
  int qkv_size() const { return (heads + 2 * kv_heads) * head_dim; }
};

struct Layer {
  const float* attention_norm;
  const float* mlp_norm;
  Matrix qkv;
  Matrix out;
  Matrix gate_up;
  Matrix down;
};

struct Model {
  Sizes sizes;
  Matrix embedding;
  Matrix head;
  const float* final_norm;
  const float* cos;  // [max_length, head_dim / 2]
  const float* sin;
  std::vector<Layer> layers;
};

// Writes row `row` of a matrix in float32.  Plain C++: a step does it once a token.
void read_row(const Matrix& matrix, int row, float* out);

struct Unmap {
  size_t num_bytes = 0;
  void operator()(void* p) const;
};

// Not initialised, on large pages where the system has them: a step reads from all over the pool, and
// would look up the place of every few slots.
template <class T>
using LargeArray = std::unique_ptr<T[], Unmap>;

// Whether the pools of all layers may take their memory at once: it is less than half of what is free.
bool fits_easily(const Sizes& sizes);

// Keys and values of one layer, [kv_heads, slots, head_dim]: a head is attended at a time, and its
// vectors in slots that follow each other are one stream.  Floats, or int8 with a scale a vector.
class LayerPool {
 public:
  // `is_resident`: its memory is touched now, and not when it is first used.
  LayerPool(const Sizes& sizes, bool is_resident);

  // Puts a token's keys or values [kv_heads, head_dim] into a slot.
  void write(const Kernels& kernels, bool is_value, int slot, const float* vectors);

  // Where a head's vectors of a block's slots can be read as floats: in the pool itself, by slot, or
  // widened in `room` [kBlock, head_dim], by place in the block.
  HeadView read(const Kernels& kernels, bool is_value, int head, const int32_t* slots, int count,
                float* room) const;

  // Fills everything with NaN, so that a read of what was never written shows.
  void poison();

 private:
  size_t offset(int slot, int head) const {
    return (size_t(head) * num_slots_ + slot) * head_dim_;
  }

  int kv_heads_, head_dim_, num_slots_;
  bool is_int8_;
  LargeArray<float> floats_[2];
  LargeArray<int8_t> bytes_[2];
  LargeArray<float> scales_[2];
};

}  // namespace radixd
