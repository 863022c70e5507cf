// The ranks that split the products of a layer between them (tensor parallelism), and what the
// pieces of a layer ask of them.
//
// Outside of the products every rank has the same activations. Where rows are split (sequence
// parallelism) it has its share of their rows instead: rank r of p the r-th of p equal runs of the
// rows of a micro-batch (samples x tokens), so norms, dropout and sums work on a p-th of them.
// A piece need not know which of the two it is:
//
//   whole(x)  activations as a product takes them: all rows     all-gather of rows, or nothing
//   sum(y)    what every rank has a summand of, as activations  reduce-scatter of rows, or
//   all-reduce
//
// and the gradient of one is the other. Each may be begun, to compute meanwhile. Of n bytes a rank
// sends (p-1)/p n in an all-gather or a reduce-scatter, twice that in an all-reduce; in the ledger
// all are "tensor".
//
// All ranks of a group must ask the same in the same order. Errors are the communicator's.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "echelon/collective/type.h"
#include "echelon/comm/work.h"
#include "echelon/comm/work_clock.h"

namespace echelon {

class Communicator;
struct Pass;

class TensorGroup {
 public:
  TensorGroup(std::shared_ptr<Communicator> ranks, bool rows_are_split);
  // One place of a group whose ranks are not there: enough to lay a model out, as for a forecast of
  // its memory. Whatever would exchange throws Error.
  TensorGroup(int size, int rank, bool rows_are_split);

  int size() const { return size_; }
  int rank() const { return rank_; }
  bool rows_are_split() const { return rows_are_split_; }
  bool recordable() const;  // by a GPU's graph

  // A tensor that is on its way.
  class Begun {
   public:
    at::Tensor get();  // once it is there; on a GPU the host does not wait

   private:
    friend class TensorGroup;
    TensorGroup* group_ = nullptr;
    Work work_;
    at::Tensor result_, source_;
  };

  Begun begin_whole(const at::Tensor& x) { return gather_rows(x, /*blocking=*/false); }
  at::Tensor whole(const at::Tensor& x) { return gather_rows(x, /*blocking=*/true).get(); }

  // The tensor is the group's from now on: where rows are whole, the sum is made in its place.
  Begun begin_sum(at::Tensor y) { return sum_rows(std::move(y), /*blocking=*/false); }
  at::Tensor sum(at::Tensor y) { return sum_rows(std::move(y), /*blocking=*/true).get(); }

  // In place: gradients of parameters that every rank has whole, each from its own rows.
  void sum_over_rows(at::Tensor gradients) { all_reduce(gradients, ReduceOp::sum, "norms"); }
  void all_reduce(at::Tensor tensor, ReduceOp op, const char* tag);
  // Of every rank, in their order.
  std::vector<at::Tensor> gather(const at::Tensor& part);

  void begin_step() { clock_.reset(); }
  const WorkClock& clock() const { return clock_; }  // since begin_step

 private:
  Communicator& ranks() const;
  Begun gather_rows(const at::Tensor& x, bool blocking);
  Begun sum_rows(at::Tensor y, bool blocking);

  std::shared_ptr<Communicator> ranks_;
  int size_, rank_;
  bool rows_are_split_;
  WorkClock clock_;
};

// The backward of a product that took whole(x), the gradient for x. `input` gives that for whole(x)
// as far as it goes through this rank's part of the weights; `weight` adds the weights' own, given
// whole(x), now or later as the pass says. While the one is summed over the ranks, the other is
// computed; x, of which a rank keeps its rows alone, comes again while `input` is. Without a group:
// the two, one after the other.
at::Tensor product_backward(const std::shared_ptr<TensorGroup>& group, const at::Tensor& x,
                            Pass& pass, const std::function<at::Tensor()>& input,
                            const std::function<void(const at::Tensor& all)>& weight);

}  // namespace echelon
