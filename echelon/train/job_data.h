// What `echelon train` trains and validates on.
#pragma once

#include <memory>
#include <string>

#include "echelon/data/dataset.h"
#include "echelon/data/text.h"
#include "echelon/train/options.h"

namespace echelon {

// The job's text or random tokens as datasets.
struct JobData {
  std::unique_ptr<const Dataset> training, validation;  // validation may be null
  std::shared_ptr<const Text> validation_text;
  std::string description;
  bool bytes = false;  // tokens are bytes, so that bits per byte means something
};

JobData open_data(const JobOptions& options);

}  // namespace echelon
