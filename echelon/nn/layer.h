// A layer: a piece of a model with a forward and a backward of its own, cut from its neighbours at
// the boundaries. The executor hands it an input and keeps the Pass until it asks for the backward.
//
// Two ways to have one:
//   - wrap any torch::nn::Module (module_layer.h): autograd does the backward;
//   - derive from Layer and write both: gradients of matrices then go straight into the gradient
//   buffer
//     (GEMM with beta), nothing is kept but what `forward` puts into `pass.saved`, and the layer
//     can be part of a captured GPU graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "echelon/nn/parameter.h"

namespace echelon {

// One micro-batch on its way through one layer.
struct Pass {
  // How often a forward runs before its backward.
  enum class Run {
    once,
    first,  // it will run again: keep nothing but what makes the second time like the first
    again,  // the second time: keep what backward needs; nobody reads the output, which may be
            // undefined
  };

  // What the random numbers of a pass are functions of, beside their place in the model.
  struct Draw {
    std::uint64_t seed = 0;
    at::Tensor step;                // a whole number on the device, where a recorded graph reads it
    std::int64_t first_sample = 0;  // of this micro-batch, within the global batch of the step
  };

  std::vector<at::Tensor> saved;  // what forward keeps for backward
  at::Tensor
      target;  // last layer only: what the loss compares with; undefined: give the output instead
  double weight = 1;     // this micro-batch's share of the global mean; scales the gradients
  at::Tensor scale;      // last layer only: scales them too, a float on the device; undefined: 1
  bool training = true;  // false: no backward will follow, keep nothing
  Run run = Run::once;
  bool selective = false;  // keep what is dear to compute again, and drop the rest
  // backward gives the gradient of the input first and leaves those of parameters that are dear,
  // which nobody waits for, to be run afterwards.
  bool defer_weight_grads = false;
  std::vector<std::function<void()>> later;  // what it left
  template <class Fn>
  void run_or_defer(Fn gradients) {
    if (defer_weight_grads)
      later.push_back(std::move(gradients));
    else
      gradients();
  }
  Draw draw;

  // The whole micro-batch. Where ranks split its rows (samples x tokens), a layer has those of this
  // rank alone, from first_row on: see Layer::takes_rows.
  std::int64_t samples = 0, tokens = 0, first_row = 0;
  bool rows_are_split = false;

  struct Extent {
    std::int64_t samples, tokens;
  };
  // Of the whole micro-batch, given a layer's input.
  Extent extent(const at::Tensor& x) const {
    return rows_are_split ? Extent{samples, tokens} : Extent{x.size(0), x.size(1)};
  }

  bool keeps() const { return training && run != Run::first; }
};

// Where a layer says which parameters it has.
class Declaration {
 public:
  virtual Parameter* parameter(std::string name, std::vector<std::int64_t> shape, Init init,
                               bool decay, bool trainable = true, Splits splits = Splits::no) = 0;

  // A second use of a parameter that an earlier layer declared (tied embeddings). In one process
  // both uses share one value and one gradient buffer. The Stack keeps the list of ties, so that a
  // pipeline which puts the two layers on different stages can give each a copy and sum the two
  // gradients. It can be split where all its uses can.
  virtual Parameter* tied(const std::string& name, Splits splits = Splits::no) = 0;

 protected:
  ~Declaration() = default;
};

class Layer {
 public:
  virtual ~Layer() = default;

  // What errors call it, beside its number; empty: by what its parameters' names have in common.
  virtual std::string name() const { return {}; }

  virtual void declare(Declaration& /*declaration*/) {}

  // Called once the parameters have memory, before the first forward; of a layer that another rank
  // has they have none (Parameter::here), and what it holds of them is to be let go. Buffers become
  // what they are on every rank.
  virtual void bind(at::Device /*device*/, at::ScalarType /*type*/) {}

  // Called after the trainer's calls where gradients, and perhaps values, have memory only while
  // they run (ZeRO 2 and 3). A user can reach a wrapped module's tensors in between: until show()
  // gradients must be undefined, and values that are gone throw InvalidArgument.
  virtual void withhold(bool /*values*/) {}
  // The parameters' values are usable again, or others than before (Stack::use_whole).
  virtual void show() {}

  // The last layer of a Stack is the loss: it compares its input with pass.target and gives the
  // mean over the samples as a scalar; without a target it gives the model's output.
  virtual at::Tensor forward(const at::Tensor& input, Pass& pass) = 0;

  // The gradient for the input, given that for the output (undefined for the loss, whose gradient
  // is pass.weight times pass.scale, before anything is rounded to fp16). Gradients of parameters
  // are added to their buffers, or (pass.defer_weight_grads) those of matrices put off to
  // pass.later. Undefined where the input has none.
  virtual at::Tensor backward(const at::Tensor& grad_output, Pass& pass) = 0;

  // Whether forward keeps more for backward than its input: only then does it pay to run it again.
  virtual bool keeps_more_than_input() const { return true; }

  // Whether all of this class whose parameters have the same shapes take the same time: pipelines
  // then measure them as one.
  virtual bool shapes_tell_cost() const { return false; }

  // Whether a GPU graph may record it: no host synchronisation, no shapes that depend on values.
  virtual bool capturable() const { return false; }

  // Whether it can have some rows of a micro-batch, [rows, width] in and out, in place of [samples,
  // tokens, width] (the first layer: in place of what it makes of the input; the loss's target is
  // whole). The pieces it is made of bring rows together where they need all. What it does by
  // itself must be alike for every row, and gradients of parameters that no piece declared be
  // summed over the rows of all ranks (Parameter::group).
  virtual bool takes_rows() const { return false; }

  // State that is no parameter but belongs to the model (running statistics): saved and restored by
  // name.
  virtual std::vector<std::pair<std::string, at::Tensor>> buffers() const { return {}; }
};

}  // namespace echelon
