// Prints and writes a job on the first rank, from the events of its trainer: standard output, the
// progress bar, the run directory and its log. Other ranks have no Reporter, so nothing here may
// communicate.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "echelon/job/data.h"
#include "echelon/job/job.h"
#include "echelon/job/progress.h"
#include "echelon/job/report.h"
#include "echelon/job/run_directory.h"
#include "echelon/job/server_job.h"
#include "echelon/plan/memory_forecast.h"
#include "echelon/train/trainer.h"

namespace echelon {

class Reporter {
 public:
  // The parts of a job; all outlive the reporter.
  struct Job {
    const JobRequest& request;
    const JobData& data;
    Stack& stack;
    Trainer& trainer;
    const ServerJob* servers;              // null: none
    std::vector<std::string> left_behind;  // files of killed ranks of an earlier run
    std::uint64_t start;                   // memory of the process before the model
    int ranks, local_ranks;
  };

  // Writes and prints what is known before the first step.
  Reporter(Job job, RunDirectory run);

  // From here on steps are printed and timed.
  void training_begins();
  void say(const std::string& line);  // above the bar
  // A table that is shown above the bar while it moves, and printed at the end of training.
  void shows(std::function<std::string()> table) { table_ = std::move(table); }
  void training_ends();  // keeps the last line of the bar
  // Validations are compared, and this is the best one so far.
  void compares(const BestSoFar& best);
  void validated(const BestSoFar& best);  // the same, after one more
  void last_validation_follows();         // of the finished job, over all samples

  // A rank was lost: prints to standard error how to resume.
  void peer_lost() const noexcept;
  // The error to throw, with the command to resume.
  Error not_finite(const NotFinite& error) const;

  void interrupted();
  // `timelines`: drawn by the pipeline trace; `peak`: memory of this process.
  void finished(const std::vector<RankMemory>& memory, std::uint64_t peak,
                const std::string& timelines);

  const RunDirectory& run() const { return run_; }

 private:
  void hear(const StepReport& step);
  void hear(const ValidationReport& validation);
  void hear(const DecisionReport& decision);
  void hear(const FaultReport& fault);
  void hear(const ExchangeReport&) {}  // sync_trace.h
  void hear(const SaveReport&) {}
  void hear(const MemoryReport&) {}

  void show_beginning() const;
  void show_lost_workers() const;
  void show_sample() const;

  Job job_;
  RunDirectory run_;
  MemoryForecast forecast_;
  std::optional<Progress> progress_;
  std::function<std::string()> table_;
  JobOutcome outcome_;
  bool is_last_validation_ = false;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace echelon
