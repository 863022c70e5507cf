#include "echelon/lab/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "echelon/base/file.h"
#include "echelon/base/json_reader.h"
#include "echelon/base/toml_text.h"
#include "echelon/lab/chart.h"

namespace echelon {
namespace {

constexpr std::array megabits = {4000.0, 1000.0, 250.0};
constexpr std::array bucket_mib = {0.25, 1.0, 2.0, 16.0};
constexpr int steps = 9;  // one of them only warms up

std::string bucket_text(double mib) {
  return mib < 1 ? fmt::format("{:g} KiB", mib * 1024) : fmt::format("{:g} MiB", mib);
}

SweepPoint point_of(const LabJob& job, double rate, double bucket) {
  const auto json = JsonReader::parse(job.exchanges(), job.name());
  const auto ms = [&](const char* key) { return json.at(key).number(0, 1e12); };
  SweepPoint point{.megabits = rate,
                   .bucket_mib = bucket,
                   .step_ms = ms("step_ms"),
                   .compute_ms = ms("compute_ms"),
                   .waited_ms = ms("after_backward_ms"),
                   .predicted_ms = ms("after_backward_predicted_ms")};
  for (const auto& row : json.at("exchanges").items())
    point.buckets += row.at("purpose").text() == "gradients";
  return point;
}

std::string sweep_head() {
  return fmt::format("{:<12} {:>8} {:>8} {:>12} {:>12} {:>11} {:>10}\n", "bandwidth", "bucket",
                     "buckets", "predicted", "waited", "computing", "a step");
}

std::string sweep_row(const SweepPoint& one) {
  return fmt::format("{:<12} {:>8} {:>8} {:>9.1f} ms {:>9.1f} ms {:>8.1f} ms {:>7.1f} ms\n",
                     fmt::format("{:.0f} Mbit/s", one.megabits), bucket_text(one.bucket_mib),
                     one.buckets, one.predicted_ms, one.waited_ms, one.compute_ms, one.step_ms);
}

}  // namespace

void sweep(const LabSettings& settings, LabJob::Run how, LinkedHosts& hosts,
           std::vector<SweepPoint>& points) {
  how.hosts = &hosts;
  how.quiet = how.trace = true;
  how.ranks = 2;
  for (const double rate : megabits) {
    hosts.limit(rate * 1e6);
    for (const double bucket : bucket_mib) {
      LabSettings one = settings;
      one.insert(one.end(), {{"model.layers", "12"},
                             {"model.width", "96"},
                             {"model.heads", "4"},
                             {"model.context", "64"},
                             {"train.batch", "32"},
                             {"parallel.bucket_mib", fmt::format("{}", bucket)},
                             {"train.steps", fmt::format("{}", steps)},
                             {"train.validate_every", "0"},
                             {"train.check_every", "0"},
                             {"train.save_last", "false"},
                             {"optim.warmup", "1"},
                             {"comm.measure", toml_string("always")}});
      const LabJob job(fmt::format("sweep-{:.0f}mbit-{:g}", rate, bucket), one);
      job.run(how);
      points.push_back(point_of(job, rate, bucket));
      if (points.size() == 1) fmt::print("{}", sweep_head());
      fmt::print("{}", sweep_row(points.back()));
      std::fflush(stdout);
    }
  }
}

std::vector<std::string> write_sweep_pictures(const std::vector<SweepPoint>& points) {
  std::vector<std::string> paths;
  std::filesystem::create_directories("pictures");
  for (const double rate : megabits) {
    Series measured{.name = "measured", .style = Series::Style::points, .colour = 1, .points = {}};
    Series predicted{
        .name = "alpha-beta model", .style = Series::Style::line, .colour = 0, .points = {}};
    Chart chart{.title = fmt::format("Waiting for gradients at {:.0f} Mbit/s", rate),
                .note = "two hosts, data parallel; time of a step after its backward has ended",
                .x = "at most this much in a bucket (parallel.bucket_mib)",
                .y = "ms a step, logarithmic",
                .ticks = {},
                .series = {}};
    for (const auto& one : points) {
      if (one.megabits != rate) continue;
      const double least = 0.01;  // the axis is logarithmic
      measured.points.emplace_back(one.bucket_mib, std::max(least, one.waited_ms));
      predicted.points.emplace_back(one.bucket_mib, std::max(least, one.predicted_ms));
      chart.ticks.emplace_back(one.bucket_mib, bucket_text(one.bucket_mib));
    }
    if (measured.points.empty()) continue;
    chart.series = {predicted, measured};
    paths.push_back(fmt::format("pictures/buckets-{:.0f}mbit.svg", rate));
    write_file(paths.back(), svg(chart));
  }
  return paths;
}

}  // namespace echelon
