// `echelon train`: a language model on text, from options to a run directory.
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
  automatic,  // a bar on a terminal, lines elsewhere
  plain,      // lines
  none,
};

struct JobRequest {
  JobOptions options;
  std::vector<std::string> given;       // keys that were set, as opposed to defaults
  std::filesystem::path runs = "runs";  // where run directories are made
  std::string name;                     // of the run; empty: the time
  std::filesystem::path resume;         // a run directory to go on with; empty: a new run
  std::filesystem::path summary;        // JSON file to write at the end; empty: none
  std::string join;                     // servers of a running job, as it printed them
  ShowProgress progress = ShowProgress::automatic;
  bool trace_sync = false;      // print each step's exchanges, and write trace.json
  bool trace_pipeline = false;  // draw the last step of a pipeline, and write pipeline.svg
  // Called when set-up is done, just before the first step: from here on run_job looks at `stop`.
  std::function<void()> training_begins = [] {};
  // All ranks of the job, each with the same request; nullptr: one process. Rank 0 shows and
  // writes, the others only compute.
  std::shared_ptr<Communicator> ranks;
};

enum class JobEnd { finished, interrupted };

// Throws InvalidArgument where the request cannot work on so many ranks, as far as that can be seen
// without data, model and machine. run_job does it too; a launcher may do it before there are
// ranks.
void check_job(const JobRequest& request, int ranks);

// Throws InvalidArgument, naming every option that differs, where ranks were told different things:
// they would train different models side by side. Collective.
void require_same_options(JobOptions& options, Communicator& ranks);

// Whether the others can do without this rank: a worker of parameter servers that do not wait for
// it. Not the first, which shows and writes.
bool is_expendable(const JobOptions& options, int rank, int ranks);

// Shows progress on standard output. Everything is checked before anything is written:
// InvalidArgument and Corrupt leave no trace. Once `stop` is set the run ends after the present
// step with its state saved; set-up, which may take minutes, does not look at it.
JobEnd run_job(JobRequest request, const std::atomic<bool>& stop);

}  // namespace echelon
