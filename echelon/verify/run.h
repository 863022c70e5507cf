// Trains one strategy, on ranks or in one process, and returns what is compared.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/net/token.h"
#include "echelon/nn/memory.h"
#include "echelon/parallel/pipeline/schedule.h"
#include "echelon/verify/strategies.h"

namespace echelon {

struct Fault;

// The result of a rank's run.
struct Run {
  at::Tensor parameters;  // all of the model
  std::vector<double> losses;
  double difference = 0;                      // of masters and moments
  std::map<std::string, std::uint64_t> sent;  // bytes by tag
  std::uint64_t model_bytes = 0;              // of the flat buffer, with padding
  std::vector<std::uint64_t> groups;          // bytes of each group
  MemoryUse memory;                           // after the last step
  bool works = true;                          // false: it is only a server
  std::uint64_t served = 0, server_part = 0;  // bytes that its server holds, and of its slice
  Order slots;                                // of the last step of a pipeline
  std::string error;                          // why it did not finish
};

// Where ranks connect outside of their communicator.
struct Meeting {
  std::string bind;  // the numeric address on which servers listen
  Token token;
};

// Injects a fault, if given: errors that it causes are part of the result.
Run train_ranks(const Strategy& strategy, std::shared_ptr<Communicator> ranks,
                const Meeting& meeting, const Fault* fault = nullptr);
Run train_alone(const JobOptions& options);
// Updates of owners and of a single owner with the same gradients (masters.h).
Run update_masters(const Strategy& strategy, std::shared_ptr<Communicator> ranks);

}  // namespace echelon
