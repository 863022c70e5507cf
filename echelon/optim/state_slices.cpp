#include "echelon/optim/state_slices.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstddef>

#include "echelon/comm/communicator.h"
#include "echelon/nn/memory.h"
#include "echelon/optim/update.h"

namespace echelon {

StateIndex::StateIndex(const Update& update) : update_(update) {
  for (auto& slice : update.slices()) {
    auto& all = slices_[{slice.kind, slice.parameter}];
    all.push_back(std::move(slice));
  }
}

const std::vector<StateSlice>& StateIndex::slices(const std::string& kind,
                                                  const Parameter& parameter) const {
  static const std::vector<StateSlice> none;
  const auto it = slices_.find({kind, &parameter});
  return it == slices_.end() ? none : it->second;
}

at::Tensor StateIndex::whole(const std::string& kind, const Parameter& parameter) const {
  const at::NoGradGuard no_grad;
  const auto& own = slices(kind, parameter);
  if (!update_.owners(parameter)) {  // one slice is the whole parameter
    at::Tensor all;
    own.at(0).access(/*changes=*/false, [&](const at::Tensor& values) { all = values; });
    return all.view(parameter.shape);
  }
  // The slices of one rank are adjacent: together they form one run.
  const MemoryScope scope(MemoryKind::workspace);
  const auto options = update_.state_options();
  std::int64_t numel = 0, filled = 0;
  for (const auto& slice : own) numel += slice.numel;
  const at::Tensor mine = at::empty({numel}, options),
                   all = at::empty({parameter.numel()}, options);
  for (const auto& slice : own)
    slice.access(/*changes=*/false, [&](const at::Tensor& values) {
      mine.narrow(0, filled, slice.numel).copy_(values);
      filled += slice.numel;
    });
  update_.owners(parameter)
      ->all_gather(all, mine, {.tag = "whole parameters", .blocking = true},
                   update_.owned_by(parameter))
      .wait();
  return all.view(parameter.shape);
}

void StateIndex::put(const std::string& kind, const Parameter& parameter,
                     const at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = values.reshape({-1});
  for (const auto& slice : slices(kind, parameter))
    slice.access(/*changes=*/true,
                 [&](at::Tensor mine) { mine.copy_(flat.narrow(0, slice.begin, slice.numel)); });
}

}  // namespace echelon
