#include "api.h"

#include <memory>
#include <string>

#include "forward.h"
#include "guard.h"

using namespace radixd;

struct RadixdModel {
  Model model{};
  const Kernels* kernels = nullptr;
  std::unique_ptr<Forward> forward;
};

namespace {

const char* problem_of(const Sizes& s) {
  if (s.layers < 1 || s.hidden < 1 || s.inner < 1 || s.vocab < 1 || s.max_length < 1)
    return "a size is below 1";
  if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0)
    return "heads are not a multiple of kv_heads";
  if (s.head_dim < 16 || s.head_dim % 16 != 0) return "head_dim is not a multiple of 16";
  if (s.hidden % kPanel != 0 || s.inner % kPanel != 0)
    return "hidden or intermediate size is not a multiple of 8";
  if (s.num_slots < 1) return "no slots";
  return nullptr;
}

Matrix* matrix_at(Model& model, int layer, int part) {
  if (layer == -1) return part == 0 ? &model.embedding : part == 1 ? &model.head : nullptr;
  if (layer < 0 || layer >= int(model.layers.size())) return nullptr;
  Layer& l = model.layers[layer];
  Matrix* parts[] = {&l.qkv, &l.out, &l.gate_up, &l.down};
  return part >= 0 && part < 4 ? parts[part] : nullptr;
}

struct Shape {
  int outputs, inputs;
};

Shape shape_of(const Sizes& s, int layer, int part) {
  if (layer == -1) return {s.vocab, s.hidden};
  const Shape shapes[] = {{s.qkv_size(), s.hidden},
                          {s.hidden, s.query_size()},
                          {2 * s.inner, s.hidden},
                          {s.hidden, s.inner}};
  return shapes[part];
}

const float** vector_at(Model& model, int layer, int part) {
  const float** of_model[] = {&model.final_norm, &model.cos, &model.sin};
  if (layer == -1) return part >= 0 && part < 3 ? of_model[part] : nullptr;
  if (layer < 0 || layer >= int(model.layers.size()) || part < 0 || part > 1) return nullptr;
  Layer& l = model.layers[layer];
  return part == 0 ? &l.attention_norm : &l.mlp_norm;
}

bool is_complete(const Model& model) {
  bool complete = model.embedding.panels && model.head.panels && model.final_norm && model.cos &&
                  model.sin;
  for (const Layer& l : model.layers)
    complete = complete && l.attention_norm && l.mlp_norm && l.qkv.panels && l.out.panels &&
               l.gate_up.panels && l.down.panels;
  return complete;
}

bool in_range(const int32_t* values, int count, int begin, int end) {
  for (int i = 0; i < count; ++i)
    if (values[i] < begin || values[i] >= end) return false;
  return true;
}

// One row of the step, checked; a problem or null.
const char* add_row(const Sizes& s, const RadixdStep& in, int i, int first, Step& step) {
  const int prefix = in.prefix_lens[i], extend = in.extend_lens[i];
  if (prefix < 0 || extend < 1 || extend > in.num_tokens - first) return "a length cannot be";
  if (prefix > s.max_length - extend) return "a row is longer than can be";
  if (in.num_samples[i] < 0 || in.num_samples[i] > extend) return "num_samples cannot be";
  const int32_t* slots = in.slots[i];
  if (!in_range(slots, prefix + extend, 0, s.num_slots)) return "a slot is not in the pool";
  step.rows.push_back({slots, prefix, extend, first});
  for (int j = 0; j < extend; ++j) step.positions.push_back(prefix + j);
  for (int j = extend - in.num_samples[i]; j < extend; ++j) step.sampled.push_back(first + j);
  return nullptr;
}

