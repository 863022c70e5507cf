// Checks that all ranks of a run train on the same data. With different data, ranks would compute
// the gradient of a batch that does not exist, and a resumed run would be another run.
#pragma once

#include <string>

#include "echelon/job/data.h"

namespace echelon {

class Communicator;

// Throws InvalidArgument on every rank with the objection of the first rank, if it has one.
// Collective; without ranks, the objection is this process's own.
void require_no_objection(const std::string& objection, Communicator* ranks);

// The data that a run has been trained on so far.
struct FormerData {
  std::string run;  // its name, for messages; empty: there is none
  DataFingerprint data;
};

// Throws InvalidArgument if ranks have different data, or other data than the run had before (the
// first rank's `former` counts); the message says who has what. If any rank passes `allowed`, this
// is only a warning. Ranks compare a sample first and then all data, which requires reading it
// once: one rank of a host reads for all ranks there that have the same files. Collective.
void require_same_data(JobData& data, const FormerData& former, Communicator* ranks, bool allowed);

// A joining worker appends the fingerprint of its data to its options as a TOML comment. The job
// throws InvalidArgument if the data differ and the worker does not allow it. A job with an empty
// fingerprint does not check.
std::string with_fingerprint(const std::string& toml, const DataFingerprint& data, bool allowed);
void check_guest_data(const std::string& text, const DataFingerprint& job);

}  // namespace echelon
