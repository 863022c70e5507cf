// A Stack: an ordered list of layers, the last of which is the loss. Adding a layer only describes
// it. `allocate` gives all parameters memory in flat units. Values come from a ValueSource, one
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

struct LowRankPlan;

// Fills `out` (any device, any floating type, the parameter's shape) with a parameter's values.
using ValueSource = std::function<void(const Parameter& parameter, at::Tensor out)>;

// Turns a source of whole parameters into a source of the parts that this process holds. One whole
// parameter is in memory at a time.
ValueSource parts_of(ValueSource wholes);

// Initial values by each parameter's Init; random.h says why every layout gets the same values.
ValueSource random_values(std::uint64_t seed);

// fp32_sums: in bf16 and fp16 models, each micro-batch's gradients are accumulated in fp32.
enum class Gradients { no, yes, fp32_sums };

class Stack : private Declaration {
 public:
  Stack() = default;
  // Products that the plan names get low-rank adaptations as their layers are added; only those and
  // what the plan also trains are trainable. Null: none.
  explicit Stack(std::shared_ptr<const LowRankPlan> plan) : low_rank_(std::move(plan)) {}
  Stack(Stack&&) = default;
  ~Stack();

  struct Tie {
    std::string name;
    int owner;  // layer that declared it
    int user;   // layer that uses it again
  };

  Stack& add(std::unique_ptr<Layer> layer);

  // The tensors of a batch that the first layer gets, in this order; by default its "input".
  Stack& reads(std::vector<std::string> names);
  Tensors inputs_of(const Batch& batch) const;  // throws InvalidArgument if one is missing

  int size() const { return static_cast<int>(layers_.size()); }
  Layer& layer(int i) { return *layers_[static_cast<std::size_t>(i)]; }

  // Keeps only the layers marked true in this process; the others get no memory and are not run. If
  // a kept layer ties to a parameter of a layer that is not kept, this process gets a copy, and the
  // tying layer owns the copy. Takes effect at the next lay_out and drops any previous allocation.
  void keep(const std::vector<bool>& layers);
  bool has(int layer) const { return kept_.empty() || kept_[std::size_t(layer)]; }
  // Parameters of this process that layers on other ranks use too.
  std::vector<const Parameter*> tied_across() const;
  int declared_in(const Parameter& parameter) const;  // the layer that declared it, on any rank

  // Tensor parallelism: the named parameters become parts, and the building blocks exchange what
  // they need with the group. Takes effect at the next lay_out; split_plan.h makes and checks the
  // splits.
  void split(const std::map<std::string, Split>& splits, std::shared_ptr<TensorGroup> group);
  const std::shared_ptr<TensorGroup>& tensor_group() const { return group_; }  // null: not split

  // Data parallelism: tells the layers of this process which ranks have the other parts of the
  // batch. Null, or destroyed since: none has. forget_layout undoes it.
  void share_batch(const std::shared_ptr<BatchRanks>& ranks);
  std::shared_ptr<BatchRanks> batch_ranks() const { return batch_ranks_.lock(); }

  Stack& recompute(Recompute what);
  Recompute recompute() const { return recompute_; }
  // By layer, whether it runs forward again before its backward. False for the loss, whose backward
  // follows immediately, and for layers that keep only their input.
  std::vector<bool> runs_again() const;

  // Every parameter once, in the order of declaration; ties() lists the second uses.
  const std::deque<Parameter>& parameters() const { return parameters_; }
  Parameter* find(const std::string& name);
  const Parameter* find(const std::string& name) const {
    return const_cast<Stack*>(this)->find(name);
  }
  const std::vector<Tie>& ties() const { return ties_; }
  // The lowest layer with a trainable parameter, on any rank. The layers below it need no backward.
  int lowest_trainable() const;
  const LowRank* low_rank(const std::string& product) const override;
  std::int64_t parameter_count() const;  // elements of the whole model

