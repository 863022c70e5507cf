#include "echelon/nn/random_state.h"

#include <ATen/Context.h>

#include <mutex>

namespace echelon {
namespace {

std::vector<at::Generator> generators(at::Device device) {
  std::vector<at::Generator> all = {at::globalContext().defaultGenerator(at::kCPU)};
  if (!device.is_cpu()) all.push_back(at::globalContext().defaultGenerator(device));
  return all;
}

}  // namespace

RandomState::RandomState(at::Device device) : device_(device) {
  for (auto& generator : generators(device)) {
    const std::lock_guard lock(generator.mutex());
    states_.push_back(generator.get_state());
  }
}

void RandomState::put(const std::vector<at::Tensor>& states) const {
  auto next = states.begin();
  for (auto& generator : generators(device_)) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(*next++);
  }
}

}  // namespace echelon
