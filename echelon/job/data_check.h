// Whether everybody who takes part in a run trains on the same data. Ranks that do not compute the
// gradient of a batch that never was; a run that goes on with other data is another run.
#pragma once

#include <string>

#include "echelon/job/data.h"

namespace echelon {

class Communicator;

// Throws InvalidArgument, on every rank, with the first rank's objection; nothing where it has
// none. Collective; without ranks: this process's own.
void require_no_objection(const std::string& objection, Communicator* ranks);

// The data that a run was trained on so far.
struct FormerData {
  std::string run;  // its name, for messages; empty: there is none
  DataFingerprint data;
};

// Throws InvalidArgument, saying who has what, where ranks have different data, or others than the
// run has had (the first rank's `former` counts). Where any rank says `allowed` that is only warned
// of. Ranks compare a sample first, then all of it, which takes reading the data once: one rank of
// a host does for all there that have the very same files. Collective.
void require_same_data(JobData& data, const FormerData& former, Communicator* ranks, bool allowed);

// What a worker that joins a job tells of its data, behind its options as TOML (a comment there),
// and what the job says to that: InvalidArgument where they differ and the worker was not told to
// allow it. A job whose fingerprint is empty says nothing.
std::string with_fingerprint(const std::string& toml, const DataFingerprint& data, bool allowed);
void check_guest_data(const std::string& text, const DataFingerprint& job);

}  // namespace echelon
