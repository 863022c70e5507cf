// What the first rank shows and writes of a job, from the events of its trainer: the lines on
// standard output, the bar, the run directory and its log. Other ranks have no Reporter, so nothing
// in here talks to them.
#pragma once

#include <chrono>
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
  // What a job consists of; all of it outlives the reporter.
  struct Job {
    const JobRequest& request;
    const JobData& data;
    Stack& stack;
    Trainer& trainer;
    const ServerJob* servers;              // null: none
    std::vector<std::string> left_behind;  // by ranks of the run before that were killed
    std::uint64_t start;                   // the process's memory before there was a model
    int ranks, local_ranks;
  };

  // Writes what is known before the first step into the run's folder and shows it.
  Reporter(Job job, RunDirectory run);

  // From here on steps are shown, and timed.
  void training_begins();
  void say(const std::string& line);  // above the bar
  void training_ends();               // the bar's last line stays

  // A rank was lost: how the job can go on, on standard error.
  void peer_lost() const noexcept;
  // What to raise for it: with how to go on.
  Error not_finite(const NotFinite& error) const;

  void interrupted();
  // `timelines`: those that a trace of the pipeline drew; `peak`: of this process.
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
  JobOutcome outcome_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace echelon