  // Returns memory for this many elements, filled with zeros.
  using Memory = std::function<at::Tensor(std::int64_t numel, at::ScalarType type)>;

  // How parameters lie in memory when several ranks share them.
  struct Allocation {
    // A communicator's memory, so that it works in place; empty: ordinary memory. If the stack has
    // fp32 sums, `gradients` provides memory for the sums, not for each backward's gradients.
    Memory values, gradients;
    int shards = 1;                   // number of owners: group sizes are multiples of it
    std::int64_t smallest = 1 << 16;  // minimum group size, in elements
    // Owners keep slices of a group's values, or gradients. The whole group has no memory of its
    // own and uses pooled memory that is attached to it. The fp32 sums of such gradients use
    // attached memory as well.
    bool sliced_values = false, sliced_gradients = false;
  };
  // Gives every parameter its place but no memory; units() and groups() are valid afterwards.
  void lay_out(const Allocation& allocation);
  // Lays out and allocates memory.
  void allocate(at::Device device, at::ScalarType type, Gradients gradients,
                const Allocation& allocation);
  void allocate(at::Device device, at::ScalarType type, Gradients gradients) {
    allocate(device, type, gradients, Allocation());
  }
  void load(const ValueSource& source);
  // Undoes keep, split, share_batch and allocate: the stack is again only a description of the
  // added layers.
  void forget_layout();

  // Replaces the parts by whole values of every parameter, in the order of parameters(). Until
  // use_parts(), all layers are in this process and compute with these values, and infer() needs no
  // other rank. Units, groups and gradients still describe the parts, so do not train in between.
  void use_whole(std::vector<at::Tensor> values);
  void use_parts();
  bool uses_whole() const { return !parts_.empty(); }
  // Whether this process now has the values of all layers, whole or as its part in a tensor group.
  bool has_values() const;

  // The name of a layer in error messages: "layer 2 (transformer.h.1)".
  std::string name_of(int layer) const;

  // Valid after lay_out. The buffers hold all trainable units, one after another; a unit is the
  // range [begin, begin + numel). The buffers are undefined if groups use attached memory.
  const std::vector<FlatUnit>& units() const { return units_; }
  // The groups of trainable units, and those that a layer computes with, tied parameters included.
  const std::vector<ShardGroup>& groups() const { return groups_; }
  std::vector<int> groups_of(int layer) const;
  int group_of(const Parameter& parameter) const;  // only if trainable and here

  // One group as one tensor. If groups use pooled memory, attach_… makes the group use `memory` (of
  // its size, on the device) from now on, without a copy, under all existing views. detach_…
  // returns that memory; after it the group must not be touched.
  at::Tensor group_values(int group) const { return values_of_[std::size_t(group)]; }
  at::Tensor group_grads(int group) const { return grads_of_[std::size_t(group)]; }
  void attach_values(int group, const at::Tensor& memory);
  void attach_grads(int group, const at::Tensor& memory);
  void attach_sums(int group, const at::Tensor& memory);
  at::Tensor detach_values(int group);
  at::Tensor detach_grads(int group);
  at::Tensor detach_sums(int group);
  // The next backward overwrites the gradients of this group. Sets their padding to zero.
  void forget_grads(int group);

  const at::Tensor& values() const { return values_; }
  const at::Tensor& grads() const { return grads_; }

  // What ranks reduce and the update reads: the gradients, which backward accumulates itself, or
  // their fp32 sums over micro-batches.
  const at::Tensor& sums() const { return fp32_sums_ ? sums_ : grads_; }
  at::Tensor group_sums(int group) const {
    return (fp32_sums_ ? sums_of_ : grads_of_)[std::size_t(group)];
  }
  at::Tensor sum_of(const Parameter& parameter) const;  // flat; only if trainable and here
  bool has_fp32_sums() const { return fp32_sums_; }
  bool has_attached_sums(int group) const { return attached_sums_[std::size_t(group)].defined(); }
  // Adds the gradients in [begin, end) of the gradient buffer to their fp32 sums; the range begins
  // and ends at unit boundaries. The next backward overwrites the gradients. They must come from a
  // single micro-batch, because backward accumulates in the model's own type and would round.
  void add_to_sums(std::int64_t begin, std::int64_t end);

