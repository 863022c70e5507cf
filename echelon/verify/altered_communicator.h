// A communicator that forwards every call to another one, except for what an alteration changes:
// deliberate faults for the checks that must catch them (faults.h).
//
//   // The last rank's gradients are lost.
//   const auto faulty = altered(ranks, [](Transfer& one) {
//     if (one.tag == "gradients" && one.rank + 1 == one.size) one.summand().zero_();
//     return Change{};
//   });
//
// Groups split from it are altered too, by the same alteration, which sees every group of a job.
// All ranks must still make matching calls, so all ranks of a group skip or repeat an exchange, or
// none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"

namespace echelon {

// One exchange of a step. Other calls (gather, barrier, …) are forwarded unseen.
struct Transfer {
  enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast, send, receive };
  Kind kind;
  std::string tag = {};  // what it is for
  int rank = 0, size = 1;
  // An all-reduce and a broadcast are in place and have only an output. A send has only an input, a
  // receive only an output. An alteration may replace either tensor.
  at::Tensor output = {}, input = {};
  ReduceOp op = ReduceOp::sum;
  int peer = Communicator::anyone;       // the receiver, the sender or the root
  std::uint64_t message = 0;             // matches a receive with its send
  std::vector<std::size_t> counts = {};  // elements of each rank's piece; empty: even

  at::Tensor& summand() { return input.defined() ? input : output; }
  // The piece of rank `of` of a tensor with one piece per rank, flat.
  at::Tensor piece(const at::Tensor& all, int of) const;
};

// What happens to an exchange.
struct Change {
  // 0: skipped; this rank keeps its own contribution: a sum of one summand, a gather of one piece
  // and zeros, zeros instead of a message. 2: made once more before, with copies whose result is
  // dropped.
  int times = 1;
  std::function<void()> after = {};  // called on the result before its first use
};

// Called on each rank before each exchange; may change the exchange.
using Alteration = std::function<Change(Transfer&)>;

std::shared_ptr<Communicator> altered(std::shared_ptr<Communicator> ranks, Alteration alteration);

}  // namespace echelon
