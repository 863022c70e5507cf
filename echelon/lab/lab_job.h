// One job of the lab: a file of options that `echelon train` runs, in the lab's folder, so that a
// reader can run it again and change it.
//
//   LabJob job("zero3", {{"parallel.zero", "3"}, {"data.source", toml_string("data/train.tsv")}});
//   job.run({.ranks = 2, .trace = true});      // prints its command, and then all that it prints
//   job.score("accuracy");
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "echelon/lab/linked_hosts.h"

namespace echelon {

// Options and their values as they stand in TOML, in the order in which they are written.
using LabSettings = std::vector<std::pair<std::string, std::string>>;

// A job that did not end well; what it said is on the screen already.
struct JobFailed {
  int exit_code = 1;
};

class LabJob {
 public:
  struct Run {
    std::string program;  // echelon
    int ranks = 1;
    bool trace = false;                  // --trace buckets
    bool quiet = false;                  // prints nothing
    const LinkedHosts* hosts = nullptr;  // each rank on one of these
    std::vector<std::string> set = {};   // further options
  };

  // Of settings with one key, the last counts. Throws InvalidArgument for options that do not
  // exist.
  LabJob(std::string name, const LabSettings& settings);

  const std::string& name() const { return name_; }
  std::string command(const Run& how) const;  // for the screen

  // Writes jobs/NAME.toml, runs it and waits. Throws JobFailed.
  void run(const Run& how) const;

  // Of a finished job.
  std::filesystem::path folder() const { return std::filesystem::path("runs") / name_; }
  std::filesystem::path weights() const { return folder() / "weights"; }
  std::optional<double> number(std::string_view key) const;  // of its summary; nothing: not there
  std::uint64_t sent_bytes() const;                          // by all ranks, in all
  std::string exchanges() const;                             // exchanges.json
  std::string memory() const;                                // memory.json

 private:
  std::vector<std::string> arguments(const Run& how) const;
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
