// The forward pass of a step: tokens and slots in, logits out.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "attention_plan.h"
#include "model.h"
#include "team.h"

namespace radixd {

struct Step {
  int num_tokens;
  const int32_t* token_ids;
  std::vector<int32_t> positions;
  const int32_t* out_slots;
  std::vector<RowSpan> rows;
  std::vector<int32_t> sampled;  // tokens whose logits are wanted
};

enum Phase { kProducts, kAttention, kRest, kNumPhases };

class Forward {
 public:
  Forward(const Model& model, const Kernels& kernels, int threads);

  // logits [sampled, padded vocabulary].  Everything in the step has been checked.
  void run(const Step& step, float* logits);

  void poison();
  const int64_t* phases_ns() const { return phases_ns_; }
  int logits_stride() const { return model_.head.num_panels() * kPanel; }

 private:
  using Member = Team::Member;

  // What one thread needs to attend: queries, partial results, scores, room to widen keys.
  struct Desk {
    std::vector<float> q, scores, shrink, keys, values, numbers, weighted;
    std::vector<int32_t> visible;
  };

  void reserve(int num_tokens);
  void work(Member& member, const Step& step, float* logits);
  void embed(Member& member, const Step& step);
  void layer(Member& member, const Step& step, int index);
  void prepare(const Matrix& consumer, const float* x, int row);
  void product(Member& member, const Matrix& w, int rows, const float* x, float* y);
  void rotate_and_store(Member& member, const Step& step, int index);
  void attention(Member& member, const Step& step, int index);
  void tile(Desk& desk, const Step& step, const Tile& tile, int layer, int head);
  void split(Desk& desk, const Step& step, const Split& split, int layer, int head);
  void merge_splits(const Decode& decode, int head, const Step& step);
  void attend(Desk& desk, const Call& call, int layer, int head, const Partial& into);
  void load_query(float* q, int token, int head) const;
  float* attended(int token, int head);
  Partial stored(int partial, int head);
  void lap(const Member& member, Phase phase);

  const Model& model_;
  const Kernels& kernels_;
  Team team_;
  std::vector<LayerPool> pool_;
  std::vector<Desk> desks_;
  AttentionPlan plan_;
  int room_ = 0;  // tokens the buffers hold
  std::vector<float> hidden_, normed_, qkv_, attended_, gate_up_, inner_, scales_, sums_;
  std::vector<int16_t> quants_;
  std::vector<float> partials_;  // [partial, head] of (largest, sum, weighted [head_dim])
  std::chrono::steady_clock::time_point lap_;
  int64_t phases_ns_[kNumPhases] = {};
};

}  // namespace radixd
