// Tensors of torch as elements of a group's collectives, and the reductions that a group has not:
// bitwise ones (every rank gathers all and folds them itself) and sums of sparse tensors.
//
// All tensors here are one piece of memory each (work.h).
#pragma once

#include <cstdint>
#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "echelon/collective/group.h"

namespace echelon::python {

struct Elements {
  DataType type;
  std::size_t count;
};

// For operations that only move: any type, as bytes where the group does not know it.
Elements to_move(const at::Tensor& tensor);

// Throws when tensors of this type cannot be combined so; done before an operation is queued.
void check_reduction(const at::Tensor& tensor, const c10d::ReduceOp& op);

void all_reduce(Group& group, const at::Tensor& tensor, const c10d::ReduceOp& op,
                const CallOptions& call);
void reduce(Group& group, const at::Tensor& tensor, const c10d::ReduceOp& op, int root,
            const CallOptions& call);
// counts: elements of the tensor by rank.
void reduce_scatter(Group& group, const at::Tensor& output, const at::Tensor& input,
                    std::span<const std::int64_t> counts, const c10d::ReduceOp& op,
                    const CallOptions& call);

// The sum of all ranks' tensors, coalesced, in place. Their sizes must be the same; what they hold
// need not.
void all_reduce_sparse(Group& group, const at::Tensor& tensor, const CallOptions& call);

}  // namespace echelon::python
