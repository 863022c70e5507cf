#include "echelon/parallel/zero/zero_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "echelon/nn/memory.h"

namespace echelon {

ZeroUpdate::ZeroUpdate(Stack& stack, ZeroShards& shards, const OptimOptions& options)
    : stack_(stack), shards_(shards) {
  const auto type = stack.type();
  const auto wide = at::TensorOptions(stack.device()).dtype(master_type(type));
  const int groups = int(stack.groups().size());
  if (master_type(type) != type) {
    MemoryScope scope(MemoryKind::optimizer);
    std::int64_t all = 0;
    for (int g = 0; g < groups; ++g) all += shards.slice_numel(g);
    masters_ = at::zeros({all}, wide);
  }
  std::vector<SliceUpdate::Part> parts;
  std::int64_t first = 0;
  for (int g = 0; g < groups; ++g) {
    const auto begin = shards.slice_begin(g), numel = shards.slice_numel(g);
    parts.push_back({masters_.defined() ? masters_.narrow(0, first, numel) : shards.values(g),
                     ranges_within(stack.units(), begin, begin + numel, type, grain_of(options))});
    first += numel;
  }
  slices_ = std::make_unique<SliceUpdate>(
      std::move(parts), type, options, parameters_of(stack.units()), [this](at::Tensor sums) {
        shards_.ranks()
            .all_reduce(sums, ReduceOp::sum, {.tag = "norms", .blocking = true})
            .follow();
      });
  norm_ = at::zeros({}, wide);
}

template <class Fn>
void ZeroUpdate::each_part(std::size_t kind, const Parameter& parameter, const Fn& fn) const {
  const auto parts = slices_->parted_state()[kind].parts;
  for (int g = 0; g < int(parts.size()); ++g) {
    const auto begin = shards_.slice_begin(g), end = begin + shards_.slice_numel(g);
    const auto from = std::max(begin, parameter.begin),
               to = std::min(end, parameter.begin + parameter.numel());
    if (from < to)
      fn(parts[std::size_t(g)].narrow(0, from - begin, to - from), from - parameter.begin);
  }
}

// Every parameter is made whole for a moment, and the own part of it kept.
void ZeroUpdate::load(const ValueSource& source) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : stack_.parameters()) {
    if (!parameter.trainable) {
      source(parameter, parameter.value);
      continue;
    }
    at::Tensor whole;
    each_part(0, parameter, [&](at::Tensor part, std::int64_t at) {
      if (!whole.defined()) {
        MemoryScope scope(MemoryKind::workspace);
        whole = at::empty(parameter.shape, part.options());
        source(parameter, whole);
      }
      part.copy_(whole.view({-1}).narrow(0, at, part.numel()));
    });
  }
  publish();
}

// The others add nothing to what one has.
at::Tensor ZeroUpdate::whole(std::size_t kind, const Parameter& parameter) const {
  const at::NoGradGuard no_grad;
  MemoryScope scope(MemoryKind::workspace);
  const auto wide = slices_->parted_state()[kind].parts.front().options();
  at::Tensor all = at::zeros({parameter.numel()}, wide);
  each_part(kind, parameter, [&](const at::Tensor& part, std::int64_t at) {
    all.narrow(0, at, part.numel()).copy_(part);
  });
  shards_.ranks()
      .all_reduce(all, ReduceOp::sum, {.tag = "whole parameters", .blocking = true})
      .wait();
  return all.view(parameter.shape);
}

void ZeroUpdate::put(std::size_t kind, const Parameter& parameter, const at::Tensor& whole) {
  const at::NoGradGuard no_grad;
  each_part(kind, parameter, [&](at::Tensor part, std::int64_t at) {
    part.copy_(whole.view({-1}).narrow(0, at, part.numel()));
  });
}

void ZeroUpdate::apply(const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  for (int g = 0; g < int(stack_.groups().size()); ++g) grads.push_back(shards_.grads(g));
  at::Tensor square = slices_->norm_of(grads).to(at::kDouble).square();
  shards_.ranks().all_reduce(square, ReduceOp::sum, {.tag = "norm", .blocking = true}).follow();
  norm_.copy_(square.sqrt());
  slices_->apply(grads, norm_, loss);
  publish();
}

void ZeroUpdate::publish() {
  const at::NoGradGuard no_grad;
  if (masters_.defined()) {
    const auto masters = slices_->parted_state().front().parts;
    for (int g = 0; g < int(masters.size()); ++g) shards_.values(g).copy_(masters[std::size_t(g)]);
  }
  if (shards_.stage() < 3) shards_.publish();
}

}  // namespace echelon
