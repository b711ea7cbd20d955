// What Python calls, through ctypes: plain C types only.  Functions that can fail give 0, or null, and
// leave a line in radixd_error(); nothing that is passed in is trusted to fit the model.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model.h"

#define RADIXD_API extern "C" __attribute__((visibility("default")))

// A step as numpy arrays; row i computes extend_lens[i] tokens behind prefix_lens[i] others, and logits
// are wanted of its last num_samples[i] tokens.
struct RadixdStep {
  int32_t num_rows;
  int32_t num_tokens;
  const int32_t* prefix_lens;    // [num_rows]
  const int32_t* extend_lens;    // [num_rows]
  const int32_t* num_samples;    // [num_rows]
  const int32_t* const* slots;   // [num_rows] each [prefix_lens[i] + extend_lens[i]]
  const int32_t* token_ids;      // [num_tokens]
  const int32_t* out_slots;      // [num_tokens]
};

struct RadixdModel;

// Of the calling thread's latest failure; "no memory" when that was it.
RADIXD_API const char* radixd_error();

// Name of the fastest kernels this processor can run; null: none.
RADIXD_API const char* radixd_kernels();

// Whether this processor can run the kernels of this name.
RADIXD_API int radixd_has_kernels(const char* name);

// A model without weights, for kernels of this name or "auto".  Null: sizes that cannot be computed,
// no such kernels, or no memory.
RADIXD_API RadixdModel* radixd_model_new(const radixd::Sizes* sizes, const char* kernels);
RADIXD_API void radixd_model_free(RadixdModel* model);

// Weights stay where they are and must outlive the model.  Parts of layer >= 0: 0 qkv, 1 out,
// 2 gate_up, 3 down; of layer -1: 0 embedding, 1 head.
RADIXD_API int radixd_model_matrix(RadixdModel* model, int layer, int part, int format, int outputs,
                                   int inputs, const uint8_t* panels, size_t num_bytes);

// Parts of layer >= 0: 0 attention norm, 1 norm before the gate; of layer -1: 0 final norm, 1 cosines,
// 2 sines.
RADIXD_API int radixd_model_vector(RadixdModel* model, int layer, int part, const float* values,
                                   size_t count);

// Allocates the pool and starts the threads; all weights must be there.
RADIXD_API int radixd_model_start(RadixdModel* model, int num_threads);

RADIXD_API void radixd_model_poison(RadixdModel* model);

// logits [sum of num_samples, vocab rounded up to a multiple of 8]; phases_ns [3] as in Phase.
RADIXD_API int radixd_forward(RadixdModel* model, const RadixdStep* step, float* logits,
                              size_t num_logits, int64_t* phases_ns);

// Bytes read a second by so many threads together from `num_bytes` of memory; 0: it failed.
RADIXD_API double radixd_memory_rate(size_t num_bytes, int num_threads);

// Multiply-adds a second of so many threads, each with a matrix of its own that stays in its cache;
// format as above.  0: it failed.
RADIXD_API double radixd_product_rate(int format, int rows, int outputs, int inputs, int num_threads);
