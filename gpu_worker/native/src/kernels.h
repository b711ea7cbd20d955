// What an instruction set has to offer: one table of functions, filled by one file for each set.
//
// Everything outside such a file is plain C++ and runs anywhere.  Rows are tokens; a row's result
// never depends on which other rows are computed with it: each has accumulators of its own, and all
// tile sizes add in the same order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace radixd {

constexpr int kPanel = 8;        // outputs of a matrix that lie side by side
constexpr int kGroup = 32;       // inputs that share a scale
constexpr int kInt4Bytes = 160;  // a panel's group: 128 of nibbles, 8 scales, 8 minima (float16)
constexpr int kInt8Bytes = 288;  // the same with 256 bytes of values
constexpr int kBlock = 64;       // keys attended between two updates of the running maximum
constexpr int kSplit = 256;      // keys attended before partial results are merged

enum class Format : int32_t { kFloat32 = 0, kInt8 = 1, kInt4 = 2 };

// A weight matrix [outputs, inputs] in panels; see packing.py for the layouts.
struct Matrix {
  Format format;
  int outputs;  // as used; the panels are padded to a multiple of kPanel
  int inputs;
  const uint8_t* panels;

  size_t panel_bytes() const {
    const size_t groups = static_cast<size_t>(inputs) / kGroup;
    if (format == Format::kInt4) return groups * kInt4Bytes;
    if (format == Format::kInt8) return groups * kInt8Bytes;
    return static_cast<size_t>(inputs) * kPanel * sizeof(float);
  }
  int num_panels() const { return (outputs + kPanel - 1) / kPanel; }
};

// Rows of inputs as a product wants them.  float32 matrices read `values`; quantised ones read
// `quants` (int8 for int4 weights, int16 for int8 weights), a scale for each group, and
// scale * sum(quants) of each group, which the minima of the weights are multiplied with.
struct Rows {
  int count;
  int inputs;
  const float* values;
  const void* quants;
  const float* scales;
  const float* sums;
};

// One head's keys or values of a layer: slot s begins at base + s * stride (in elements).
struct HeadView {
  const float* base;
  size_t stride;
};

// Some keys of a row that follow each other, with their values.
struct KeyBlock {
  HeadView keys;
  HeadView values;
  const int32_t* slots;  // [count] where each key lies
  int count;             // keys in it, 1 to kBlock
};

// What softmax(q k) v over some keys has come to: the largest score, the sum of exp(score - largest)
// and the values weighted by it.  Begins as {-inf, 0, 0...}.
struct Partial {
  float* largest;   // [queries]
  float* sum;       // [queries]
  float* weighted;  // [queries, head_dim]
};

struct Kernels {
  const char* name;
  // y[row, 8 * panel ...] for panels [begin, end) of all rows; `ldy` elements between rows of y.
  void (*product)(const Matrix& w, const Rows& x, float* y, size_t ldy, int begin, int end);
  // One row of floats to what matrices of this format read.
  void (*quantise)(Format format, const float* x, int inputs, void* quants, float* scales,
                   float* sums);
  void (*rms_norm)(const float* x, const float* weight, float* y, int size, float eps);
  // x += y, then y = rms_norm(x).
  void (*add_rms_norm)(float* x, float* y, const float* weight, int size, float eps);
  // y = silu(gate) * up, where up lies `size` behind gate.
  void (*silu_mul)(const float* gate, float* y, int size);
  // In place; pairs lie half a head apart.
  void (*rotate)(float* head, const float* cos, const float* sin, int head_dim);
  // Takes the keys of a block into the partials of `queries` queries [queries, head_dim], already
  // scaled; query i sees visible[i] of them, 0 to count.  Room to work in: `scores` [queries, kBlock],
  // `shrink` [queries].
  void (*attend)(const float* q, int queries, int head_dim, const KeyBlock& block,
                 const int32_t* visible, const Partial& into, float* scores, float* shrink);
  // into = what both have seen, for `queries` queries.
  void (*merge)(const Partial& into, const Partial& more, int queries, int head_dim);
  // weighted / sum.
  void (*finish)(const Partial& from, int query, int head_dim, float* out);
  // One head's vector to int8 with one scale, and back.
  float (*to_int8)(const float* x, int size, int8_t* out);
  void (*from_int8)(const int8_t* x, float scale, int size, float* out);
};

// Of each instruction set; null where it was not compiled for this kind of processor.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

// The fastest table that this processor can run; null: none.
const Kernels* best_kernels();

// The table of this name, "auto" being the fastest; null: this processor cannot run it, or there is none.
const Kernels* find_kernels(const char* name);

}  // namespace radixd
