// The data that `echelon train` trains and validates on.
#pragma once

#include <memory>
#include <string>

#include "echelon/data/dataset.h"
#include "echelon/data/text.h"
#include "echelon/job/options.h"

namespace echelon {

// The job's text or random tokens as datasets.
struct JobData {
  std::unique_ptr<const Dataset> training, validation;  // validation may be null
  TextSplit text;  // the text behind them; empty for random tokens
  std::string description;
  bool bytes = false;  // tokens are bytes, so bits per byte is meaningful
  DataFingerprint fingerprint;

  // Reads the data for the digest of the fingerprint until the deadline. True: all of it was read.
  bool read_for_digest(const Deadline& until);
};

JobData open_data(const JobOptions& options);

// Whether a job's tokens are the bytes of text: true except for random tokens.
bool tokens_are_bytes(const DataOptions& options);

}  // namespace echelon
