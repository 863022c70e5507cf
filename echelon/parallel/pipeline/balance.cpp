#include "echelon/parallel/pipeline/balance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <numeric>

#include "echelon/base/error.h"

namespace echelon {
namespace {

void require_enough(int layers, const PipelineShape& shape) {
  if (layers >= shape.stages()) return;
  throw InvalidArgument(fmt::format(
      "a pipeline of {} rank{} with {} chunk{} each has {} stages, and the model has {} layers: a "
      "stage needs one; parallel.pipeline x pipeline.chunks of at most {} would do",
      shape.ranks, shape.ranks > 1 ? "s" : "", shape.chunks, shape.chunks > 1 ? "s" : "",
      shape.stages(), layers, layers));
}

// Micro-batches whose activations a stage holds at once. With several chunks: this chunk's share.
double held(int stage, PipelineOrder schedule, const PipelineShape& shape) {
  return double(closed_form_activations(schedule, shape, shape.rank_of(stage))) / shape.chunks;
}

double cost_of(const LayerCost& layer, int stage, BalanceBy by, PipelineOrder schedule,
               const PipelineShape& shape) {
  if (by == BalanceBy::time) return layer.seconds;
  if (by == BalanceBy::memory)
    return double(layer.state) + held(stage, schedule, shape) * double(layer.activations);
  return 1;
}

}  // namespace

void share_times(std::vector<LayerCost>& layers, const std::vector<std::string>& kinds) {
  std::map<std::string, double> least;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto [kind, first] = least.try_emplace(kinds.at(l), layers[l].seconds);
    kind->second = std::min(kind->second, layers[l].seconds);
  }
  for (std::size_t l = 0; l < layers.size(); ++l)
    if (!kinds[l].empty()) layers[l].seconds = least[kinds[l]];
}

// best[s][l]: the lowest possible cost of the most expensive of the first s stages, with the first
// l layers.
std::vector<StageLayers> balance(const std::vector<LayerCost>& layers, BalanceBy by,
                                 PipelineOrder schedule, const PipelineShape& shape) {
  require_enough(int(layers.size()), shape);
  const auto n = layers.size(), stages = std::size_t(shape.stages());
  constexpr double never = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(n + 1, never));
  std::vector<std::vector<std::size_t>> cut(stages + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = 0;
  for (std::size_t s = 1; s <= stages; ++s)
    for (std::size_t end = s; end <= n; ++end) {
      double cost = 0;
      for (std::size_t begin = end; begin-- > s - 1;) {
        cost += cost_of(layers[begin], int(s) - 1, by, schedule, shape);
        const double dearest = std::max(best[s - 1][begin], cost);
        if (dearest >= best[s][end]) continue;
        best[s][end] = dearest;
        cut[s][end] = begin;
      }
    }
  std::vector<StageLayers> result(stages);
  for (std::size_t s = stages, end = n; s > 0; --s) {
    result[s - 1] = {int(cut[s][end]), int(end)};
    end = cut[s][end];
  }
  return result;
}

std::vector<StageLayers> stages_of(const std::string& sizes, int layers,
                                   const PipelineShape& shape) {
  require_enough(layers, shape);
  std::vector<StageLayers> stages;
  int end = 0;
  for (const char* at = sizes.data(); at <= sizes.data() + sizes.size();) {
    int size = 0;
    const auto [next, error] = std::from_chars(at, sizes.data() + sizes.size(), size);
    const bool whole = next == sizes.data() + sizes.size() || *next == ',';
    if (error != std::errc() || !whole || size < 1 || size > layers)
      throw InvalidArgument(fmt::format(
          "pipeline.stages = {:?}: give the number of layers of each stage, 1 or more, as in "
          "\"2,3,3\"",
          sizes));
    stages.push_back({end, end + size});
    end += size;
    at = next + 1;
  }
  if (int(stages.size()) != shape.stages() || end != layers)
    throw InvalidArgument(fmt::format(
        "pipeline.stages = {:?} has {} stage{} with {} layers; there are {} stages and "
        "{} layers",
        sizes, stages.size(), stages.size() == 1 ? "" : "s", end, shape.stages(), layers));
  return stages;
}

std::string stages_text(const std::vector<StageLayers>& stages) {
  std::vector<int> sizes;
  for (const auto& stage : stages) sizes.push_back(stage.end - stage.begin);
  return fmt::format("{}", fmt::join(sizes, ","));
}

std::vector<double> stage_costs(const std::vector<StageLayers>& stages,
                                const std::vector<LayerCost>& layers, BalanceBy by,
                                PipelineOrder schedule, const PipelineShape& shape) {
  std::vector<double> costs;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    costs.push_back(0);
    for (int l = stages[s].begin; l < stages[s].end; ++l)
      costs.back() += cost_of(layers[std::size_t(l)], int(s), by, schedule, shape);
  }
  return costs;
}

double imbalance(const std::vector<double>& stage_costs, const PipelineShape& shape) {
  std::vector<double> ranks(std::size_t(shape.ranks), 0);
  for (std::size_t s = 0; s < stage_costs.size(); ++s)
    ranks[std::size_t(shape.rank_of(int(s)))] += stage_costs[s];
  const double sum = std::accumulate(ranks.begin(), ranks.end(), 0.0);
  return sum > 0 ? *std::max_element(ranks.begin(), ranks.end()) * shape.ranks / sum - 1 : 0;
}

std::vector<int> layer_owners(const std::vector<StageLayers>& stages, const PipelineShape& shape) {
  std::vector<int> owners;
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (int l = stages[s].begin; l < stages[s].end; ++l) owners.push_back(shape.rank_of(int(s)));
  return owners;
}

}  // namespace echelon
