// Deliberate faults for `echelon verify --inject`: mistakes that people make in distributed
// training. A check must catch each of them, which shows that the certificate can fail.
//
//   const Fault* fault = find_fault("missing-tied-sum");
//   if (fault->concerns(options, ranks->size()))
//     train(fault->changed(options), fault->alter(ranks));  // on every rank
//
// A fault causes a wrong result, never a hang: the calls of the ranks still match.
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

// What a strategy is compared with: the parameters of one process, and the closed forms of the
// bytes sent, the model state and the bubble of a pipeline.
enum class Check { parameters, bytes, memory, bubble };
const char* name(Check check);

struct Fault {
  std::string name;
  std::string what;  // in a sentence
  Check caught_by;   // others may catch it too
  // Jobs in which it has an effect.
  std::function<bool(const JobOptions&, const MeshShape&)> where;
  // The fault itself: changed options or changed exchanges. An alteration may have state, so every
  // rank gets its own.
  std::function<void(JobOptions&)> change = {};
  std::function<Alteration()> alteration = {};

  bool concerns(const JobOptions& options, int world) const;
  JobOptions changed(JobOptions options) const;
  std::shared_ptr<Communicator> alter(std::shared_ptr<Communicator> ranks) const;
};

const std::vector<Fault>& all_faults();
const Fault* find_fault(std::string_view name);  // null: there is none

}  // namespace echelon
