// What a step's synchronisation looked like: for learners on the screen, for Perfetto as a file.
//
//   step 12   backward 14.2 ms; 3 buckets, 2.1 ms of reducing hidden, 0.4 ms waited for
//     bucket 0   1.5 MiB by ring: 1.5 MiB to rank 1             3.1 …   4.9 ms of backward
//     bucket 1  12.0 MiB by ring: 12.0 MiB to rank 1            7.0 …  12.8 ms of backward
//     bucket 2   9.3 MiB by ring: 9.3 MiB to rank 1            14.2 …  18.9 ms, 4.7 ms after it
//
// trace.json is in the trace event format of Chromium, which Perfetto (ui.perfetto.dev) opens: a
// process for each rank, with one line for computing and one for reducing.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/step/executor.h"

namespace echelon {

class SyncTrace {
 public:
  // Collective: all ranks' times count from here.
  explicit SyncTrace(std::shared_ptr<Communicator> ranks);

  // The last step of a tracing executor: keeps it for the file, and gives the lines.
  std::string step(std::int64_t number, const Executor& executor);

  // Collective; rank 0 writes. The first `most_steps` steps are in it.
  void write(const std::filesystem::path& path);
  static constexpr std::int64_t most_steps = 500;

 private:
  using Time = std::chrono::steady_clock::time_point;
  enum class Line { computing, reducing };
  void keep(const std::string& event, Line line, Time begin, Time end, const std::string& detail);

  std::shared_ptr<Communicator> ranks_;
  Time start_;
  std::vector<Ledger::Entry> seen_;
  std::string events_;  // JSON, comma separated
  std::int64_t steps_ = 0;
};

// To whom a rank sends in an all-reduce: "rank 1", "ranks 0 and 2", "all".
std::string receivers(Algorithm algorithm, int rank, int size);

}  // namespace echelon
