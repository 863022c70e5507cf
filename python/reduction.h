// Maps torch's tensors to elements of a group's collectives, and adds the reductions that a group
// lacks: bitwise ones (every rank gathers all tensors and folds them) and sums of sparse tensors.
//
// All tensors here are contiguous (work.h).
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

// For operations that only move data: any type, as bytes if the group does not know it.
Elements to_move(const at::Tensor& tensor);

// Throws if tensors of this type cannot be reduced so. Called before an operation is queued.
void check_reduction(const at::Tensor& tensor, const c10d::ReduceOp& op);

void all_reduce(Group& group, const at::Tensor& tensor, const c10d::ReduceOp& op,
                const CallOptions& call);
void reduce(Group& group, const at::Tensor& tensor, const c10d::ReduceOp& op, int root,
            const CallOptions& call);
// counts: elements of the tensor by rank.
void reduce_scatter(Group& group, const at::Tensor& output, const at::Tensor& input,
                    std::span<const std::int64_t> counts, const c10d::ReduceOp& op,
                    const CallOptions& call);

// The sum of all ranks' tensors, coalesced, in place. Their sizes must agree; their indices need
// not.
void all_reduce_sparse(Group& group, const at::Tensor& tensor, const CallOptions& call);

}  // namespace echelon::python
