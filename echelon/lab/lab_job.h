// One job of the lab: a file of options that `echelon train` runs, in the lab's folder, so that a
// reader can run it again and change it.
//
//   LabJob job("zero3", {{"parallel.zero", "3"}, {"data.source", toml_string("data/train.tsv")}});
//   job.run({.ranks = 2, .trace = true});      // prints its command, and then all that it prints
//   job.score("accuracy");
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "echelon/lab/linked_hosts.h"
#include "echelon/nn/memory.h"

namespace echelon {

// Options and their values as they stand in TOML, in the order in which they are written.
using LabSettings = std::vector<std::pair<std::string, std::string>>;

// Thrown when a job fails or is interrupted. The job has reported the reason on standard error.
struct JobFailed {
  int exit_code = 1;
};

// The exit code of JobFailed when nobody reads standard output any more, as of SIGPIPE.
constexpr int exit_without_reader = 141;

class LabJob {
 public:
  struct Run {
    std::string program;  // echelon
    int ranks = 1;
    bool trace = false;                       // --trace buckets
    bool quiet = false;                       // prints nothing
    const LinkedHosts* hosts = nullptr;       // each rank on one of these
    std::vector<std::string> set = {};        // further options
    const std::atomic<bool>* stop = nullptr;  // true: interrupted, start nothing
  };

  // If a key is given twice, its last value counts. Throws InvalidArgument for options that do not
  // exist.
  LabJob(std::string name, const LabSettings& settings);

  const std::string& name() const { return name_; }
  // What a person types in the lab's folder to run it again, as a new run.
  std::string command(const Run& how) const;

  // Throws InvalidArgument if the options contradict each other, as far as is known without data
  // and weights.
  void check(const Run& how) const;

  // Writes jobs/NAME.toml, runs it and waits. Throws JobFailed if the job fails, and also if it
  // succeeds although it was interrupted, or if nobody reads standard output any more.
  void run(const Run& how) const;

  // Evaluates the weights of the finished job on a file with the columns of its training data,
  // prints nothing and returns the accuracy. Throws as run() does.
  std::optional<double> accuracy_on(const std::string& file, const Run& how) const;
  std::string evaluation(const std::string& file) const;  // the command that does the same

  // Of a finished job.
  std::filesystem::path folder() const { return std::filesystem::path("runs") / name_; }
  std::filesystem::path weights() const { return folder() / "weights"; }
  std::optional<double> number(std::string_view key) const;  // of its summary; nothing: not there
  std::uint64_t sent_bytes() const;                          // by all ranks, in all
  std::string exchanges() const;                             // exchanges.json
  std::vector<std::pair<int, MemoryUse>> memory_at_peak() const;  // of each rank

 private:
  std::vector<std::string> arguments(const Run& how) const;
  std::vector<std::string> named_arguments(const Run& how) const;
  std::vector<std::string> evaluation_arguments(const std::string& file) const;
  std::filesystem::path options() const {
    return std::filesystem::path("jobs") / (name_ + ".toml");
  }
  std::filesystem::path summary() const {
    return std::filesystem::path("jobs") / (name_ + ".json");
  }

  std::string name_;
  LabSettings settings_;
};

}  // namespace echelon
