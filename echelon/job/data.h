// What `echelon train` trains and validates on.
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
  TextSplit text;                                       // what they are cut from; empty: nothing
  std::string description;
  bool bytes = false;  // tokens are bytes, so that bits per byte means something
  DataFingerprint fingerprint;

  // Reads all of it for the fingerprint's digest, as far as it comes until the deadline; true: to
  // the end.
  bool read_for_digest(const Deadline& until);
};

JobData open_data(const JobOptions& options);

// Whether a job's tokens are the bytes of text: all data but random tokens.
bool tokens_are_bytes(const DataOptions& options);

}  // namespace echelon