  at::Device device() const { return device_; }
  at::ScalarType type() const { return type_; }

  // Forgets which gradients were written; the next backward overwrites them.
  void begin_step();
  // Sets gradients in [begin, end) of the gradient buffer to zero if no backward has written them.
  void zero_unwritten_grads(std::int64_t begin, std::int64_t end);

  std::vector<std::pair<std::string, at::Tensor>> buffers() const;
  bool capturable() const;

  // A Pass for a layer and a micro-batch; the last layer also gets the target. Throws
  // InvalidArgument if rows are split and do not divide evenly.
  Pass pass_for(int layer, std::shared_ptr<const Batch> micro_batch) const;

  // Forward only, nothing is kept: returns the model's output, or its mean loss if the batch has a
  // target. Throws InvalidArgument if this process lacks the values of some layers; Trainer::infer
  // does the same collectively. `observe` (Pass::observe) gets the last layer's outputs.
  at::Tensor infer(
      const Batch& batch,
      const std::function<void(const at::Tensor& output, const at::Tensor& target)>& observe = {});
  at::Tensor infer(const at::Tensor& input, const at::Tensor& target = {}) {
    return infer(Batch{input, target});
  }

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
  int group_at(std::int64_t begin) const;  // the group that contains this element
  at::Tensor within(const std::vector<at::Tensor>& by_group, std::int64_t begin,
                    std::int64_t numel) const;

  std::shared_ptr<const LowRankPlan> low_rank_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<std::string> reads_ = {"input"};
  std::deque<Parameter> parameters_;  // stable addresses: layers keep pointers
  std::unordered_map<std::string, Parameter*> by_name_;
  std::vector<Tie> ties_;
  std::vector<bool> kept_;  // by layer; empty: all
  std::shared_ptr<TensorGroup> group_;
  std::weak_ptr<BatchRanks> batch_ranks_;
  std::vector<FlatUnit> units_;
  std::vector<ShardGroup> groups_;
  at::Tensor values_, grads_, frozen_, sums_;
  bool fp32_sums_ = false;
  std::vector<bool> summed_;  // by unit: the sums already hold gradients of this step
  std::vector<at::Tensor> values_of_, grads_of_, sums_of_;  // by group
  std::vector<at::Tensor> attached_values_, attached_grads_,
      attached_sums_;  // by group: the memory it uses

  // What use_whole set aside: the parts by parameter, the kept layers and the tensor group.
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
  int users_of_parts_ = 0;  // number of living PartsInUse
  at::Device device_ = at::kCPU;
  at::ScalarType type_ = at::kFloat;
  Recompute recompute_ = Recompute::none;
};

// The tensor that the last layer gave; throws InvalidArgument if it gave several.
at::Tensor only_output(Tensors outputs);

// While one lives, the stack has this process's parts, and layers show them, for a trainer to work
// with. Afterwards a user finds the previous state: whole values (use_whole) or a refusal.
class PartsInUse {
 public:
  explicit PartsInUse(Stack& stack);
  ~PartsInUse();
  void forget_whole() { whole_.clear(); }  // the parts are about to change
  void use_whole(std::vector<at::Tensor> values) { whole_ = std::move(values); }  // afterwards
  PartsInUse(const PartsInUse&) = delete;
  PartsInUse& operator=(const PartsInUse&) = delete;

 private:
  Stack& stack_;
  std::vector<at::Tensor> whole_;
};

// Nested inside PartsInUse: while one lives, a user finds the state between two trainer calls and
// may make such calls. For observers of a step.
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
