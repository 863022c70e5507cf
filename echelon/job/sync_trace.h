// Shows the synchronisation of a step, as lines of text and as a file for Perfetto.
//
//   step 4  backward 2.99 ms, 3 buckets; of reducing 0.65 ms hidden, 0.51 ms waited for
//     bucket 0  195.8 KiB by shared: 195.8 KiB of the others', …      1.66 …    2.34 ms
//     bucket 1  195.2 KiB by shared: …      2.98 …    3.06 ms, 0.07 after backward
//     bucket 2  80.0 KiB by shared: …       3.07 …    3.09 ms, 0.10 after backward
//
// trace.json has the trace event format of Chromium, which Perfetto (ui.perfetto.dev) opens: one
// process per rank, with one line for computing, one for reducing, and one for waiting for data.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/step/executor.h"
#include "echelon/train/events.h"

namespace echelon {

class SyncTrace {
 public:
  // Collective: the times of all ranks start here.
  explicit SyncTrace(std::shared_ptr<Communicator> ranks);

  // Keeps the last step of a tracing executor for the file, and returns its lines.
  std::string step(const ExchangeReport& report, const Executor& executor);

  // Collective; rank 0 writes. The first `most_steps` steps are in it.
  void write(const std::filesystem::path& path);
  static constexpr std::int64_t most_steps = 500;

 private:
  using Time = std::chrono::steady_clock::time_point;
  enum class Line { computing, reducing, data };
  void keep(const std::string& event, Line line, Time begin, Time end, const std::string& detail);

  std::shared_ptr<Communicator> ranks_;
  Time start_;
  std::vector<Ledger::Entry> seen_;
  std::string events_;  // JSON, comma separated
  std::int64_t steps_ = 0;
};

// The ranks that a rank sends to in an all-reduce: "rank 1", "ranks 0 and 2", "all".
std::string receivers(Algorithm algorithm, int rank, int size);

}  // namespace echelon
