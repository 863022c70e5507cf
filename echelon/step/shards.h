// What a step asks of a sharded model: to gather groups of parameters (Stack::groups) before they
// are used, and to reduce-scatter gradients to their owners.
#pragma once

#include <cstddef>

namespace echelon {

class Shards {
 public:
  // Limit on reduce-scatters whose gradients hold memory at once: `alloc_grads` waits until fewer
  // are under way.
  static constexpr std::size_t most_scattering = 2;
  // Whether the i-th of `under_way` reduce-scatters has to finish before another group gets memory.
  static constexpr bool is_due(std::size_t i, std::size_t under_way) {
    return i + most_scattering <= under_way;
  }

  virtual ~Shards() = default;

  virtual void begin_step() = 0;
  virtual void fetch(int group) = 0;         // starts loading this rank's slice into memory
  virtual void gather(int group) = 0;        // starts the all-gather of its values
  virtual void wait_unshard(int group) = 0;  // waits until its values are complete
  virtual void reshard(int group) = 0;       // its values are not needed for now
  virtual void alloc_grads(int group) = 0;   // allocates its gradients
  virtual void widen(int group) = 0;         // adds one micro-batch's gradients to their fp32 sums
  virtual void scatter(int group) = 0;  // its gradients are complete: starts the reduce-scatter
  virtual void synchronize() = 0;       // waits for everything that was started
};

}  // namespace echelon
