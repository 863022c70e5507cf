// The ends of a rank's layers in a pipeline: outputs go to the rank that has the layer above and
// come from the one below, gradients the other way. Everything is begun and runs beside the
// computation; what is needed is waited for when it is used.
//
// A receiver learns the sizes of what comes once, from a small message ahead of the first; later
// steps have the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "echelon/comm/communicator.h"
#include "echelon/step/exchange.h"

namespace echelon {

// Who has which layer of a pipeline.
struct Neighbours {
  std::shared_ptr<Communicator> ranks;
  std::vector<int> owner;  // by layer: its rank
};

class Boundary {
 public:
  Boundary(Neighbours neighbours, int micro_batches, at::Device device,
           std::shared_ptr<Exchange> exchange);  // collective

  // The output of a layer, to the owner of the next; later the gradient for it comes back.
  void send_output(int layer, int micro_batch, const at::Tensor& output);
  void receive_grad(int layer, int micro_batch);
  at::Tensor take_grad(int layer, int micro_batch);

  // The input of a layer, from the owner of the one before; later the gradient for it goes back.
  void receive_input(int layer, int micro_batch);
  at::Tensor take_input(int layer, int micro_batch);
  void send_grad(int layer, int micro_batch, const at::Tensor& grad);

  // Until everything sent has gone.
  void synchronize();
  // What the rank with the last layer gives, on every rank of the pipeline.
  at::Tensor from_last(const at::Tensor& output);
  // The same sum on every rank of the pipeline.
  void share(at::Tensor loss);

  // Micro-batches have other sizes from now on: they are told again.
  void forget_sizes();

 private:
  // A message that comes: its sizes are known from the first on.
  struct Incoming {
    at::Tensor tensor;  // while it is on its way, or has come
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
