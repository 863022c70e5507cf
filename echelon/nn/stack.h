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
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "echelon/nn/flat_unit.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/recompute.h"

namespace echelon {

// Fills `out` (any device, any floating type, the parameter's shape) with a parameter's values.
using ValueSource = std::function<void(const Parameter& parameter, at::Tensor out)>;

// Of a source that fills whole parameters, whatever this process has of them: its part of each. One
// whole is in memory at a time.
ValueSource parts_of(ValueSource wholes);

// First values by each parameter's Init; see random.h for why any layout gets the same ones.
ValueSource random_values(std::uint64_t seed);

// fp32_sums: of models in bf16 and fp16 each micro-batch's gradients are added to sums in fp32.
enum class Gradients { no, yes, fp32_sums };

class Stack : private Declaration {
 public:
  Stack() = default;
  Stack(Stack&&) = default;
  ~Stack();

  struct Tie {
    std::string name;
    int owner;  // layer that declared it
    int user;   // layer that uses it again
  };

  Stack& add(std::unique_ptr<Layer> layer);

  int size() const { return static_cast<int>(layers_.size()); }
  Layer& layer(int i) { return *layers_[static_cast<std::size_t>(i)]; }

  // This process has these layers alone, by layer; those of others have no memory and are not run.
  // A parameter that a kept layer ties itself to is here too, as a copy: the layer that ties is
  // then its own. From the next lay_out on; what was allocated before is gone.
  void keep(const std::vector<bool>& layers);
  bool has(int layer) const { return kept_.empty() || kept_[std::size_t(layer)]; }
  // Parameters that are here and that layers of others use too.
  std::vector<const Parameter*> tied_across() const;
  int declared_in(const Parameter& parameter) const;  // its layer, wherever that is

  // Ranks split products between them: the named parameters become parts. Pieces then exchange what
  // they must with the group. From the next lay_out on; split_plan.h makes and checks the splits.
  void split(const std::map<std::string, Split>& splits, std::shared_ptr<TensorGroup> group);
  const std::shared_ptr<TensorGroup>& tensor_group() const { return group_; }  // null: nobody

  Stack& recompute(Recompute what);
  Recompute recompute() const { return recompute_; }
  // By layer, whether it runs again before its backward. Not the loss, whose backward is next
  // anyway, and not a layer that keeps nothing but its input.
  std::vector<bool> runs_again() const;

  // Every parameter once, in the order of declaration, and those that are used a second time.
  const std::deque<Parameter>& parameters() const { return parameters_; }
  Parameter* find(const std::string& name);
  const Parameter* find(const std::string& name) const {
    return const_cast<Stack*>(this)->find(name);
  }
  const std::vector<Tie>& ties() const { return ties_; }
  std::int64_t parameter_count() const;  // elements of the whole model

  // Gives memory for so many elements, zeros.
  using Memory = std::function<at::Tensor(std::int64_t numel, at::ScalarType type)>;

  // How parameters lie in memory where several ranks share them.
  struct Allocation {
    // A communicator's, so that it works on them in place; empty: ordinary. What has fp32 sums has
    // those there, not each backward's gradients.
    Memory values, gradients;
    int shards = 1;                   // owners: groups (below) divide by it
    std::int64_t smallest = 1 << 16;  // group, in elements
    // Owners keep slices of a group's values, or gradients: the whole has no memory of its own, and
    // is where it is lent to. The fp32 sums of such gradients are lent memory as well.
    bool sliced_values = false, sliced_gradients = false;
  };
  // Gives every parameter its place, and no memory: units() and groups() are there.
  void lay_out(const Allocation& allocation);
  // Lays out, and gives memory.
  void allocate(at::Device device, at::ScalarType type, Gradients gradients,
                const Allocation& allocation);
  void allocate(at::Device device, at::ScalarType type, Gradients gradients) {
    allocate(device, type, gradients, Allocation());
  }
  void load(const ValueSource& source);
  // Undoes keep, split and allocate: what was added is all there is, as a description.
  void forget_layout();

  // Whole values of every parameter, in the order of parameters(): until use_parts() all layers are
  // in this process and compute with these, and infer() asks nothing of other ranks. Units, groups
  // and gradients stay those of the parts, so that is no time to train.
  void use_whole(std::vector<at::Tensor> values);
  void use_parts();
  bool uses_whole() const { return !parts_.empty(); }
  // Whether this process has the values of all layers now, each whole or its part of a tensor
  // group.
  bool has_values() const;

  // As errors call a layer: "layer 2 (transformer.h.1)".
  std::string name_of(int layer) const;

  // After lay_out. The buffers of all trainable units, one after another; a unit is the range
  // [begin, begin + numel). Undefined where groups are lent their memory.
  const std::vector<FlatUnit>& units() const { return units_; }
  // The trainable units in groups; which of them a layer computes with, tied parameters included.
  const std::vector<ShardGroup>& groups() const { return groups_; }
  std::vector<int> groups_of(int layer) const;
  int group_of(const Parameter& parameter) const;  // a trainable one that is here

  // Of one group, as one tensor. Where they are lent, `memory` (of its size, on the device) is used
  // from now on, without a copy, under all views that exist; take_back gives it again, and then the
  // group must not be touched.
  at::Tensor group_values(int group) const { return values_of_[std::size_t(group)]; }
  at::Tensor group_grads(int group) const { return grads_of_[std::size_t(group)]; }
  void attach_values(int group, const at::Tensor& memory);
  void attach_grads(int group, const at::Tensor& memory);
  void attach_sums(int group, const at::Tensor& memory);
  at::Tensor detach_values(int group);
  at::Tensor detach_grads(int group);
  at::Tensor detach_sums(int group);
  // The next backward overwrites the gradients of this group; what pads them becomes zero.
  void forget_grads(int group);

