#include "forward.h"

#include <algorithm>
#include <cstring>

namespace radixd {
namespace {

// Calls of share in a layer: four products, rotating, attention and its merging, what was attended, two
// norms, the gate.
constexpr int kSharesOfLayer = 11;
constexpr int kPiecesOfThread = 8;  // of a product: small enough that nobody waits long at the end

}  // namespace

Forward::Forward(const Model& model, const Kernels& kernels, int threads)
    : model_(model), kernels_(kernels), team_(threads), desks_(threads) {
  const Sizes& s = model.sizes;
  const bool is_resident = fits_easily(s);
  for (int i = 0; i < s.layers; ++i) pool_.emplace_back(s, is_resident);
  for (Desk& desk : desks_) {
    const size_t queries = size_t(std::max(kTileTokens, kSplitRows)) * s.groups();
    desk.q.resize(queries * s.head_dim);
    desk.scores.resize(queries * kBlock);
    desk.shrink.resize(queries);
    desk.keys.resize(size_t(kBlock) * s.head_dim);
    desk.values.resize(size_t(kBlock) * s.head_dim);
    desk.numbers.resize(4 * queries);
    desk.weighted.resize(2 * queries * s.head_dim);
    desk.visible.resize(queries);
  }
}

void Forward::poison() {
  for (LayerPool& pool : pool_) pool.poison();
}

void Forward::reserve(int num_tokens) {
  const Sizes& s = model_.sizes;
  if (num_tokens > room_) {
    const size_t n = num_tokens;
    const size_t widest = std::max({s.hidden, s.inner, s.query_size()});
    hidden_.resize(n * s.hidden);
    normed_.resize(n * s.hidden);
    qkv_.resize(n * s.qkv_size());
    attended_.resize(n * s.query_size());
    gate_up_.resize(n * std::max(2 * s.inner, s.hidden));  // also holds the rows that sample
    inner_.resize(n * s.inner);
    quants_.resize(n * widest);
    scales_.resize(n * (widest / kGroup + 1));
    sums_.resize(n * (widest / kGroup + 1));
    room_ = num_tokens;
  }
  const size_t numbers = size_t(plan_.num_partials) * s.heads * (s.head_dim + 2);
  if (partials_.size() < numbers) partials_.resize(numbers);
}

void Forward::run(const Step& step, float* logits) {
  std::fill_n(phases_ns_, int(kNumPhases), 0);
  lap_ = std::chrono::steady_clock::now();
  plan_.build(step.rows);
  reserve(step.num_tokens);
  const int phases = kSharesOfLayer * model_.sizes.layers + 4;
  team_.run(phases, [&](Member& member) { work(member, step, logits); });
  lap(Member(team_, 0, -1), kRest);
}

void Forward::lap(const Member& member, Phase phase) {
  if (member.index() != 0) return;
  const auto now = std::chrono::steady_clock::now();
  phases_ns_[phase] += std::chrono::nanoseconds(now - lap_).count();
  lap_ = now;
}

void Forward::work(Member& member, const Step& step, float* logits) {
  const Sizes& s = model_.sizes;
  embed(member, step);
  for (int i = 0; i < s.layers; ++i) layer(member, step, i);
  const int wanted = int(step.sampled.size());
  if (wanted == 0) return;
  // The head is the largest matrix: only rows that sample go through it.  Their normed vectors move
  // to where nobody reads any more.
  member.share(wanted, 1, [&](int row, int) {
    float* x = &gate_up_[size_t(row) * s.hidden];
    std::memcpy(x, &normed_[size_t(step.sampled[row]) * s.hidden], s.hidden * sizeof(float));
    prepare(model_.head, x, row);
  });
  member.wait();
  lap(member, kRest);
  product(member, model_.head, wanted, gate_up_.data(), logits);
}

void Forward::embed(Member& member, const Step& step) {
  const Sizes& s = model_.sizes;
  const Layer& first = model_.layers[0];
  member.share(step.num_tokens, 1, [&](int token, int) {
    float* x = &hidden_[size_t(token) * s.hidden];
    float* normed = &normed_[size_t(token) * s.hidden];
    read_row(model_.embedding, step.token_ids[token], x);
    kernels_.rms_norm(x, first.attention_norm, normed, s.hidden, s.norm_eps);
    prepare(first.qkv, normed, token);
  });
  member.wait();
}

void Forward::layer(Member& member, const Step& step, int index) {
  const Sizes& s = model_.sizes;
  const Layer& layer = model_.layers[index];
  const bool is_last = index + 1 == s.layers;
  const int n = step.num_tokens;
  lap(member, kRest);
  product(member, layer.qkv, n, normed_.data(), qkv_.data());
  rotate_and_store(member, step, index);
  lap(member, kRest);
  attention(member, step, index);
  lap(member, kAttention);
  member.share(n, 1, [&](int token, int) {
    prepare(layer.out, &attended_[size_t(token) * s.query_size()], token);
  });
  member.wait();
  lap(member, kRest);
  product(member, layer.out, n, attended_.data(), normed_.data());
  const auto add_and_norm = [&](const float* norm, const Matrix* next) {
    member.share(n, 1, [&](int token, int) {
      float* normed = &normed_[size_t(token) * s.hidden];
      kernels_.add_rms_norm(&hidden_[size_t(token) * s.hidden], normed, norm, s.hidden, s.norm_eps);
      if (next != nullptr) prepare(*next, normed, token);
    });
    member.wait();
    lap(member, kRest);
  };
  add_and_norm(layer.mlp_norm, &layer.gate_up);
  product(member, layer.gate_up, n, normed_.data(), gate_up_.data());
  member.share(n, 1, [&](int token, int) {
    float* inner = &inner_[size_t(token) * s.inner];
    kernels_.silu_mul(&gate_up_[size_t(token) * 2 * s.inner], inner, s.inner);
    prepare(layer.down, inner, token);
  });
  member.wait();
  lap(member, kRest);
  product(member, layer.down, n, inner_.data(), normed_.data());
  add_and_norm(is_last ? model_.final_norm : model_.layers[index + 1].attention_norm,
               is_last ? nullptr : &model_.layers[index + 1].qkv);
}

// One row's input to the form its matrix reads.
void Forward::prepare(const Matrix& consumer, const float* x, int row) {
  if (consumer.format == Format::kFloat32) return;
  const size_t groups = consumer.inputs / kGroup, first = row * groups;
  const size_t width = consumer.format == Format::kInt8 ? sizeof(int16_t) : sizeof(int8_t);
  char* quants = reinterpret_cast<char*>(quants_.data()) + row * size_t(consumer.inputs) * width;
  kernels_.quantise(consumer.format, x, consumer.inputs, quants, &scales_[first], &sums_[first]);
}

void Forward::product(Member& member, const Matrix& w, int rows, const float* x, float* y) {
  const Rows in{rows, w.inputs, x, quants_.data(), scales_.data(), sums_.data()};
  const size_t stride = size_t(w.num_panels()) * kPanel;
  const int pieces = team_.size() == 1 ? 1 : team_.size() * kPiecesOfThread;
  const int piece = (w.num_panels() + 2 * pieces - 1) / (2 * pieces) * 2;
  member.share(w.num_panels(), piece,
               [&](int begin, int end) { kernels_.product(w, in, y, stride, begin, end); });
  member.wait();
  lap(member, kProducts);
}

void Forward::rotate_and_store(Member& member, const Step& step, int index) {
  const Sizes& s = model_.sizes;
  const int half = s.head_dim / 2, rotated = s.heads + s.kv_heads;
  member.share(step.num_tokens, 1, [&](int token, int) {
    float* heads = &qkv_[size_t(token) * s.qkv_size()];
    const size_t angle = size_t(step.positions[token]) * half;
    for (int head = 0; head < rotated; ++head)
      kernels_.rotate(heads + head * s.head_dim, model_.cos + angle, model_.sin + angle,
                      s.head_dim);
    const float* keys = heads + s.query_size();
    pool_[index].write(kernels_, false, step.out_slots[token], keys);
    pool_[index].write(kernels_, true, step.out_slots[token], keys + s.kv_heads * s.head_dim);
  });
  member.wait();
}

}  // namespace radixd
