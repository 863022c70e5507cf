#include "echelon/step/boundary.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/nn/memory.h"

namespace echelon {
namespace {

constexpr std::size_t edges = 3;  // kinds of edges

// The description sent before a tensor's first message: its dimensions, type and sizes.
constexpr std::int64_t most_dimensions = 8;

at::Tensor described(const at::Tensor& tensor) {
  if (tensor.dim() > most_dimensions)
    throw InvalidArgument(
        fmt::format("a layer gave {} dimensions; between ranks of a pipeline there are {} at most",
                    tensor.dim(), most_dimensions));
  at::Tensor words = at::empty({2 + most_dimensions}, at::kLong).zero_();
  auto* const word = words.data_ptr<std::int64_t>();
  word[0] = tensor.dim();
  word[1] = static_cast<std::int64_t>(tensor.scalar_type());
  for (std::int64_t d = 0; d < tensor.dim(); ++d) word[2 + d] = tensor.size(d);
  return words;
}

}  // namespace

Boundary::Boundary(Neighbours neighbours, int micro_batches, at::Device device,
                   std::shared_ptr<Exchange> exchange)
    : neighbours_(std::move(neighbours)),
      outputs_(edges, neighbours_.ranks),
      gradients_(edges, neighbours_.ranks),
      micro_batches_(micro_batches),
      device_(device),
      inputs_(neighbours_.owner.size() * std::size_t(micro_batches)),
      grads_(inputs_.size()),
      told_(inputs_.size(), false),
      exchange_(std::move(exchange)) {
  if (!neighbours_.ranks->device().is_cuda()) return;
  std::vector<bool> used(edges, false);
  for (std::size_t l = 0; l + 1 < neighbours_.owner.size(); ++l)
    if (neighbours_.owner[l] != neighbours_.owner[l + 1]) used[edge(int(l))] = true;
  for (auto* lanes : {&outputs_, &gradients_})
    for (std::size_t e = 0; e < edges; ++e)
      if (used[e]) (*lanes)[e] = neighbours_.ranks->split(0, neighbours_.ranks->rank());
}

// GPU backends have no tags, and a message blocks the ones behind it. So sends and receives of a
// rank use separate communicators, and so do outputs and gradients. Each communicator then carries
// messages of one direction, in the order in which both ends run them. Edges from even ranks and
// from odd ranks are two kinds; the edge that closes a ring is the third.
std::size_t Boundary::edge(int layer) const {
  const int from = neighbours_.owner[std::size_t(layer)],
            to = neighbours_.owner[std::size_t(layer) + 1];
  return to < from ? 2 : std::size_t(from % 2);
}

Communicator& Boundary::lane(const std::vector<std::shared_ptr<Communicator>>& lanes,
                             int layer) const {
  return *lanes[edge(layer)];
}

void Boundary::send(Communicator& ranks, const at::Tensor& tensor, int to, std::uint64_t tag,
                    int layer, int micro_batch) {
  outgoing_.push_back(
      {tensor, exchange_->send(
                   ranks, tensor, to, tag,
                   {.purpose = Purpose::activations, .part = layer, .micro_batch = micro_batch})});
  // On a GPU, calling done() is what puts the send on the stream.
  std::erase_if(outgoing_, [](const Outgoing& one) { return one.work.done(); });
}

void Boundary::send_output(int layer, int micro_batch, const at::Tensor& output) {
  const int to = neighbours_.owner[std::size_t(layer) + 1];
  const at::Tensor whole = output.contiguous();
  if (!told_[at(layer, micro_batch)]) {
    const at::Tensor sizes = described(whole).to(neighbours_.ranks->device());
    outgoing_.push_back(
        {sizes, lane(outputs_, layer)
                    .send(sizes, to, tag(layer, micro_batch, Message::sizes), {.tag = "setup"})});
    told_[at(layer, micro_batch)] = true;
    Incoming& back = grads_[at(layer, micro_batch)];
    back.sizes = whole.sizes().vec();
    back.type = whole.scalar_type();
    back.told = true;
  }
  const Incoming& told = grads_[at(layer, micro_batch)];
  if (whole.sizes() != told.sizes || whole.scalar_type() != told.type)
    throw InvalidArgument(fmt::format(
        "layer {} gave [{}] for micro-batch {} and [{}] in the step before: the ranks of a pipeline "
        "expect samples of the same sizes in every step",
        layer, fmt::join(whole.sizes(), ", "), micro_batch, fmt::join(told.sizes, ", ")));
  send(lane(outputs_, layer), whole, to, tag(layer, micro_batch, Message::output), layer,
       micro_batch);
}

void Boundary::send_grad(int layer, int micro_batch, const at::Tensor& grad) {
  if (!grad.defined())
    throw InvalidArgument(fmt::format(
        "layer {} gives no gradient for its input, and the rank below it in the pipeline needs one",
        layer));
  send(lane(gradients_, layer - 1), grad.contiguous(), neighbours_.owner[std::size_t(layer) - 1],
       tag(layer - 1, micro_batch, Message::grad), layer, micro_batch);
}

void Boundary::begin(Communicator& ranks, Incoming& one, int from, std::uint64_t tag, int layer,
                     int micro_batch) {
  const MemoryScope scope(MemoryKind::activations);
  one.tensor = at::empty(one.sizes, at::TensorOptions(device_).dtype(one.type));
  one.work = exchange_->receive(
      ranks, one.tensor, from, tag,
      {.purpose = Purpose::activations, .part = layer, .micro_batch = micro_batch});
  one.begun = true;
}

// The size must be known before a receive can be posted. take_input asks for it; a gradient's size
// is known once the output is sent. On a GPU a receive is posted only when it is taken: a kernel
// that waits for a message can block the host's next allocation, and the message may depend on what
// this rank sends after that. The host runs ahead of the GPU anyway.
bool Boundary::comes_early(const Incoming& one) const { return one.told && device_.is_cpu(); }

void Boundary::receive_input(int layer, int micro_batch) {
  Incoming& one = inputs_[at(layer, micro_batch)];
  if (comes_early(one))
    begin(lane(outputs_, layer - 1), one, neighbours_.owner[std::size_t(layer) - 1],
          tag(layer - 1, micro_batch, Message::output), layer, micro_batch);
}

void Boundary::receive_grad(int layer, int micro_batch) {
  Incoming& one = grads_[at(layer, micro_batch)];
  if (comes_early(one))
    begin(lane(gradients_, layer), one, neighbours_.owner[std::size_t(layer) + 1],
          tag(layer, micro_batch, Message::grad), layer, micro_batch);
}

at::Tensor Boundary::take(Incoming& one) {
  exchange_->wait(one.work, device_);
  one.work = {};
  one.begun = false;
  return std::exchange(one.tensor, {});
}

void Boundary::read_sizes(const at::Tensor& words, Incoming& one) {
  const at::Tensor here = words.to(at::kCPU);
  const auto* const word = here.const_data_ptr<std::int64_t>();
  if (word[0] < 0 || word[0] > most_dimensions || word[1] < 0 ||
      word[1] >= static_cast<std::int64_t>(at::ScalarType::NumOptions))
    throw Error(
        fmt::format("a rank of the pipeline announced a tensor of {} dimensions and type {}",
                    word[0], word[1]));
  one.sizes.assign(word + 2, word + 2 + word[0]);
  one.type = static_cast<at::ScalarType>(word[1]);
  one.told = true;
}

at::Tensor Boundary::take_input(int layer, int micro_batch) {
  Incoming& one = inputs_[at(layer, micro_batch)];
  const int from = neighbours_.owner[std::size_t(layer) - 1];
  if (!one.told) {
    at::Tensor words = at::empty({2 + most_dimensions},
                                 at::TensorOptions(neighbours_.ranks->device()).dtype(at::kLong));
    lane(outputs_, layer - 1)
        .receive(words, from, tag(layer - 1, micro_batch, Message::sizes), {.tag = "setup"})
        .wait();
    read_sizes(words, one);
  }
  if (!one.begun)
    begin(lane(outputs_, layer - 1), one, from, tag(layer - 1, micro_batch, Message::output), layer,
          micro_batch);
  return take(one);
}

at::Tensor Boundary::take_grad(int layer, int micro_batch) {
  Incoming& one = grads_[at(layer, micro_batch)];
  if (!one.begun)
    begin(lane(gradients_, layer), one, neighbours_.owner[std::size_t(layer) + 1],
          tag(layer, micro_batch, Message::grad), layer, micro_batch);
  return take(one);
}

void Boundary::synchronize() {
  for (const Outgoing& one : outgoing_) exchange_->wait(one.work, device_);
  outgoing_.clear();
}

void Boundary::share(at::Tensor loss) {
  exchange_->wait(
      exchange_->sum(*neighbours_.ranks, loss, {.purpose = Purpose::loss, .blocking = true}),
      device_);
}

at::Tensor Boundary::from_last(const at::Tensor& output) {
  Communicator& ranks = *neighbours_.ranks;
  const int last = neighbours_.owner.back();
  const bool here = ranks.rank() == last;
  at::Tensor words = here ? described(output) : at::empty({2 + most_dimensions}, at::kLong);
  words = words.to(ranks.device());
  ranks.broadcast(words, last, {.tag = "setup"}).wait();
  Incoming told;
  read_sizes(words, told);
  const at::Tensor all = here ? output.contiguous()
                              : at::empty(told.sizes, at::TensorOptions(device_).dtype(told.type));
  ranks.broadcast(all, last, {.tag = "activations"}).wait();
  return all;
}

void Boundary::forget_sizes() {
  for (auto* all : {&inputs_, &grads_})
    for (auto& one : *all) one.told = false;
  std::fill(told_.begin(), told_.end(), false);
}

}  // namespace echelon