  const at::Tensor& values() const { return values_; }
  const at::Tensor& grads() const { return grads_; }

  // What ranks reduce and the update reads: the gradients, which backward adds up itself, or the
  // fp32 sums of what each micro-batch leaves in them.
  const at::Tensor& sums() const { return fp32_sums_ ? sums_ : grads_; }
  at::Tensor group_sums(int group) const {
    return (fp32_sums_ ? sums_of_ : grads_of_)[std::size_t(group)];
  }
  at::Tensor sum_of(const Parameter& parameter) const;  // flat; of a trainable one that is here
  bool has_fp32_sums() const { return fp32_sums_; }
  bool has_attached_sums(int group) const { return attached_sums_[std::size_t(group)].defined(); }
  // Adds the gradients in [begin, end) of the gradient buffer, which begins and ends at units, to
  // their fp32 sums; the next backward overwrites them. They must be of one micro-batch: what
  // backward adds up before this, it rounds to the model's type.
  void add_to_sums(std::int64_t begin, std::int64_t end);

  at::Device device() const { return device_; }
  at::ScalarType type() const { return type_; }

  // Forgets which gradients were written; the next backward overwrites them.
  void begin_step();
  // Of the parameters in [begin, end) of the gradient buffer: those no backward has written to.
  void zero_unwritten_grads(std::int64_t begin, std::int64_t end);

  std::vector<std::pair<std::string, at::Tensor>> buffers() const;
  bool capturable() const;

  // What every layer's pass says of a micro-batch, of which `input` is the first layer's. Throws
  // InvalidArgument where its rows are split and do not divide.
  Pass pass_for(const at::Tensor& input) const;

  // Forward alone, nothing kept: the model's output, or its mean loss where a target is given.
  // InvalidArgument where this process does not have the values of all layers: Trainer::infer does
  // what this does, on all ranks together.
  at::Tensor infer(const at::Tensor& input, const at::Tensor& target = {});

 private:
  Parameter* parameter(std::string name, std::vector<std::int64_t> shape, Init init, bool decay,
                       bool trainable, Splits splits) override;
  Parameter* tied(const std::string& name, Splits splits) override;
  bool counts(const Parameter& parameter) const;
  bool pools_values() const { return !values_.defined() && !groups_.empty(); }
  bool pools_grads() const { return !grads_.defined() && !grads_of_.empty(); }
  friend class PartsInUse;
  friend class PartsAside;
  void withhold();
  void show();
  int group_at(std::int64_t begin) const;  // the group that this element is in
  at::Tensor within(const std::vector<at::Tensor>& by_group, std::int64_t begin,
                    std::int64_t numel) const;

  std::vector<std::unique_ptr<Layer>> layers_;
  std::deque<Parameter> parameters_;  // stable addresses: layers keep pointers
  std::unordered_map<std::string, Parameter*> by_name_;
  std::vector<Tie> ties_;
  std::vector<bool> kept_;  // by layer; empty: all
  std::shared_ptr<TensorGroup> group_;
  std::vector<FlatUnit> units_;
  std::vector<ShardGroup> groups_;
  at::Tensor values_, grads_, frozen_, sums_;
  bool fp32_sums_ = false;
  std::vector<bool> summed_;  // by unit: the sums have some of this step
  std::vector<at::Tensor> values_of_, grads_of_, sums_of_;  // by group
  std::vector<at::Tensor> attached_values_, attached_grads_,
      attached_sums_;  // by group: whose memory it uses

  // What use_whole put aside, by parameter, and with it which layers are kept and the group.
  struct Part {
    at::Tensor value;
    std::vector<std::int64_t> shape;
    Split split;
    std::shared_ptr<TensorGroup> group;
    bool here;
  };
  std::vector<Part> parts_;
  std::vector<bool> kept_of_parts_;
  std::shared_ptr<TensorGroup> group_of_parts_;
  int users_of_parts_ = 0;  // PartsInUse that live
  at::Device device_ = at::kCPU;
  at::ScalarType type_ = at::kFloat;
  Recompute recompute_ = Recompute::none;
};

// While one lives, the stack has this process's parts and layers show them, for a trainer to work
// with; afterwards a user finds what was there before: whole values (use_whole), or a refusal.
class PartsInUse {
 public:
  explicit PartsInUse(Stack& stack);
  ~PartsInUse();
  void forget_whole() { whole_.clear(); }  // the parts are about to change
  void use_whole(std::vector<at::Tensor> values) { whole_ = std::move(values); }  // from then on
  PartsInUse(const PartsInUse&) = delete;
  PartsInUse& operator=(const PartsInUse&) = delete;

 private:
  Stack& stack_;
  std::vector<at::Tensor> whole_;
};

// Within that: while one lives, a user finds what there is between a trainer's calls, and may make
// such calls. For observers of a step.
class PartsAside {
 public:
  explicit PartsAside(Stack& stack);
  ~PartsAside();
  PartsAside(const PartsAside&) = delete;
  PartsAside& operator=(const PartsAside&) = delete;

 private:
  Stack& stack_;
  int users_;
};

}  // namespace echelon
