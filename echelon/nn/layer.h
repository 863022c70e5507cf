// A layer: a part of a model with its own forward and backward, cut from its neighbours at its
// input and output. The executor passes it an input and keeps the Pass until it calls backward.
// Most layers have one input and one output; several tensors can pass between layers as well
// (forward_all). What all layers need and none changes, such as a mask, is in Pass::batch instead.
//
// There are two ways to get a layer:
//   - wrap any torch::nn::Module (module_layer.h): autograd does the backward;
//   - derive from Layer and write both. Gradients of matrices then go straight into the gradient
//     buffer (GEMM with beta), nothing is kept except what `forward` puts into `pass.saved`, and
//     the layer can be part of a captured GPU graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "echelon/data/batch.h"
#include "echelon/nn/parameter.h"

namespace echelon {

class BatchRanks;
struct LowRank;

using Tensors = std::vector<at::Tensor>;

// One micro-batch on its way through one layer.
struct Pass {
  // How often a forward runs before its backward.
  enum class Run {
    once,
    first,  // it will run again: keep only what makes the second run equal the first
    again,  // the second run: keep what backward needs; the output is unused, may be undefined
    only,   // no backward follows, since neither this layer nor a lower one trains: keep nothing
  };

  // Together with their place in the model, these determine the random numbers of a pass.
  struct Draw {
    std::uint64_t seed = 0;
    at::Tensor step;                // an integer on the device, where a captured graph reads it
    std::int64_t first_sample = 0;  // of this micro-batch, within the global batch of the step
  };

  std::vector<at::Tensor> saved;  // what forward keeps for backward
  // The tensors of this micro-batch by name, whole on every rank; nullptr if there are none.
  std::shared_ptr<const Batch> batch;
  at::Tensor
      target;  // last layer only: the loss's target; undefined: return the model's output instead
  double weight = 1;  // this micro-batch's fraction of the global mean; scales the gradients
  // Last layer only, if samples have different numbers of targets (Batch::targets): the number of
  // targets in the global batch, a double on the device. The loss is then the sum over the targets
  // divided by it, and the weight is 1.
  at::Tensor divisor;
  // Last layer only, in evaluation: if set, the layer calls it with the logits of some rows at a
  // time and their targets (-100: none), for metrics. An evaluation with metrics refuses a layer
  // that never calls it. Ranks that split the layer all set it, or none of them.
  std::function<void(const at::Tensor& logits, const at::Tensor& target)> observe;
  at::Tensor scale;      // last layer only: also scales them, a float on the device; undefined: 1
  bool training = true;  // false: no backward will follow, keep nothing
  Run run = Run::once;
  bool selective = false;  // keep what is expensive to recompute and drop the rest
  // backward returns the gradient of the input first. It defers the expensive parameter gradients,
  // which nobody waits for, to `later`.
  bool defer_weight_grads = false;
  std::vector<std::function<void()>> later;  // the deferred gradients
  template <class Fn>
  void run_or_defer(Fn gradients) {
    if (defer_weight_grads)
      later.push_back(std::move(gradients));
    else
      gradients();
  }
  Draw draw;

  // The size of the whole micro-batch. If ranks split its rows (samples x tokens), a layer sees
  // only this rank's rows, from first_row on: see Layer::takes_rows.
  std::int64_t samples = 0, tokens = 0, first_row = 0;
  bool rows_are_split = false;

  struct Extent {
    std::int64_t samples, tokens;
  };
  // The extent of the whole micro-batch, given a layer's input.
  Extent extent(const at::Tensor& x) const {
    return rows_are_split ? Extent{samples, tokens} : Extent{x.size(0), x.size(1)};
  }

  // Whether a layer below has trainable parameters. If not, backward may leave the gradients of its
  // inputs undefined.
  bool input_grads = true;

  bool keeps() const { return training && (run == Run::once || run == Run::again); }
};

// A layer declares its parameters through this interface.
class Declaration {
 public:
  virtual Parameter* parameter(std::string name, std::vector<std::int64_t> shape, Init init,
                               bool decay, bool trainable = true, Splits splits = Splits::no) = 0;

