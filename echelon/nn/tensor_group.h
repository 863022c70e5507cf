// The ranks that split the products of a layer (tensor parallelism), and the exchanges that the
// building blocks of a layer need.
//
// Outside the products every rank has the same activations. If rows are split (sequence
// parallelism), each rank has only its part of their rows: rank r of p has the r-th of p equal runs
// of the rows of a micro-batch (samples x tokens), so norms, dropout and residual sums work on a
// p-th of them. A building block need not know which of the two applies:
//
//   whole(x)  activations with all rows, as a product takes them  all-gather of rows, or nothing
//   sum(y)    partial results of all ranks, as activations        reduce-scatter or all-reduce
//
// The gradient of one is the other. Both can be started and waited for later, to overlap
// computation. For n bytes, a rank sends (p-1)/p n in an all-gather or a reduce-scatter and twice
// that in an all-reduce. The ledger lists all of them as "tensor".
//
// All ranks of a group must make the same calls in the same order. Errors are the communicator's.
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
  // One member of a group whose other ranks do not exist: enough to lay out a model, e.g. to
  // forecast its memory. Any exchange throws Error.
  TensorGroup(int size, int rank, bool rows_are_split);

  int size() const { return size_; }
  int rank() const { return rank_; }
  bool rows_are_split() const { return rows_are_split_; }
  bool recordable() const;  // whether a GPU graph can capture its exchanges

  // The result of an exchange that is under way.
  class Begun {
   public:
    at::Tensor get();  // waits for the result; on a GPU the host does not wait

   private:
    friend class TensorGroup;
    TensorGroup* group_ = nullptr;
    Work work_;
    at::Tensor result_, source_;
  };

  Begun begin_whole(const at::Tensor& x) { return gather_rows(x, /*blocking=*/false); }
  at::Tensor whole(const at::Tensor& x) { return gather_rows(x, /*blocking=*/true).get(); }

  // Takes ownership of the tensor: if rows are whole, the sum is computed in place.
  Begun begin_sum(at::Tensor y) { return sum_rows(std::move(y), /*blocking=*/false); }
  at::Tensor sum(at::Tensor y) { return sum_rows(std::move(y), /*blocking=*/true).get(); }

  // In place: gradients of parameters that every rank has whole, each computed from the rank's
  // rows.
  void sum_over_rows(at::Tensor gradients) { all_reduce(gradients, ReduceOp::sum, "norms"); }
  void all_reduce(at::Tensor tensor, ReduceOp op, const char* tag);
  // The parts of all ranks, in rank order.
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

// The backward of a product that took whole(x); returns the gradient of x. `input` computes this
// rank's contribution to the gradient of whole(x), through its part of the weights. `weight` adds
// the gradient of the weights, given whole(x), now or deferred as the pass says. `weight` runs
// while the result of `input` is summed over the ranks. A rank keeps only its own rows of x, so x
// is gathered again while `input` runs. Without a group the two simply run one after the other.
at::Tensor product_backward(const std::shared_ptr<TensorGroup>& group, const at::Tensor& x,
                            Pass& pass, const std::function<at::Tensor()>& input,
                            const std::function<void(const at::Tensor& all)>& weight);

}  // namespace echelon
