// `echelon lab`: one fine-tuning, three ways to distribute it, and what each of them moves.
//
//   1. the data     sentences about films with their sentiment, and the accuracy of counting words
//   2. the encoder  a small DistilBERT, pre-trained on the text of the default job
//   3. fine-tuning  on two workers: data parallel, ZeRO-3, parameter servers
//   4. the sweep    bucket size x bandwidth of the link, beside the cost model
//
// Every part is a job of `echelon train`, whose file and command the lab shows. docs/lab.md is the
// page for whoever learns from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace echelon {

struct LabOptions {
  std::filesystem::path folder = "lab";  // is made, with all that the lab writes
  std::filesystem::path model = {};      // a DistilBERT or a BERT; empty: made by the lab
  std::filesystem::path data = {};       // with train.tsv and dev.tsv; empty: made by the lab
  bool real_shape = false;               // DistilBERT's 66M parameters instead of a million
  std::int64_t sentences = 40000;        // to make
  std::int64_t pretraining = 0;          // steps; 0: by the shape
  std::int64_t steps = 0;                // of fine-tuning, likewise
  int ranks = 2;
  bool sweep = true;                   // part 4
  std::vector<std::string> set = {};   // options for every job, KEY=VALUE (shared_options.h)
  std::filesystem::path summary = {};  // a JSON file; empty: none
};

// `program` is the echelon to run. Returns 0, or the exit code of the job that failed, after which
// no other job runs; 130: interrupted. The results of finished jobs are written in any case. Throws
// InvalidArgument or Corrupt, for options and files of the caller, before anything is written.
int run_lab(const LabOptions& options, const std::string& program, const std::atomic<bool>& stop);

}  // namespace echelon
