// What a step asks of whoever shares a model out: groups of parameters (Stack::groups) that are
// brought together before they are used, and gradients that go to their owners.
#pragma once

#include <cstddef>

namespace echelon {

class Shards {
 public:
  // Scatters whose gradients hold memory at once: `open` waits until there are fewer.
  static constexpr std::size_t most_scattering = 2;

  virtual ~Shards() = default;

  virtual void begin_step() = 0;
  virtual void fetch(int group) = 0;         // begins to bring what this rank owns of it to memory
  virtual void gather(int group) = 0;        // begins to bring its values together
  virtual void wait_unshard(int group) = 0;  // they are there
  virtual void reshard(int group) = 0;       // they are needed no more for now
  virtual void alloc_grads(int group) = 0;   // memory for its gradients
  virtual void widen(int group) = 0;    // its gradients, of one micro-batch, join their fp32 sums
  virtual void scatter(int group) = 0;  // its gradients are complete: begins to give them to owners
  virtual void synchronize() = 0;       // all that was begun is done
};

}  // namespace echelon
