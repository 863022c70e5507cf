#include "echelon/train/replicas.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <fmt/format.h>

#include <bit>
#include <span>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"

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
    if (!parameter.trainable && parameter.here) fn(parameter.value);
}

// All-gathers one number per rank.
std::vector<std::int64_t> gathered(std::int64_t mine, at::Device device, Communicator& ranks) {
  const auto there = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor all = at::zeros({ranks.size()}, there);
  ranks.all_gather(all, at::zeros({1}, there).fill_(mine), {.tag = "check", .blocking = true})
      .wait();
  const at::Tensor seen = all.cpu();
  const auto* first = seen.const_data_ptr<std::int64_t>();
  return {first, first + ranks.size()};
}

std::vector<int> that_differ(std::uint64_t sum, at::Device device, Communicator& ranks) {
  const auto sums = gathered(static_cast<std::int64_t>(sum), device, ranks);
  std::vector<int> others;
  for (int r = 1; r < ranks.size(); ++r)
    if (sums[std::size_t(r)] != sums[0]) others.push_back(r);
  return others;
}

}  // namespace

std::vector<int> ranks_that_differ(const Stack& stack, Communicator& ranks) {
  std::uint64_t sum = checksum_of(stack.values());
  each_fixed(stack, [&](const at::Tensor& value) { sum = sum * 31 + checksum_of(value); });
  return that_differ(sum, stack.device(), ranks);
}

std::vector<int> ranks_that_differ_in_whole_parameters(const Stack& stack, Communicator& ranks) {
  std::uint64_t sum = 0;
  for (const auto& parameter : stack.parameters())
    if (parameter.here && !parameter.split.is_part()) sum = sum * 31 + checksum_of(parameter.value);
  return that_differ(sum, stack.device(), ranks);
}

std::vector<int> ranks_that_differ(const at::Tensor& values, Communicator& ranks) {
  return that_differ(checksum_of(values), values.device(), ranks);
}

bool differ(const at::Tensor& values, int one, int other, Communicator& ranks) {
  const auto sums =
      gathered(static_cast<std::int64_t>(checksum_of(values)), values.device(), ranks);
  return sums[std::size_t(one)] != sums[std::size_t(other)];
}

void require_same_state(const Update& update, std::int64_t step, Communicator& ranks) {
  std::uint64_t sum = std::uint64_t(update.updates());
  if (const auto* scaling = update.loss_scale()) {
    const auto [scale, good_steps] = scaling->state();
    sum = (sum * 31 + std::bit_cast<std::uint64_t>(scale)) * 31 + std::uint64_t(good_steps);
  }
  for (const auto& slice : update.slices())
    slice.access(/*changes=*/false,
                 [&](const at::Tensor& values) { sum = sum * 31 + checksum_of(values); });
  require_same_state(sum, step, update.state_options().device(), ranks);
}

void require_same_state(std::uint64_t sum, std::int64_t step, at::Device device,
                        Communicator& ranks) {
  const auto steps = gathered(step, device, ranks);
  const auto sums = gathered(static_cast<std::int64_t>(sum), device, ranks);
  for (std::size_t r = 1; r < steps.size(); ++r) {
    if (steps[r] == steps[0] && sums[r] == sums[0]) continue;
    throw InvalidArgument(
        steps[r] != steps[0]
            ? fmt::format("rank {} goes on after step {} and rank 0 after step {}: they restored "
                          "different states; give all ranks the same file",
                          r, steps[r], steps[0])
            : fmt::format(
                  "rank {} restored another state than rank 0, both after step {}; give all "
                  "ranks the same file",
                  r, step));
  }
}

void take_first_values(const Stack& stack, Update& update, Communicator& ranks) {
  const at::NoGradGuard no_grad;
  const auto take = [&](const at::Tensor& value) {
    ranks.broadcast(value, 0, {.tag = "first values", .blocking = true}).wait();
  };
  for (const auto& slice : update.slices())
    if (slice.kind == update.kinds().front()) slice.access(/*changes=*/true, take);
  update.publish();
  each_fixed(stack, take);
}

void take_first_buffers(const Stack& stack, Communicator& ranks) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : stack.buffers())
    ranks.broadcast(buffer, 0, {.tag = "buffers", .blocking = true}).wait();
}

}  // namespace echelon
