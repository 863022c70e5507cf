// The ends of a rank's layers in a pipeline. Outputs go to the rank with the layer above, and
// inputs come from the rank with the layer below; gradients go the other way. All messages are
// asynchronous and overlap computation; a rank waits for a message when it uses it.
//
// A small message ahead of the first one tells the receiver its sizes. Later steps have the same
// sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "echelon/comm/communicator.h"
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

  // Sends the output of a layer to the owner of the next layer. Its gradient comes back later.
  void send_output(int layer, int micro_batch, const at::Tensor& output);
  void receive_grad(int layer, int micro_batch);
  at::Tensor take_grad(int layer, int micro_batch);

  // Receives the input of a layer from the owner of the layer below. Its gradient goes back later.
  void receive_input(int layer, int micro_batch);
  at::Tensor take_input(int layer, int micro_batch);
  void send_grad(int layer, int micro_batch, const at::Tensor& grad);

  // Waits until everything sent has gone.
  void synchronize();
  // The output of the rank with the last layer, on every rank of the pipeline.
  at::Tensor from_last(const at::Tensor& output);
  // Sums the loss over the pipeline; every rank gets the sum.
  void share(at::Tensor loss);

  // Micro-batches have other sizes from now on, which are sent again.
  void forget_sizes();

 private:
  // An incoming message. Its sizes are known after the first one.
  struct Incoming {
    at::Tensor tensor;  // while it is under way or has arrived
    Work work;
    std::vector<std::int64_t> sizes;
    at::ScalarType type = at::kFloat;
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
  std::uint64_t tag(int layer, int micro_batch, Message what) const {
    return std::uint64_t(at(layer, micro_batch)) * 3 + std::uint64_t(what);
  }
  std::size_t edge(int layer) const;
  Communicator& lane(const std::vector<std::shared_ptr<Communicator>>& lanes, int layer) const;
  void begin(Communicator& ranks, Incoming& one, int from, std::uint64_t tag, int layer,
             int micro_batch);
  bool comes_early(const Incoming& one) const;
  static void read_sizes(const at::Tensor& words, Incoming& one);
  at::Tensor take(Incoming& one);
  void send(Communicator& ranks, const at::Tensor& tensor, int to, std::uint64_t tag, int layer,
            int micro_batch);

  Neighbours neighbours_;
  // By kind of edge between two ranks, for outputs and for gradients; see lane().
  std::vector<std::shared_ptr<Communicator>> outputs_, gradients_;
  int micro_batches_;
  at::Device device_;
  std::vector<Incoming> inputs_, grads_;  // by layer and micro-batch
  std::vector<bool> told_;                // likewise: the sizes of the output were sent
  std::vector<Outgoing> outgoing_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace echelon
