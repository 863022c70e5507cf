// A run's folder, runs/<name>/: config.toml (resolved), plan.json (what was chosen), metrics.jsonl
// (a line a step), times.jsonl, ledger.json (bytes sent), memory.json, rank0.log, weights/ (at the
// end) and state.safetensors (to go on from).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "echelon/base/file_lock.h"
#include "echelon/plan/memory_forecast.h"
#include "echelon/train/trainer.h"

namespace echelon {

class RunDirectory {
 public:
  // A new folder `runs`/`name`; an empty name takes the time. InvalidArgument where it exists
  // already.
  // Throws InvalidArgument where there can be no new run of that name; empty: there always can.
  static void require_new(const std::filesystem::path& runs, const std::string& name);
  static RunDirectory create(const std::filesystem::path& runs, std::string name);

  // The folder of an earlier run that left a state, not locked. InvalidArgument where there is
  // none.
  static RunDirectory open(const std::filesystem::path& path);

  // Keeps other processes from this run until this object goes, and removes what one that was
  // killed has left of a file that it was writing. create() does so. Throws InvalidArgument, naming
  // the process, where another has it.
  void lock();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path config() const { return path_ / "config.toml"; }
  std::filesystem::path state() const { return path_ / "state.safetensors"; }
  std::filesystem::path weights() const { return path_ / "weights"; }
  std::filesystem::path log() const { return path_ / "rank0.log"; }

  // Removes the metrics and times of steps after `step`, which a resumed run makes again; its time
  // goes on where that of the steps that are left ends.
  void rewind_metrics(std::int64_t step);
  void add_step(const StepReport& report, bool bytes);
  void add_validation(std::int64_t step, double loss, bool bytes);

  void write_plan(const std::string& json) const;
  void write_ledger(const std::string& json) const;
  void write_memory(const MemoryForecast& forecast, const std::vector<RankMemory>& ranks) const;

 private:
  explicit RunDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  void add_line(std::ofstream& file, const char* name, const std::string& line);

  double elapsed() const;  // seconds that the run has taken, this process and those before it

  std::filesystem::path path_;
  std::optional<FileLock> lock_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double elapsed_before_ = 0;  // by processes before this one
  std::ofstream metrics_, times_;
};

}  // namespace echelon
