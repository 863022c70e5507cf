#include "echelon/comm/sum_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "echelon/base/error.h"
#include "echelon/comm/communicator.h"

namespace echelon {

const std::shared_ptr<Communicator>& SumRanks::of(Dimensions summed_over) const {
  if (by_set_.empty()) return batch_;
  const auto it = by_set_.find(summed_over);
  if (it == by_set_.end())
    throw Error(
        fmt::format("no ranks were named that sum gradients over {}", to_string(summed_over)));
  return it->second;
}

bool SumRanks::are_alike() const {
  return std::all_of(by_set_.begin(), by_set_.end(),
                     [&](const auto& one) { return one.second == batch_; });
}

int SumRanks::common_multiple() const {
  int multiple = batch_ ? batch_->size() : 1;
  for (const auto& [set, ranks] : by_set_)
    if (ranks) multiple = std::lcm(multiple, ranks->size());
  return multiple;
}

}  // namespace echelon
