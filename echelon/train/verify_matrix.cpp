// Greedy covering: the first pair of values that no choice has yet is completed to a choice, factor
// by factor, each time by the value that makes the most new pairs with what is chosen; where that
// leads nowhere, by the next best. In fp64 first, which shows the smallest mistake: a pair that can
// be in fp64 is.
#include "echelon/train/verify_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <tuple>

namespace echelon {
namespace {

constexpr int largest_world = 8;
constexpr int blocks = 6, layers = blocks + 2;

enum Factor : std::size_t {
  mesh,
  zero,
  schedule,
  recompute,
  precision,
  sums,
  sequence,
  tied,
  optimizer,
  clip,
  micro_batches,
  dropout,
  scatter,
  offload,
};

struct Shape {
  int pipeline, data, tensor;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = [] {
    std::vector<Shape> some;
    for (int world = 1; world <= largest_world; ++world)
      for (int pipeline = 1; pipeline <= world; ++pipeline)
        for (int data = 1; pipeline * data <= world; ++data)
          if (world % (pipeline * data) == 0)
            some.push_back({pipeline, data, world / pipeline / data});
    return some;
  }();
  return all;
}

const std::string& value(const MatrixChoice& choice, Factor factor) {
  return matrix_factors()[factor].values[std::size_t(choice[factor])];
}

const Shape& shape_of(const MatrixChoice& choice) { return shapes()[std::size_t(choice[mesh])]; }

// A pipeline has as many as it has ranks, or twice as many, so that every schedule can be.
int pieces_of(const MatrixChoice& choice) {
  const int ranks = shape_of(choice).pipeline;
  const std::array pieces = {1, ranks > 1 ? ranks : 2, ranks > 1 ? 2 * ranks : 3};
  return pieces[std::size_t(choice[micro_batches])];
}

int chunks_of(const MatrixChoice& choice) {
  return value(choice, schedule) == "interleaved" ? layers / shape_of(choice).pipeline : 1;
}

}  // namespace

const std::vector<MatrixFactor>& matrix_factors() {
  static const std::vector<MatrixFactor> factors = [] {
    std::vector<std::string> meshes;
    for (const auto& [p, d, t] : shapes()) meshes.push_back(fmt::format("{}x{}x{}", p, d, t));
    return std::vector<MatrixFactor>{
        {"mesh", meshes},
        {"parallel.zero", {"0", "1", "2", "3"}},
        {"pipeline.schedule", {"none", "gpipe", "1f1b", "interleaved", "zero-bubble"}},
        {"model.recompute", {"none", "selective", "full"}},
        {"train.precision", {"fp64", "bf16", "fp16"}},
        {"train.reduce", {"auto", "fp32"}},
        {"parallel.sequence", {"false", "true"}},
        {"model.tied", {"true", "false"}},
        {"optim.name", {"adamw", "sgd", "lars", "lamb"}},
        {"optim.clip", {"0", "0.01"}},
        {"train.micro_batches", {"one", "some", "more"}},
        {"model.dropout", {"0", "0.1"}},
        {"zero.scatter", {"auto", "step", "micro_batch"}},
        {"zero.offload", {"none", "host", "disk"}}};
  }();
  return factors;
}

bool can_go_together(const MatrixChoice& choice) {
  const auto open = [&](Factor factor) { return choice[factor] < 0; };
  const auto is = [&](Factor factor, int which) { return choice[factor] == which; };
  const auto more = [&](Factor factor) { return choice[factor] > 0; };  // not the first value
  if (!open(mesh)) {
    const auto [p, d, t] = shape_of(choice);
    if (!open(schedule) && (p > 1) != more(schedule)) return false;
    if (more(schedule) && value(choice, schedule) == "interleaved" && 2 * p > layers) return false;
    if (more(sequence) && t == 1) return false;
    // One owner is for a state that is kept elsewhere.
    if (more(zero) && d == 1 && is(offload, 0)) return false;
    // Tied gradients of two stages are summed once a step, and those in fp32 after each piece.
    if (p > 1 && is(tied, 0) && more(sums) && choice[zero] >= 2) return false;
  }
  if (more(schedule) && value(choice, schedule) == "interleaved" && is(micro_batches, 0))
    return false;
  if (more(offload) && is(zero, 0)) return false;
  if (more(sums) && is(precision, 0)) return false;
  if (more(sums) && more(scatter) && value(choice, scatter) == "step") return false;
  // When gradients go to their owners is a question where they are added up there.
  const bool nothing_adds_up = is(zero, 0) || is(zero, 1) || is(micro_batches, 0);
  if (more(scatter) && nothing_adds_up) return false;
  if (is(scatter, 0) && choice[zero] >= 2 && more(micro_batches)) return false;
  return true;
}

namespace {

// Pairs of values, each of two factors of which the first has the smaller number.
class Pairs {
 public:
  using Pair = std::tuple<std::size_t, int, std::size_t, int>;

