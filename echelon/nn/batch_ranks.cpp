#include "echelon/nn/batch_ranks.h"

#include <ATen/ops/empty.h>

#include "echelon/comm/communicator.h"

namespace echelon {

int BatchRanks::size() const { return ranks_->size(); }

template <class Exchange>
void BatchRanks::wait(const Exchange& exchange, const at::Tensor& tensor) {
  const at::Device device = tensor.device();
  clock_.wait(clock_.begin(exchange, /*blocking=*/true, device), device);
}

at::Tensor BatchRanks::gather(const at::Tensor& mine, const std::string& tag) {
  const at::Tensor all = at::empty({size(), mine.numel()}, mine.options());
  wait([&] { return ranks_->all_gather(all, mine, {.tag = tag, .blocking = true}); }, mine);
  return all;
}

void BatchRanks::sum(const at::Tensor& values, const std::string& tag) {
  wait([&] { return ranks_->all_reduce(values, ReduceOp::sum, {.tag = tag, .blocking = true}); },
       values);
}

}  // namespace echelon
