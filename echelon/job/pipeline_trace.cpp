#include "echelon/job/pipeline_trace.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "echelon/base/file.h"
#include "echelon/base/median.h"
#include "echelon/comm/texts.h"
#include "echelon/parallel/pipeline/draw.h"
#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/parallel/pipeline/simulate.h"

namespace echelon {
namespace {

using nlohmann::json;

// Medians over the micro-batches, of which one may have waited for the machine. Where a backward is
// in one piece, the simulator is given half of it as each part: it costs their sum.
std::vector<StageCosts> costs_of(const Timeline& timeline, const PipelineShape& shape) {
  std::map<std::pair<int, Slot::Kind>, std::vector<double>> seconds;  // by stage and kind
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r)
    for (const auto& [slot, begin, end] : timeline.ranks[r])
      seconds[{shape.stage(int(r), slot.chunk), slot.kind}].push_back(end - begin);
  std::vector<StageCosts> costs;
  for (int stage = 0; stage < shape.stages(); ++stage) {
    const auto of = [&](Slot::Kind kind) { return median(seconds[{stage, kind}]); };
    const double half = of(Slot::Kind::backward) / 2;
    costs.push_back({.forward = of(Slot::Kind::forward),
                     .input = of(Slot::Kind::input) + half,
                     .weight = of(Slot::Kind::weight) + half});
  }
  return costs;
}

}  // namespace

std::vector<std::string> pipeline_rows(const MeshLayout& layout) {
  std::vector<std::string> rows;
  MeshPlace place = layout.mesh.place;
  const auto& shape = layout.pipeline;
  for (place.pipeline = 0; place.pipeline < shape.ranks; ++place.pipeline) {
    const int first = place.pipeline, last = shape.stage(first, shape.chunks - 1);
    const std::string stages =
        shape.chunks == 1   ? fmt::format("stage {}", first)
        : shape.chunks == 2 ? fmt::format("stages {},{}", first, last)
                            : fmt::format("stages {},{}..{}", first, shape.stage(first, 1), last);
    rows.push_back(fmt::format("{} (rank {})", stages, layout.mesh.rank_at(place)));
  }
  return rows;
}

std::string bubble_note(const PipelineOptions& options, const PipelineShape& shape,
                        const Timeline& predicted, const Timeline& measured) {
  const char* const alike = options.schedule == PipelineOrder::zero_bubble
                                ? "where all slots cost the same"
                                : "where all stages cost the same";
  return fmt::format(
      "idle (%) is the share of the step in which a rank computes nothing:\n"
      "  {}, {}\n"
      "bubble is what the step takes beyond its busiest rank's work, over that work:\n"
      "  {}, {}\n"
      "  predicted {:.1f} %, as it ran {:.1f} %\n",
      ideal_idle_text(options.schedule, shape), alike, ideal_bubble_text(options.schedule, shape),
      alike, 100 * predicted.bubble(), 100 * measured.bubble());
}

std::vector<TimedSlot> slots_of(const Executor& executor, const MeshLayout& layout,
                                std::chrono::steady_clock::time_point start) {
  const auto seconds = [&](std::chrono::steady_clock::time_point time) {
    return std::chrono::duration<double>(time - start).count();
  };
  std::vector<TimedAction> actions;
  for (const auto& [action, begin, end] : executor.traced())
    actions.push_back({action, seconds(begin), seconds(end)});
  return slots_of(actions, layout.stages, layout.pipeline);
}

PipelineTrace::PipelineTrace(const MeshLayout& layout, const PipelineOptions& options)
    : layout_(layout), options_(options) {
  const auto& [all, hosts] = std::tie(layout.mesh.all, layout.mesh.hosts);
  all->barrier({.tag = "trace"}).wait();
  start_ = std::chrono::steady_clock::now();
  if (std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) != hosts.end()) return;
  // Processes of one host read one clock.
  using Ticks = std::chrono::steady_clock::duration;
  at::Tensor first = at::full({1}, start_.time_since_epoch().count(), at::kLong);
  all->broadcast(first, 0, {.tag = "trace", .blocking = true}).wait();
  start_ = std::chrono::steady_clock::time_point(Ticks(first.item<std::int64_t>()));
}

void PipelineTrace::keep(const Executor& executor) { slots_ = slots_of(executor, layout_, start_); }

std::string PipelineTrace::write(const std::filesystem::path& svg, int width) {
  auto mine = json::array();
  for (const auto& [slot, begin, end] : slots_)
    mine.push_back({int(slot.kind), slot.chunk, slot.micro_batch, begin, end});
  const auto texts = gather_texts(*layout_.mesh.pipeline, mine.dump(), "trace");
  Timeline measured;
  double first = std::numeric_limits<double>::infinity();
  for (const auto& text : texts) {
    auto& rank = measured.ranks.emplace_back();
    for (const auto& one : json::parse(text)) {
      rank.push_back({{Slot::Kind(one[0].get<int>()), one[1], one[2]}, one[3], one[4]});
      first = std::min(first, rank.back().begin);
    }
  }
  for (auto& rank : measured.ranks)
    for (auto& slot : rank) {
      slot.begin -= first;
      slot.end -= first;
    }
  if (layout_.mesh.all->rank() != 0 || measured.ranks[0].empty()) return {};
  const auto schedule = make_schedule(options_.schedule, layout_.pipeline);
  const Timeline predicted =
      simulate(schedule, layout_.pipeline, costs_of(measured, layout_.pipeline));
  const auto rows = pipeline_rows(layout_);
  const std::string note = bubble_note(options_, layout_.pipeline, predicted, measured);
  write_file(svg, draw_svg(predicted, measured,
                           {.title = fmt::format("{}, {}", name_of(options_.schedule),
                                                 to_string(layout_.mesh.shape)),
                            .rows = rows,
                            .note = note}));
  const auto& shape = layout_.mesh.shape;
  const int pipelines = shape.data * shape.tensor;
  return fmt::format("the last step{}\npredicted from what its slots cost:\n{}as it ran:\n{}{}",
                     pipelines > 1 ? fmt::format(" of rank {}'s pipeline, one of {}",
                                                 layout_.mesh.all->rank(), pipelines)
                                   : "",
                     draw_text(predicted, width, rows), draw_text(measured, width, rows), note);
}

}  // namespace echelon
