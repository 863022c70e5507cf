#include "echelon/step/widening.h"

#include <algorithm>
#include <utility>

namespace echelon {

Widening::Widening(const Stack& stack) : micro_batch_(stack.groups().size(), -1) {
  for (int l = 0; l < stack.size(); ++l)
    changes_.push_back(stack.has(l) ? stack.groups_of(l) : std::vector<int>());
}

void Widening::begin_step() { std::fill(micro_batch_.begin(), micro_batch_.end(), -1); }

std::vector<int> Widening::before(const Action& action) {
  std::vector<int> groups;
  if (changes_gradients(action)) {
    for (const int g : changes_[std::size_t(action.layer)]) {
      const int held = std::exchange(micro_batch_[std::size_t(g)], action.micro_batch);
      if (held >= 0 && held != action.micro_batch) groups.push_back(g);
    }
  } else if (action.kind == Action::Kind::scatter) {
    micro_batch_[std::size_t(action.group)] = -1;
  } else if (action.kind == Action::Kind::tie) {
    for (std::size_t g = 0; g < micro_batch_.size(); ++g)
      if (std::exchange(micro_batch_[g], -1) >= 0) groups.push_back(int(g));
  }
  return groups;
}

}  // namespace echelon
