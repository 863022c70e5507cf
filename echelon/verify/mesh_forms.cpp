#include "echelon/verify/mesh_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "echelon/parallel/pipeline/balance.h"
#include "echelon/parallel/pipeline/simulate.h"
#include "echelon/verify/data.h"
#include "echelon/verify/model_forms.h"

namespace echelon {
namespace {

using Bytes = std::uint64_t;

Bytes aligned(Bytes n, Bytes to = 32) { return (n + to - 1) / to * to; }

class Form {
 public:
  explicit Form(const Strategy& strategy)
      : job_(strategy.options),
        form_(form_of(job_.model)),
        element_(strategy.element()),
        sum_element_(strategy.sum_element()),
        wide_(strategy.narrow() ? 4 : 8),
        p_(Bytes(job_.parallel.pipeline)),
        d_(Bytes(job_.parallel.data)),
        t_(Bytes(job_.parallel.tensor)),
        m_(Bytes(job_.train.micro_batches)),
        blocks_(Bytes(job_.model.layers)),
        h_(Bytes(job_.model.width)),
        s_(Bytes(job_.model.context)),
        rows_(Bytes(job_.train.batch) * s_),
        zero_(int(job_.parallel.zero)),
        rows_are_split_(t_ > 1 && job_.parallel.sequence && s_ % t_ == 0) {
    const int layers = int(blocks_) + 2;
    if (p_ == 1) {
      owner_.assign(std::size_t(layers), 0);
      return;
    }
    const PipelineShape shape = pipeline_of(job_);
    stages_ = balance(std::vector<LayerCost>(std::size_t(layers)), BalanceBy::count,
                      job_.pipeline.schedule, shape);
    owner_ = layer_owners(stages_, shape);
  }

  int layers() const { return int(owner_.size()); }
  int owner(int layer) const { return owner_[std::size_t(layer)]; }

  // Elements of the table, which a tensor group splits by rows and pads.
  Bytes table() const { return (Bytes(job_.model.vocab) + t_ - 1) / t_ * h_; }

  // With LoRA everything is frozen but the adaptations of the blocks.
  bool adapted() const { return job_.model.lora.rank > 0; }

  // A stage that is tied to the table of another one has a copy.
  bool tied() const { return job_.model.tied && form_.loss_over_vocabulary; }
  bool tied_across() const { return tied() && p_ > 1; }
  bool has_tied(int layer) const {
    return !adapted() && tied_across() && (layer == 0 || layer + 1 == layers());
  }

  // Elements of each trainable parameter of a layer.
  std::vector<Bytes> parameters(int layer) const {
    if (!adapted()) return of_model(layer);
    const bool head = layer + 1 == layers();
    if (layer == 0 || (head && form_.loss_over_vocabulary)) return {};
    return head ? form_.head(job_.model, t_) : form_.adapted(job_.model, t_).parameters;
  }

  // The same of the model without adaptations.
  std::vector<Bytes> of_model(int layer) const {
    const bool head = layer + 1 == layers();
    if (layer > 0 && !head) return form_.block(job_.model, t_);
    std::vector<Bytes> all = head ? form_.head(job_.model, t_) : form_.embedding(job_.model);
    if (!head || (form_.loss_over_vocabulary && (!tied() || tied_across()))) all.push_back(table());
    return all;
  }

  // Elements of a layer on one rank of a tensor group, with the padding of each parameter and the
  // padding to even slices, separately for a copied table and for the rest.
  Bytes group(int layer) const { return copied(layer) + rest(layer); }
  Bytes copied(int layer) const { return has_tied(layer) ? shared_out(aligned(table())) : 0; }
  Bytes rest(int layer) const {
    Bytes sum = 0;
    for (const Bytes n : parameters(layer)) sum += aligned(n);
    return shared_out(has_tied(layer) ? sum - aligned(table()) : sum);
  }
  Bytes shared_out(Bytes n) const { return zero_ > 0 ? aligned(n, 32 * d_) : n; }

  Bytes part(int rank) const {
    Bytes sum = 0;
    for (int l = 0; l < layers(); ++l)
      if (owner(l) == rank) sum += group(l) * element_;
    return sum;
  }

  Bytes frozen(int rank) const {
    if (!adapted()) return 0;
    Bytes sum = 0;
    // A head over labels is trained as a whole.
    const int end = form_.loss_over_vocabulary ? layers() : layers() - 1;
    for (int l = 0; l < end; ++l)
      for (const Bytes n : of_model(l)) sum += owner(l) == rank ? aligned(n) * element_ : 0;
    return sum;
  }

  // The first stages, as long as no layer trains in or below them. No gradient goes to them.
  int stages_without_backward() const {
    int lowest = 0;
    while (lowest < layers() && parameters(lowest).empty()) ++lowest;
    return int(
        std::ranges::count_if(stages_, [&](const StageLayers& s) { return s.end <= lowest; }));
  }

