#include "echelon/nn/batch_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "echelon/comm/communicator.h"

namespace echelon {

int BatchRanks::size() const { return ranks_ ? ranks_->size() : copies_; }

template <class Exchange>
void BatchRanks::wait(const Exchange& exchange, const at::Tensor& tensor) {
  const at::Device device = tensor.device();
  clock_.wait(clock_.begin(exchange, /*blocking=*/true, device), device);
}

at::Tensor BatchRanks::gather(const at::Tensor& mine, const std::string& tag) {
  if (!ranks_) return mine.expand({copies_, mine.numel()});
  const at::Tensor all = at::empty({size(), mine.numel()}, mine.options());
  wait([&] { return ranks_->all_gather(all, mine, {.tag = tag, .blocking = true}); }, mine);
  return all;
}

void BatchRanks::sum(const at::Tensor& values, const std::string& tag) {
  if (!ranks_) {
    at::Tensor(values).mul_(copies_);
    return;
  }
  wait([&] { return ranks_->all_reduce(values, ReduceOp::sum, {.tag = tag, .blocking = true}); },
       values);
}

}  // namespace echelon