const char* checked(const Sizes& s, const RadixdStep& in, Step& step) {
  if (in.num_rows < 1 || in.num_tokens < 1) return "an empty step";
  if (!in_range(in.token_ids, in.num_tokens, 0, s.vocab)) return "a token is not in the vocabulary";
  if (!in_range(in.out_slots, in.num_tokens, 0, s.num_slots)) return "an out slot is not in the pool";
  step.num_tokens = in.num_tokens;
  step.token_ids = in.token_ids;
  step.out_slots = in.out_slots;
  int first = 0;
  for (int i = 0; i < in.num_rows; first += in.extend_lens[i++])
    if (const char* problem = add_row(s, in, i, first, step)) return problem;
  return first == in.num_tokens ? nullptr : "rows and tokens do not match";
}

}  // namespace

const char* radixd_error() { return last_error.c_str(); }

const char* radixd_kernels() {
  const Kernels* kernels = best_kernels();
  return kernels != nullptr ? kernels->name : nullptr;
}

int radixd_has_kernels(const char* name) { return find_kernels(name) != nullptr; }

RadixdModel* radixd_model_new(const Sizes* sizes, const char* kernels) {
  return guarded(static_cast<RadixdModel*>(nullptr), [&]() -> RadixdModel* {
    if (const char* problem = problem_of(*sizes)) {
      fail(problem);
      return nullptr;
    }
    const Kernels* table = find_kernels(kernels);
    if (table == nullptr) {
      fail("no such kernels for this processor");
      return nullptr;
    }
    auto model = std::make_unique<RadixdModel>();
    model->kernels = table;
    model->model.sizes = *sizes;
    model->model.layers.resize(sizes->layers);
    return model.release();
  });
}

void radixd_model_free(RadixdModel* model) { delete model; }

int radixd_model_matrix(RadixdModel* model, int layer, int part, int format, int outputs, int inputs,
                        const uint8_t* panels, size_t num_bytes) {
  Matrix* matrix = matrix_at(model->model, layer, part);
  if (matrix == nullptr) return fail("no such matrix");
  if (format < 0 || format > int(Format::kInt4)) return fail("no such format");
  const Shape shape = shape_of(model->model.sizes, layer, part);
  if (outputs != shape.outputs || inputs != shape.inputs) return fail("a matrix of another shape");
  const Matrix given{Format(format), outputs, inputs, panels};
  if (given.format != Format::kFloat32 && inputs % kGroup != 0)
    return fail("inputs are not a multiple of 32");
  if (num_bytes != size_t(given.num_panels()) * given.panel_bytes())
    return fail("a matrix of another size");
  *matrix = given;
  return 1;
}

int radixd_model_vector(RadixdModel* model, int layer, int part, const float* values, size_t count) {
  const float** vector = vector_at(model->model, layer, part);
  if (vector == nullptr) return fail("no such vector");
  const Sizes& s = model->model.sizes;
  const bool is_table = layer == -1 && part > 0;
  const size_t wanted = is_table ? size_t(s.max_length) * (s.head_dim / 2) : size_t(s.hidden);
  if (count != wanted) return fail("a vector of another length");
  *vector = values;
  return 1;
}

int radixd_model_start(RadixdModel* model, int num_threads) {
  if (!is_complete(model->model)) return fail("weights are missing");
  if (num_threads < 1) return fail("no threads");
  return guarded(0, [&] {
    model->forward = std::make_unique<Forward>(model->model, *model->kernels, num_threads);
    return 1;
  });
}

void radixd_model_poison(RadixdModel* model) {
  if (model->forward) model->forward->poison();
}

int radixd_forward(RadixdModel* model, const RadixdStep* in, float* logits, size_t num_logits,
                   int64_t* phases_ns) {
  if (!model->forward) return fail("not started");
  return guarded(0, [&] {
    Step step{};
    if (const char* problem = checked(model->model.sizes, *in, step)) return fail(problem);
    Forward& forward = *model->forward;
    if (num_logits != step.sampled.size() * size_t(forward.logits_stride()))
      return fail("room for other logits");
    forward.run(step, logits);
    for (int i = 0; i < kNumPhases; ++i) phases_ns[i] = forward.phases_ns()[i];
    return 1;
  });
}
