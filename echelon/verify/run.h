// Trains one strategy, on ranks or in one process, and brings back what is compared.
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

// What a rank's run came to.
struct Run {
  at::Tensor parameters;  // all of the model
  std::vector<double> losses;
  double difference = 0;                      // of masters
  std::map<std::string, std::uint64_t> sent;  // bytes, by what they were for
  std::uint64_t model_bytes = 0;              // the flat buffer's, with padding
  std::vector<std::uint64_t> groups;          // that it is made of
  MemoryUse memory;                           // after the last step
  bool works = true;                          // false: it serves others alone
  std::uint64_t served = 0, server_part = 0;  // bytes that its server holds, and of what it owns
  Order slots;                                // of the last step, where there is a pipeline
  std::string error;                          // why it did not come to its end
};

// Where ranks meet beside their communicator.
struct Meeting {
  std::string bind;  // the numeric address on which servers listen
  Token token;
};

// A fault is put in on the way: errors that it leads to are part of what the run came to.
Run train_ranks(const Strategy& strategy, std::shared_ptr<Communicator> ranks,
                const Meeting& meeting, const Fault* fault = nullptr);
Run train_alone(const JobOptions& options);
// Updates with the same gradients, of owners and of one (verify_masters.h).
Run update_masters(const Strategy& strategy, std::shared_ptr<Communicator> ranks);

}  // namespace echelon
