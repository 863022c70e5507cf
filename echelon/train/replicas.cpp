#include "echelon/train/replicas.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <span>

#include "echelon/base/checksum.h"

namespace echelon {
namespace {

std::uint64_t checksum_of(const at::Tensor& tensor) {
  const at::Tensor here = tensor.cpu().contiguous();
  return checksum(
      std::as_bytes(std::span(static_cast<const char*>(here.const_data_ptr()), here.nbytes())));
}

template <class Fn>
void each_fixed(const Stack& stack, const Fn& fn) {
  for (const auto& parameter : stack.parameters())
    if (!parameter.trainable) fn(parameter.value);
}

}  // namespace

std::vector<int> ranks_that_differ(const Stack& stack, Communicator& ranks) {
  std::uint64_t sum = checksum_of(stack.values());
  each_fixed(stack, [&](const at::Tensor& value) { sum = sum * 31 + checksum_of(value); });
  const auto there = at::TensorOptions(stack.device()).dtype(at::kLong);
  const at::Tensor mine = at::zeros({1}, there).fill_(static_cast<std::int64_t>(sum));
  const at::Tensor all = at::zeros({ranks.size()}, there);
  ranks.all_gather(all, mine, {.tag = "check", .blocking = true}).wait();
  const at::Tensor seen = all.cpu();
  const auto* sums = seen.const_data_ptr<std::int64_t>();
  std::vector<int> others;
  for (int r = 1; r < ranks.size(); ++r)
    if (sums[r] != sums[0]) others.push_back(r);
  return others;
}

void take_first_values(const Stack& stack, MasterUpdate& update, Communicator& ranks) {
  const at::NoGradGuard no_grad;
  const auto take = [&](const at::Tensor& value) {
    ranks.broadcast(value, 0, {.tag = "first values", .blocking = true}).wait();
  };
  take(update.state().front().flat);
  update.publish();
  each_fixed(stack, take);
}

void take_first_buffers(const Stack& stack, Communicator& ranks) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : stack.buffers())
    ranks.broadcast(buffer, 0, {.tag = "buffers", .blocking = true}).wait();
}

}  // namespace echelon
