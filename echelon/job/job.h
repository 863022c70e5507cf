// `echelon train`: trains a language model on text, from options to a run directory.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/job/options.h"

namespace echelon {

enum class ShowProgress {
  automatic,  // a bar on a terminal, otherwise lines
  plain,      // lines
  none,
};

struct JobRequest {
  JobOptions options;
  std::vector<std::string> given;       // keys that were set, as opposed to defaults
  std::filesystem::path runs = "runs";  // where run directories are made
  std::string name;                     // of the run; empty: the time
  std::filesystem::path resume;         // a run directory to resume; empty: a new run
  std::filesystem::path summary;        // JSON file to write at the end; empty: none
  std::string join;                     // servers of a running job, as it printed them
  ShowProgress progress = ShowProgress::automatic;
  bool trace_sync = false;      // print each step's exchanges, and write trace.json
  bool trace_buckets = false;   // show what is exchanged as a table, and write exchanges.json
  bool trace_pipeline = false;  // draw the last step of a pipeline, and write pipeline.svg
  // Called after set-up, just before the first step. From then on run_job checks `stop`.
  std::function<void()> training_begins = [] {};
  // All ranks of the job, each with the same request; nullptr: one process. Rank 0 prints and
  // writes, the others only compute.
  std::shared_ptr<Communicator> ranks;
};

enum class JobEnd { finished, interrupted };

// Throws InvalidArgument if the request cannot work on that many ranks, as far as is known without
// data, model and machine. run_job calls it too; a launcher may call it before it starts ranks.
void check_job(const JobRequest& request, int ranks);

// Throws InvalidArgument, naming every option that differs, if ranks have different options: they
// would train different models. Collective.
void require_same_options(JobOptions& options, Communicator& ranks);

// Whether the job can continue without this rank: true for a worker of parameter servers that do
// not wait for it, except for the first worker, which prints and writes.
bool is_expendable(const JobOptions& options, int rank, int ranks);

// Prints progress to standard output. Everything is checked before anything is written:
// InvalidArgument and Corrupt leave nothing behind. When `stop` is set, the run saves its state and
// ends after the current step; set-up, which may take minutes, does not check it.
JobEnd run_job(JobRequest request, const std::atomic<bool>& stop);

}  // namespace echelon