  Pairs() {
    const auto& all = matrix_factors();
    for (std::size_t f = 0; f < all.size(); ++f)
      for (int v = 0; v < std::ssize(all[f].values); ++v)
        for (std::size_t g = f + 1; g < all.size(); ++g)
          for (int w = 0; w < std::ssize(all[g].values); ++w) left_.insert({f, v, g, w});
  }

  bool empty() const { return left_.empty(); }
  Pair first() const { return *left_.begin(); }
  void drop(const Pair& pair) { left_.erase(pair); }
  void drop_all_of(const MatrixChoice& choice) {
    for (std::size_t f = 0; f < choice.size(); ++f)
      for (std::size_t g = f + 1; g < choice.size(); ++g) left_.erase({f, choice[f], g, choice[g]});
  }
  // That a value would make with what is chosen.
  int made_by(const MatrixChoice& choice, std::size_t factor, int value) const {
    int made = 0;
    for (std::size_t g = 0; g < choice.size(); ++g)
      if (g != factor && choice[g] >= 0)
        made += g < factor ? left_.contains({g, choice[g], factor, value})
                           : left_.contains({factor, value, g, choice[g]});
    return made;
  }

 private:
  std::set<Pair> left_;
};

// `used` says how often each value was taken: of those that make as many pairs, the rarest.
bool complete(MatrixChoice& choice, const Pairs& left, const std::vector<std::vector<int>>& used) {
  if (!can_go_together(choice)) return false;
  const auto open = std::find(choice.begin(), choice.end(), -1);
  if (open == choice.end()) return true;
  const auto factor = std::size_t(open - choice.begin());
  std::vector<int> values(matrix_factors()[factor].values.size());
  std::iota(values.begin(), values.end(), 0);
  std::stable_sort(values.begin(), values.end(), [&](int a, int b) {
    const auto worth = [&](int v) {
      return std::pair(-left.made_by(choice, factor, v), used[factor][std::size_t(v)]);
    };
    return worth(a) < worth(b);
  });
  for (const int v : values) {
    choice[factor] = v;
    if (complete(choice, left, used)) return true;
  }
  choice[factor] = -1;
  return false;
}

}  // namespace

std::vector<MatrixChoice> pairwise_choices() {
  const auto& factors = matrix_factors();
  std::vector<std::vector<int>> used;
  for (const auto& factor : factors) used.emplace_back(factor.values.size(), 0);
  std::vector<MatrixChoice> chosen;
  const auto cover = [&](Pairs left, const MatrixChoice& fixed) {
    for (const auto& choice : chosen) left.drop_all_of(choice);
    while (!left.empty()) {
      const auto pair = left.first();
      const auto [f, v, g, w] = pair;
      MatrixChoice choice = fixed;
      choice[f] = v;
      choice[g] = w;
      left.drop(pair);  // or it can never be
      if (choice[precision] != fixed[precision] && fixed[precision] >= 0) continue;
      if (!complete(choice, left, used)) continue;
      left.drop_all_of(choice);
      for (std::size_t i = 0; i < choice.size(); ++i) ++used[i][std::size_t(choice[i])];
      chosen.push_back(std::move(choice));
    }
  };
  MatrixChoice fixed(factors.size(), -1);
  fixed[precision] = 0;
  cover({}, fixed);
  fixed[precision] = -1;
  cover({}, fixed);
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto& a, const auto& b) { return a[mesh] < b[mesh]; });
  return chosen;
}

