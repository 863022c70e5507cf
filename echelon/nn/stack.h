// A Stack: an ordered list of layers, the last of which is the loss. Adding a layer only describes
// it; `allocate` gives all parameters memory in flat units, and values come from a ValueSource, one
// segment at a time.
//
//   Stack stack;
//   stack.add(std::make_unique<MyLayer>());
//   stack.add(std::make_unique<MyLoss>());
//   stack.allocate(at::kCPU, at::kFloat, Gradients::yes);
//   stack.load(random_values(seed));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "echelon/nn/flat_unit.h"
#include "echelon/nn/layer.h"

namespace echelon {

// Fills `out` (any device, any floating type, the parameter's shape) with a parameter's values.
using ValueSource = std::function<void(const Parameter& parameter, at::Tensor out)>;

// First values by each parameter's Init; see random.h for why any layout gets the same ones.
ValueSource random_values(std::uint64_t seed);

enum class Gradients { no, yes };

class Stack : private Declaration {
 public:
  Stack() = default;
  Stack(Stack&&) = default;
  ~Stack();

  Stack& add(std::unique_ptr<Layer> layer);

  int size() const { return static_cast<int>(layers_.size()); }
  Layer& layer(int i) { return *layers_[static_cast<std::size_t>(i)]; }

  // Every parameter once, in the order of declaration, and those that are used a second time.
  const std::deque<Parameter>& parameters() const { return parameters_; }
  Parameter* find(const std::string& name);
  struct Tie {
    std::string name;
    int owner;  // layer that declared it
    int user;   // layer that uses it again
  };
  const std::vector<Tie>& ties() const { return ties_; }
  std::int64_t parameter_count() const;

  // `gradient_memory` gives the buffer of all gradients, zeros (a communicator's, so that they are
  // reduced where they lie); by default it is ordinary memory.
  using Memory = std::function<at::Tensor(std::int64_t numel, at::ScalarType type)>;
  void allocate(at::Device device, at::ScalarType type, Gradients gradients,
                const Memory& gradient_memory = {});
  void load(const ValueSource& source);

  // After allocate. The buffers of all trainable units, one after another; a unit is the range
  // [begin, begin + numel).
  const std::vector<FlatUnit>& units() const { return units_; }
  const at::Tensor& values() const { return values_; }
  const at::Tensor& grads() const { return grads_; }
  at::Device device() const { return device_; }
  at::ScalarType type() const { return type_; }

  // Forgets which gradients were written; the next backward overwrites them.
  void begin_step();
  // Of the parameters in [begin, end) of the gradient buffer: those no backward has written to.
  void zero_unwritten_grads(std::int64_t begin, std::int64_t end);

  std::vector<std::pair<std::string, at::Tensor>> buffers() const;
  bool capturable() const;

  // Forward alone, nothing kept: the model's output, or its mean loss where a target is given.
  at::Tensor infer(const at::Tensor& input, const at::Tensor& target = {});

 private:
  Parameter* parameter(std::string name, std::vector<std::int64_t> shape, Init init, bool decay,
                       bool trainable) override;
  Parameter* tied(const std::string& name) override;

  std::vector<std::unique_ptr<Layer>> layers_;
  std::deque<Parameter> parameters_;  // stable addresses: layers keep pointers
  std::vector<Tie> ties_;
  std::vector<FlatUnit> units_;
  at::Tensor values_, grads_, frozen_;
  at::Device device_ = at::kCPU;
  at::ScalarType type_ = at::kFloat;
};

}  // namespace echelon
