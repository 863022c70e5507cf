#include "echelon/nn/tensor_group.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/comm/communicator.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/memory.h"

namespace echelon {

TensorGroup::TensorGroup(std::shared_ptr<Communicator> ranks, bool rows_are_split)
    : ranks_(std::move(ranks)),
      size_(ranks_->size()),
      rank_(ranks_->rank()),
      rows_are_split_(rows_are_split) {}

TensorGroup::TensorGroup(int size, int rank, bool rows_are_split)
    : size_(size), rank_(rank), rows_are_split_(rows_are_split) {}

Communicator& TensorGroup::ranks() const {
  if (!ranks_)
    throw Error(fmt::format(
        "the model was split as for rank {} of {}, and without ranks it cannot run", rank_, size_));
  return *ranks_;
}

bool TensorGroup::recordable() const { return ranks_ && ranks_->recordable(); }

at::Tensor TensorGroup::Begun::get() {
  if (group_) group_->clock_.wait(work_, result_.device());
  source_.reset();
  return std::move(result_);
}

TensorGroup::Begun TensorGroup::gather_rows(const at::Tensor& x, bool blocking) {
  Begun begun;
  if (!rows_are_split_) {
    begun.result_ = x;
    return begun;
  }
  MemoryScope scope(MemoryKind::communication);
  begun.group_ = this;
  begun.source_ = x.contiguous();
  begun.result_ = at::empty({x.size(0) * size_, x.size(1)}, x.options());
  begun.work_ = clock_.begin(
      [&] {
        return ranks().all_gather(begun.result_, begun.source_,
                                  {.tag = "tensor", .blocking = blocking});
      },
      blocking, x.device());
  return begun;
}

TensorGroup::Begun TensorGroup::sum_rows(at::Tensor y, bool blocking) {
  Begun begun;
  begun.group_ = this;
  if (!rows_are_split_) {
    begun.work_ = clock_.begin(
        [&] {
          return ranks().all_reduce(y, ReduceOp::sum, {.tag = "tensor", .blocking = blocking});
        },
        blocking, y.device());
    begun.result_ = std::move(y);
    return begun;
  }
  begun.source_ = y.view({-1, y.size(-1)});
  begun.result_ = at::empty({begun.source_.size(0) / size_, y.size(-1)}, y.options());
  begun.work_ = clock_.begin(
      [&] {
        return ranks().reduce_scatter(begun.result_, begun.source_, ReduceOp::sum,
                                      {.tag = "tensor", .blocking = blocking});
      },
      blocking, y.device());
  return begun;
}

void TensorGroup::all_reduce(at::Tensor tensor, ReduceOp op, const char* tag) {
  const at::Device device = tensor.device();
  clock_.wait(
      clock_.begin([&] { return ranks().all_reduce(tensor, op, {.tag = tag, .blocking = true}); },
                   /*blocking=*/true, device),
      device);
}

std::vector<at::Tensor> TensorGroup::gather(const at::Tensor& part) {
  std::vector<std::int64_t> sizes = part.sizes().vec();
  sizes.insert(sizes.begin(), size_);
  const at::Tensor all = at::empty(sizes, part.options());
  const at::Device device = part.device();
  const at::Tensor mine = part.contiguous();
  clock_.wait(
      clock_.begin(
          [&] { return ranks().all_gather(all, mine, {.tag = "tensor", .blocking = true}); },
          /*blocking=*/true, device),
      device);
  return all.unbind(0);
}

at::Tensor product_backward(const std::shared_ptr<TensorGroup>& group, const at::Tensor& x,
                            Pass& pass, const std::function<at::Tensor()>& input,
                            const std::function<void(const at::Tensor& all)>& weight) {
  if (!weight) return group ? group->sum(input()) : input();
  if (!group) {
    pass.run_or_defer([weight, x] { weight(x); });
    return input();
  }
  // All ranks of the group defer the same gradients and run them in the same order.
  if (pass.defer_weight_grads) {
    pass.later.push_back([group, weight, x] { weight(group->whole(x)); });
    return group->sum(input());
  }
  auto all = group->begin_whole(x);
  auto grad = group->begin_sum(input());
  weight(all.get());
  return grad.get();
}

}  // namespace echelon
