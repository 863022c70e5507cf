// The folder of a run, runs/<name>/: config.toml (resolved), plan.json (choices), metrics.jsonl
// (one line per step), times.jsonl, ledger.json (bytes sent), memory.json, rank0.log, weights/ (at
// the end), best/ (the weights of the best validation, with train.keep_best), state.safetensors (to
// resume from), and with --trace exchanges.json, trace.json or pipeline.svg.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "echelon/base/file_lock.h"
#include "echelon/base/named_enum.h"
#include "echelon/plan/memory_forecast.h"
#include "echelon/train/trainer.h"

namespace echelon {

// The files of a run that are written as a whole. Each has a line in names_of.
enum class RunFile {
  config,
  state,
  plan,
  metrics,
  times,
  ledger,
  memory,
  exchanges,
  trace,
  pipeline
};
constexpr auto names_of(RunFile) {
  return names("config.toml", "state.safetensors", "plan.json", "metrics.jsonl", "times.jsonl",
               "ledger.json", "memory.json", "exchanges.json", "trace.json", "pipeline.svg");
}

class RunDirectory {
 public:
  // Makes the folder `runs`/`name`; an empty name becomes the time. Throws InvalidArgument if the
  // folder exists.
  // Throws InvalidArgument if no new run can have that name; an empty name is always possible.
  static void require_new(const std::filesystem::path& runs, const std::string& name);
  static RunDirectory create(const std::filesystem::path& runs, std::string name);

  // The folder of an earlier run with a saved state, not locked. Throws InvalidArgument if there is
  // none.
  static RunDirectory open(const std::filesystem::path& path);

  // Locks the run for the lifetime of this object, and removes temporary files of a killed process.
  // create() does so too. Throws InvalidArgument, naming the process, if another has the lock.
  void lock();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path file(RunFile file) const { return path_ / name_of(file); }
  std::filesystem::path config() const { return file(RunFile::config); }
  std::filesystem::path state() const { return file(RunFile::state); }
  std::filesystem::path weights() const { return path_ / "weights"; }
  std::filesystem::path best() const { return path_ / "best"; }
  std::filesystem::path log() const { return path_ / "rank0.log"; }

  // Removes the metrics and times of steps after `step`, which a resumed run repeats. elapsed()
  // continues from the last remaining step.
  void rewind_metrics(std::int64_t step);
  void add_step(const StepReport& report, bool bytes);
  void add_validation(std::int64_t step, double loss, const Scores& scores);
  // What was decided after a validation: that it is the best so far, or that training stops.
  void add_best(std::int64_t step, const std::string& score, double value);
  void add_stop(std::int64_t step, const std::string& why);

  void write_plan(const std::string& json) const;
  void write_ledger(const std::string& json) const;
  void write_memory(const MemoryForecast& forecast, const std::vector<RankMemory>& ranks) const;

 private:
  explicit RunDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  void add_line(std::ofstream& out, RunFile name, const std::string& line);

  double elapsed() const;  // seconds of the run, in this process and earlier ones

  std::filesystem::path path_;
  std::optional<FileLock> lock_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double elapsed_before_ = 0;  // in earlier processes
  std::ofstream metrics_, times_;
};

}  // namespace echelon
