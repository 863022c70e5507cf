#include "echelon/step/ties.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>

namespace echelon {

Ties::Ties(Stack& stack, const Neighbours& neighbours) : stack_(stack) {
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

double Ties::sum() {
  const auto start = std::chrono::steady_clock::now();
  for (auto& [parameter, ranks] : shared_) {
    if (!stack_.has_fp32_sums()) parameter->zero_unwritten_grad();
    const at::Tensor gradient = stack_.sum_of(*parameter);
    const Work work =
        ranks->all_reduce(gradient, ReduceOp::sum, {.tag = "tied gradients", .blocking = true});
    stack_.device().is_cuda() ? work.follow() : work.wait();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace echelon