  // The slots that a rank ran, with those of stages without a backward where its schedule has them.
  PipelineSchedule completed(PipelineSchedule ran) const {
    const PipelineShape shape = pipeline_of(job_);
    const int without = stages_without_backward();
    if (without == 0) return ran;
    const PipelineSchedule schedule = make_schedule(job_.pipeline.schedule, shape);
    for (std::size_t rank = 0; rank < ran.size(); ++rank)
      for (std::size_t i = 0; i < schedule[rank].size(); ++i) {
        const Slot& slot = schedule[rank][i];
        const bool left_out =
            slot.kind != Slot::Kind::forward && shape.stage(int(rank), slot.chunk) < without;
        if (left_out && i <= ran[rank].size())
          ran[rank].insert(ran[rank].begin() + std::ptrdiff_t(i), slot);
      }
    return ran;
  }

  std::map<std::string, Bytes> bytes() const {
    const auto steps = Bytes(job_.train.steps);
    std::map<std::string, Bytes> all = {
        {"activations", steps * activations()},
        {"tensor", steps * tensor()},
        {"vocabulary", form_.loss_over_vocabulary ? sum(t_) * 3 * target_rows(job_) * wide_ : 0},
        {"norms", steps * (norms_of_rows() + norms_of_parameters())},
        {"lora", steps * adaptations()},
        {"tied gradients", has_tied(0) ? steps * d_ * t_ * sum(2) * table() * sum_element_ : 0},
        {"gradients", steps * gradients()},
        {"parameters", parameters_sent(steps)},
        {"norm",
         steps * 8 * ((zero_ > 0 ? p_ * t_ * sum(d_) : 0) + p_ * d_ * sum(t_) + d_ * t_ * sum(p_))},
        {"loss", steps * 8 * (d_ * t_ * sum(p_) + p_ * t_ * sum(d_))}};
    std::erase_if(all, [](const auto& one) { return one.second == 0; });
    return all;
  }

 private:
  static Bytes sum(Bytes ranks) { return 2 * (ranks - 1); }  // of one element

  Bytes activations() const {
    if (p_ == 1) return 0;
    const Bytes boundaries = stages_.size() - 1;
    const Bytes messages = 2 * boundaries - Bytes(stages_without_backward());
    return messages * rows_ * h_ * element_ * (rows_are_split_ ? 1 : t_);
  }

  // Halves of an all-reduce of all rows: of a block, of the embedding and of the head. A head over
  // labels needs the first token of each sample, from the ranks that have its row.
  Bytes tensor() const {
    const bool again = job_.model.recompute == Recompute::full;
    const Bytes products = form_.ends_with_norm ? 2 : 1;  // of a block's two row splits, run again
    const bool logits = form_.loss_over_vocabulary;
    // Frozen products and tables do not gather rows again for their gradients.
    const Bytes unread = adapted() ? blocks_ + 1 + (logits ? 1 : 0) : 0;
    const Bytes halves =
        rows_are_split_
            ? (10 + (again ? 2 + products : 0)) * blocks_ + 2 + (logits ? 3 : 0) - unread
            : 2 * ((4 + (again ? products : 0)) * blocks_ + 1 + (logits ? 1 : 0));
    const Bytes first_tokens = rows_are_split_ && !logits ? 2 * Bytes(job_.train.batch) : 0;
    return (halves * rows_ + first_tokens) * (t_ - 1) * h_ * element_;
  }

  Bytes adaptations() const {
    return adapted() ? m_ * d_ * sum(t_) * blocks_ * form_.adapted(job_.model, t_).summed * element_
                     : 0;
  }

  Bytes norms_of_rows() const {
    if (!rows_are_split_ || adapted()) return 0;
    Bytes elements = blocks_ * form_.rows_of_block(job_.model) + form_.rows_of_head(job_.model);
    for (const Bytes n : form_.embedding(job_.model)) elements += n;
    return m_ * d_ * sum(t_) * elements * element_;
  }

  Bytes norms_of_parameters() const {
    if (job_.optim.name != OptimizerKind::lars && job_.optim.name != OptimizerKind::lamb) return 0;
    Bytes count = 0;
    for (int l = 0; l < layers(); ++l) count += parameters(l).size();
    return count * 2 * 8 * (d_ * sum(t_) + (zero_ > 0 ? t_ * sum(d_) : 0));
  }

  Bytes gradients() const {
    Bytes all = 0;
    for (int l = 0; l < layers(); ++l)
      all += zero_ == 0 ? sum(d_) * group(l) : (d_ - 1) * (copied(l) + scatters(l) * rest(l));
    return t_ * all * sum_element_;
  }