  // A second use of a parameter that an earlier layer declared (tied embeddings). In one process
  // both uses share one value and one gradient buffer. The Stack keeps the list of ties, so a
  // pipeline that puts the two layers on different stages can give each a copy and sum the two
  // gradients. The parameter can be split if all its uses support the split.
  virtual Parameter* tied(const std::string& name, Splits splits = Splits::no) = 0;

  // The low-rank adaptation of the product of this name; null: it has none (low_rank.h).
  virtual const LowRank* low_rank(const std::string& /*product*/) const { return nullptr; }

 protected:
  ~Declaration() = default;
};

class Layer {
 public:
  virtual ~Layer() = default;

  // The name in error messages, beside the layer's number. If empty, messages use the common prefix
  // of its parameters' names.
  virtual std::string name() const { return {}; }

  virtual void declare(Declaration& /*declaration*/) {}

  // Called once, after parameters are allocated and before the first forward. If another rank owns
  // this layer, its parameters are not allocated (`Parameter::here` is false): drop any references
  // to them. Move the buffers to this device and type on every rank, whoever owns the layer.
  virtual void bind(at::Device /*device*/, at::ScalarType /*type*/) {}

  // Called after each layout, for layers whose output depends on the other samples of the batch:
  // the ranks that have those samples. Null: this rank has the whole batch. Keep a weak pointer:
  // the trainer owns the ranks, and a module may outlive it.
  virtual void share_batch(const std::shared_ptr<BatchRanks>& /*ranks*/) {}

  // Called after each trainer call if gradients, and perhaps values, have memory only during the
  // call (ZeRO 2 and 3). A user can reach a wrapped module's tensors between calls. Until show(),
  // gradients must be undefined, and using values that are gone must throw InvalidArgument.
  virtual void withhold(bool /*values*/) {}
  // The parameters' values are usable again, or have been replaced (Stack::use_whole).
  virtual void show() {}

  // The last layer of a Stack is the loss: it compares its input with pass.target and returns the
  // mean over the samples as a scalar. Without a target it returns the model's output.
  virtual at::Tensor forward(const at::Tensor& input, Pass& pass);

  // Returns the gradient of the input, given the gradient of the output; undefined if the input has
  // no gradient. The loss gets an undefined gradient and uses pass.weight times pass.scale, before
  // anything is rounded to fp16. Adds gradients of trainable parameters to their buffers, or defers
  // those of matrices to pass.later (pass.defer_weight_grads). A parameter that its layer declared
  // trainable may be frozen by an option (train.freeze): its gradient is then undefined.
  virtual at::Tensor backward(const at::Tensor& grad_output, Pass& pass);

  // The same for a layer with several inputs or outputs, which overrides these instead. Between
  // layers, tensors are told apart by their position. Gradients have the positions of their
  // tensors, and are undefined for tensors that are not floating-point. The executor calls only
  // these. A layer with one input refuses several.
  virtual Tensors forward_all(const Tensors& inputs, Pass& pass);
  virtual Tensors backward_all(const Tensors& grad_outputs, Pass& pass);

  // Whether forward keeps more than its input for backward. Recomputing pays only then.
  virtual bool keeps_more_than_input() const { return true; }

  // Whether layers of this class whose parameters have the same shapes take the same time.
  // Pipelines then measure only one of them.
  virtual bool shapes_tell_cost() const { return false; }

  // Whether a GPU graph may capture it: no host synchronisation, no shapes that depend on values.
  virtual bool capturable() const { return false; }

  // Whether the layer can work on some rows of a micro-batch, [rows, width] in and out, instead of
  // [samples, tokens, width]. For the first layer this concerns only its output; the target of the
  // loss is always whole. The building blocks of a layer gather rows if they need all of them. The
  // layer's own operations must treat every row alike, and it must sum gradients of parameters that
  // no building block declared over the rows of all ranks (Parameter::group).
  virtual bool takes_rows() const { return false; }

  // State of the model that is not a parameter (running statistics): saved and restored by name.
  virtual std::vector<std::pair<std::string, at::Tensor>> buffers() const { return {}; }
};

}  // namespace echelon
