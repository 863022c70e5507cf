// The ends of a rank's layers in a pipeline. Outputs go to the rank with the layer above, and
// inputs come from the rank with the layer below; gradients go the other way. All messages are
// asynchronous and overlap computation; a rank waits for a message when it uses it.
//
// A small message ahead of the first one of each tensor tells the receiver its sizes. Later steps
// have the same sizes until forget_sizes().
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/nn/layer.h"
#include "echelon/step/exchange.h"

namespace echelon {

// The owner of each layer of a pipeline.
struct Neighbours {
  std::shared_ptr<Communicator> ranks;
  std::vector<int> owner;  // by layer: its rank
};

class Boundary {
 public:
  Boundary(Neighbours neighbours, int micro_batches, at::Device device,
           std::shared_ptr<Exchange> exchange);  // collective

  // Sends the outputs of a layer to the owner of the next layer. Their gradients come back later:
  // those of floating-point tensors; the others are undefined.
  void send_outputs(int layer, int micro_batch, const Tensors& outputs);
  void receive_grads(int layer, int micro_batch);
  Tensors take_grads(int layer, int micro_batch);

  // Receives the inputs of a layer from the owner of the layer below. Their gradients go back
  // later.
  void receive_inputs(int layer, int micro_batch);
  Tensors take_inputs(int layer, int micro_batch);
  void send_grads(int layer, int micro_batch, const Tensors& grads);

  // Waits until everything sent has gone.
  void synchronize();
  // The output of the rank with the last layer, on every rank of the pipeline.
  at::Tensor from_last(const at::Tensor& output);
  // Sums the loss over the pipeline; every rank gets the sum.
  void share(at::Tensor loss);

  // Micro-batches have other sizes from now on, which are sent again.
  void forget_sizes();

 private:
  struct Shape {
    std::vector<std::int64_t> sizes;
    at::ScalarType type = at::kFloat;
    bool operator==(const Shape&) const = default;
    std::string text() const;
  };
  // Incoming messages: the tensors of one layer boundary and micro-batch, a message each. Their
  // shapes are known after the first time.
  struct Incoming {
    std::vector<Shape> shapes;
    Tensors tensors;  // while they are under way or have arrived
    std::vector<Work> works;
    bool told = false, begun = false;
  };
  struct Outgoing {
    at::Tensor tensor;
    Work work;
  };
  enum class Message { output, grad, sizes };

  std::size_t at(int layer, int micro_batch) const {
    return std::size_t(layer) * std::size_t(micro_batches_) + std::size_t(micro_batch);
  }
  std::uint64_t tag(int layer, int micro_batch, Message what, std::size_t tensor) const;
  std::size_t edge(int layer) const;
  Communicator& lane(const std::vector<std::shared_ptr<Communicator>>& lanes, int layer) const;
  void begin_inputs(int layer, int micro_batch);
  void begin_grads(int layer, int micro_batch);
  void begin(Communicator& ranks, Incoming& one, int from, Message what, int edge, int layer,
             int micro_batch);
  bool comes_early(const Incoming& one) const;
  static at::Tensor described(const at::Tensor& tensor, std::size_t tensors);
  static std::size_t read_shape(const at::Tensor& words, Shape& shape);
  void learn_shapes(Incoming& one, int from, int layer, int micro_batch);
  Tensors take(Incoming& one);
  void send(Communicator& ranks, const at::Tensor& tensor, int to, std::uint64_t tag, int layer,
            int micro_batch);

  Neighbours neighbours_;
  // By kind of edge between two ranks, for outputs and for gradients; see lane().
  std::vector<std::shared_ptr<Communicator>> outputs_, gradients_;
  int micro_batches_;
  at::Device device_;
  std::vector<Incoming> inputs_, grads_;  // by layer and micro-batch
  std::vector<bool> told_;                // likewise: the shapes of the outputs were sent
  std::vector<Outgoing> outgoing_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace echelon
