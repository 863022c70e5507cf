// A communicator that passes everything on to another one, but for what an alteration does to it:
// deliberate faults, for checks that must see them (verify_faults.h).
//
//   // The last rank's gradients are lost on the way.
//   const auto faulty = altered(ranks, [](Transfer& one) {
//     if (one.tag == "gradients" && one.rank + 1 == one.size) one.summand().zero_();
//     return Change{};
//   });
//
// What is split from it is altered too, by the same alteration: it sees every group of a job. All
// ranks must still make matching calls, so an exchange is left out, or made twice, by all ranks of
// its group or by none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"

namespace echelon {

// One call of what a step is made of; the others (gather, barrier, …) are passed on unseen.
struct Transfer {
  enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast, send, receive };
  Kind kind;
  std::string tag = {};  // what it is for
  int rank = 0, size = 1;
  // What goes in and what comes out. An all-reduce and a broadcast are in place: output alone. A
  // send has an input alone, a receive an output. Another tensor may take the place of either.
  at::Tensor output = {}, input = {};
  ReduceOp op = ReduceOp::sum;
  int peer = Communicator::anyone;       // to whom, from whom, or the root
  std::uint64_t message = 0;             // the tag that a receive finds its send by
  std::vector<std::size_t> counts = {};  // elements of each rank's piece; empty: even

  at::Tensor& summand() { return input.defined() ? input : output; }
  // Of a tensor with a piece for each rank: that of `rank`, flat.
  at::Tensor piece(const at::Tensor& all, int of) const;
};

// What becomes of an exchange.
struct Change {
  // 0: it is left out, and this rank has what it brought itself: a sum of one summand, a gather of
  // one piece and zeros, zeros in place of a message. 2: it is made once before with copies, whose
  // result nobody sees.
  int times = 1;
  std::function<void()> after = {};  // once the result is there, before anybody uses it
};

// Called on each rank, before each exchange, which it may change.
using Alteration = std::function<Change(Transfer&)>;

std::shared_ptr<Communicator> altered(std::shared_ptr<Communicator> ranks, Alteration alteration);

}  // namespace echelon
