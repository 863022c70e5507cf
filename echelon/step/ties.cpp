#include "echelon/step/ties.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace echelon {

Ties::Ties(Stack& stack, const Neighbours& neighbours, std::shared_ptr<Exchange> exchange)
    : stack_(stack), exchange_(std::move(exchange)) {
  std::map<std::string, std::set<int>> holders;  // by parameter: ranks with a layer that uses it
  for (const auto& tie : stack.ties()) {
    auto& ranks = holders[tie.name];
    ranks.insert(neighbours.owner[std::size_t(tie.owner)]);
    ranks.insert(neighbours.owner[std::size_t(tie.user)]);
  }
  const int rank = neighbours.ranks->rank();
  for (const auto& [name, ranks] : holders) {
    Parameter* const parameter = stack.find(name);
    if (ranks.size() < 2 || !parameter->trainable) continue;
    const auto group = neighbours.ranks->split(ranks.contains(rank) ? 0 : -1, rank);
    if (group) shared_.emplace_back(parameter, group);
  }
}

void Ties::sum() {
  for (auto& [parameter, ranks] : shared_) {
    if (!stack_.has_fp32_sums()) parameter->zero_unwritten_grad();
    exchange_->wait(exchange_->sum(*ranks, stack_.sum_of(*parameter),
                                   {.purpose = Purpose::tied_gradients, .blocking = true}),
                    stack_.device());
  }
}

}  // namespace echelon