  // Gradients are reduced to their owners once per step, or whenever no micro-batch is half-way
  // through the layer. With zero-bubble one always is until the last, except on the first rank,
  // whose weight parts follow immediately. A copied table waits for the other stage.
  Bytes scatters(int layer) const {
    if (zero_ == 1 || job_.zero.scatter == ScatterOption::step) return 1;
    return job_.pipeline.schedule == PipelineOrder::zero_bubble && owner(layer) > 0 ? 1 : m_;
  }

  Bytes parameters_sent(Bytes steps) const {
    if (zero_ == 0) return 0;
    std::vector<Bytes> gathers(std::size_t(layers()), steps + 1);
    if (zero_ == 3) {
      gathers.assign(gathers.size(), 0);
      for (int rank = 0; rank < int(p_); ++rank) count_gathers(rank, steps, gathers);
    }
    Bytes all = 0;
    for (int l = 0; l < layers(); ++l) all += gathers[std::size_t(l)] * group(l);
    return t_ * (d_ - 1) * all * element_;
  }

  // A group that two consecutive uses share stays.
  void count_gathers(int rank, Bytes steps, std::vector<Bytes>& gathers) const {
    std::vector<int> here;
    const auto use = [&](int layer) {
      std::vector<int> needed = {layer};
      if (tied() && p_ == 1 && layer + 1 == layers()) needed.push_back(0);
      std::erase_if(needed, [&](int l) { return group(l) == 0; });
      if (needed.empty()) return;
      for (const int l : needed)
        if (std::find(here.begin(), here.end(), l) == here.end()) gathers[std::size_t(l)] += steps;
      here = needed;
    };
    for (const auto& [begin, end, forward] : uses_of(rank))
      for (int i = 0; i < end - begin; ++i) use(forward ? begin + i : end - 1 - i);
  }

  // Runs of layers in the order in which a rank uses their values; weight parts use none.
  struct Use {
    int begin, end;
    bool forward;
  };
  std::vector<Use> uses_of(int rank) const {
    std::vector<Use> all;
    if (p_ == 1) {
      for (Bytes m = 0; m < m_; ++m)
        for (const bool forward : {true, false}) all.push_back({0, layers(), forward});
      return all;
    }
    const PipelineShape shape = pipeline_of(job_);
    const PipelineSchedule schedule = make_schedule(job_.pipeline.schedule, shape);
    for (const auto& slot : schedule[std::size_t(rank)]) {
      if (slot.kind == Slot::Kind::weight) continue;
      const auto [begin, end] = stages_[std::size_t(shape.stage(rank, slot.chunk))];
      all.push_back({begin, end, slot.kind == Slot::Kind::forward});
    }
    return all;
  }

  const JobOptions& job_;
  const ModelForm& form_;
  Bytes element_, sum_element_, wide_;
  Bytes p_, d_, t_, m_, blocks_, h_, s_, rows_;
  int zero_;
  bool rows_are_split_;
  std::vector<StageLayers> stages_;  // empty: no pipeline
  std::vector<int> owner_;           // by layer: rank of the pipeline
};

}  // namespace

std::map<std::string, std::uint64_t> mesh_bytes(const Strategy& strategy) {
  return Form(strategy).bytes();
}

PipelineSchedule with_left_out(const Strategy& strategy, PipelineSchedule ran) {
  return Form(strategy).completed(std::move(ran));
}

std::uint64_t part_bytes(const Strategy& strategy, int pipeline_rank) {
  return Form(strategy).part(pipeline_rank);
}

std::uint64_t frozen_bytes(const Strategy& strategy, int pipeline_rank) {
  return Form(strategy).frozen(pipeline_rank);
}

std::string to_string(const Ratio& ratio) {
  const auto common = std::max<std::int64_t>(1, std::gcd(ratio.over, ratio.under));
  return fmt::format("{}/{}", ratio.over / common, ratio.under / common);
}

PipelineShape pipeline_of(const JobOptions& job) {
  return {.ranks = int(job.parallel.pipeline),
          .micro_batches = int(job.train.micro_batches),
          .chunks = int(job.pipeline.chunks)};
}

Ratio bubble_form(PipelineOrder schedule, const PipelineShape& shape) {
  const std::int64_t p = shape.ranks, m = shape.micro_batches, v = shape.chunks;
  if (schedule == PipelineOrder::zero_bubble) return {std::max(p - 1, 2 * p - 1 - m), 3 * m};
  return {p - 1, v * m};
}

// Costs are integers, so the simulator's times are exact integers.
Ratio bubble_of(const PipelineSchedule& ran, const PipelineShape& shape) {
  const std::vector<StageCosts> unit(std::size_t(shape.stages()),
                                     {.forward = 1, .input = 1, .weight = 1});
  const Timeline timeline = simulate(ran, shape, unit);
  std::int64_t ideal = 0;
  for (int rank = 0; rank < shape.ranks; ++rank)
    ideal = std::max(ideal, std::int64_t(timeline.busy(rank)));
  return {std::int64_t(timeline.end()) - ideal, ideal};
}

}  // namespace echelon
