// A run's folder, runs/<name>/: config.toml (resolved), plan.json (what was chosen), metrics.jsonl
// (a line a step), times.jsonl, ledger.json (bytes sent), memory.json, rank0.log, weights/ (at the
// end) and state.safetensors (to go on from).
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "echelon/train/memory_forecast.h"
#include "echelon/train/trainer.h"

namespace echelon {

class RunDirectory {
 public:
  // A new folder `runs`/`name`; an empty name takes the time. InvalidArgument where it exists
  // already.
  // Throws InvalidArgument where there can be no new run of that name; empty: there always can.
  static void require_new(const std::filesystem::path& runs, const std::string& name);
  static RunDirectory create(const std::filesystem::path& runs, std::string name);

  // The folder of an earlier run that left a state. InvalidArgument where there is none.
  static RunDirectory open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path config() const { return path_ / "config.toml"; }
  std::filesystem::path state() const { return path_ / "state.safetensors"; }
  std::filesystem::path weights() const { return path_ / "weights"; }
  std::filesystem::path log() const { return path_ / "rank0.log"; }

  // Removes the metrics and times of steps after `step`, which a resumed run makes again.
  void rewind_metrics(std::int64_t step);
  void add_step(const StepReport& report, bool bytes);
  void add_validation(std::int64_t step, double loss, bool bytes);

  void write_plan(const std::string& json) const;
  void write_ledger(const std::string& json) const;
  void write_memory(const MemoryForecast& forecast, const std::vector<RankMemory>& ranks) const;

 private:
  explicit RunDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  void add_line(std::ofstream& file, const char* name, const std::string& line);

  std::filesystem::path path_;
  std::ofstream metrics_, times_;
};

}  // namespace echelon
