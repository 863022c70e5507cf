// Deliberate faults for `echelon verify --inject`: mistakes that people make in distributed
// training, each of which one of its checks must catch. They show that the certificate can fail.
//
//   const Fault* fault = find_fault("missing-tied-sum");
//   if (fault->concerns(options, ranks->size()))
//     train(fault->changed(options), fault->alter(ranks));  // on every rank
//
// A fault ends in a wrong result, never in a hang: the ranks' calls still match.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/comm/mesh.h"
#include "echelon/job/options.h"
#include "echelon/verify/altered_communicator.h"

namespace echelon {

// What a strategy is held against: the parameters of one process, and the closed forms of bytes
// sent, of model state held and of the pipeline's bubble.
enum class Check { parameters, bytes, memory, bubble };
const char* name(Check check);

struct Fault {
  std::string name;
  std::string what;  // in a sentence
  Check caught_by;   // others may see it too
  // Jobs in which it shows.
  std::function<bool(const JobOptions&, const MeshShape&)> where;
  // What it is: other options than those asked for, or other exchanges. An alteration may remember
  // what it saw, so every rank gets its own.
  std::function<void(JobOptions&)> change = {};
  std::function<Alteration()> alteration = {};

  bool concerns(const JobOptions& options, int world) const;
  JobOptions changed(JobOptions options) const;
  std::shared_ptr<Communicator> alter(std::shared_ptr<Communicator> ranks) const;
};

const std::vector<Fault>& all_faults();
const Fault* find_fault(std::string_view name);  // null: there is none

}  // namespace echelon