// Each time the one with the most values that are still missing. What a mesh is made of counts as
// values, so that all three dimensions are there together.
std::vector<MatrixChoice> quick_choices() {
  const auto values_of = [](const MatrixChoice& choice) {
    std::set<std::pair<std::size_t, int>> values;
    for (std::size_t f = mesh + 1; f < choice.size(); ++f) values.insert({f, choice[f]});
    const auto [p, d, t] = shape_of(choice);
    values.insert({mesh, world_of(choice)});
    if (p > 1 && d > 1 && t > 1) values.insert({mesh, largest_world + 1});
    return values;
  };
  std::vector<MatrixChoice> from = pairwise_choices(), chosen;
  std::erase_if(from, [](const MatrixChoice& choice) {
    const int world = world_of(choice);
    return world != 2 && world != 3 && world != 4 && world != 8;
  });
  std::set<std::pair<std::size_t, int>> left;
  for (const auto& choice : from) left.merge(values_of(choice));
  while (!left.empty()) {
    const auto missing = [&](const MatrixChoice& choice) {
      const auto values = values_of(choice);
      return std::count_if(values.begin(), values.end(),
                           [&](const auto& one) { return left.contains(one); });
    };
    const auto best = std::max_element(from.begin(), from.end(), [&](const auto& a, const auto& b) {
      return missing(a) < missing(b);
    });
    for (const auto& one : values_of(*best)) left.erase(one);
    chosen.push_back(*best);
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto& a, const auto& b) { return a[mesh] < b[mesh]; });
  return chosen;
}

int world_of(const MatrixChoice& choice) {
  const auto [p, d, t] = shape_of(choice);
  return p * d * t;
}

std::string name_of(const MatrixChoice& choice) {
  const auto is = [&](Factor factor, std::string_view text) {
    return value(choice, factor) == text;
  };
  std::string text = value(choice, mesh);
  const auto add = [&](bool really, const std::string& words) {
    if (really) text += ", " + words;
  };
  add(!is(zero, "0"), "ZeRO " + value(choice, zero));
  add(!is(schedule, "none"), value(choice, schedule));
  add(chunks_of(choice) > 1, fmt::format("{} chunks", chunks_of(choice)));
  add(pieces_of(choice) > 1, fmt::format("{} micro-batches", pieces_of(choice)));
  add(!is(scatter, "auto"), is(scatter, "step") ? "scatter a step" : "scatter a micro-batch");
  add(!is(offload, "none"), "offload " + value(choice, offload));
  add(is(sequence, "true"), "sequence");
  add(true, value(choice, precision));
  add(!is(sums, "auto"), "fp32 sums");
  add(true, value(choice, optimizer));
  add(!is(clip, "0"), "clipping");
  add(!is(recompute, "none"), "recompute " + value(choice, recompute));
  add(!is(dropout, "0"), "dropout");
  add(is(tied, "false"), "untied");
  return text;
}

JobOptions job_of(const MatrixChoice& choice, const std::string& folder) {
  const auto [p, d, t] = shape_of(choice);
  const std::int64_t even = largest_world / t * t;  // what divides over the tensor group
  JobOptions job;
  job.model = {.layers = blocks,
               .width = 4 * even,
               .heads = even,
               .vocab = 33,  // padded, whatever splits it
               .context = even,
               .tied = value(choice, tied) == "true",
               .dropout = std::stod(value(choice, dropout)),
               .recompute = value(choice, recompute)};
  job.train.steps = 4;
  job.train.batch = 24;
  job.train.micro_batches = pieces_of(choice);
  job.train.precision = value(choice, precision);
  job.train.reduce = value(choice, sums);
  job.optim.name = value(choice, optimizer);
  job.optim.clip = std::stod(value(choice, clip));
  job.optim.warmup = 2;
  if (job.optim.name == "lars") job.optim.rate = 5;  // times optim.trust
  job.parallel.pipeline = p;
  job.parallel.data = d;
  job.parallel.tensor = t;
  job.parallel.zero = choice[zero];
  job.parallel.sequence = value(choice, sequence) == "true";
  if (p > 1) job.pipeline.schedule = value(choice, schedule);
  job.pipeline.chunks = chunks_of(choice);
  job.pipeline.balance = "count";  // the same stages every time
  job.zero.group = 0;              // a group a layer
  job.zero.scatter = value(choice, scatter);
  job.zero.offload = value(choice, offload);
  if (job.zero.offload == "disk") job.zero.offload_path = folder;
  if (job.zero.offload != "none") job.zero.piece = 0.02;
  job.comm.timeout = 60;
  return job;
}

}  // namespace echelon
