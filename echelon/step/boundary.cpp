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

// The description sent before a tensor's first message: its dimensions, its type and the number of
// tensors at this boundary, and its sizes.
constexpr std::int64_t most_dimensions = 8, description_words = 2 + most_dimensions;
constexpr std::size_t most_tensors = 16;
constexpr std::int64_t types = 256;  // the second word is type + types * tensors

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

std::uint64_t Boundary::tag(int layer, int micro_batch, Message what, std::size_t tensor) const {
  return (std::uint64_t(at(layer, micro_batch)) * most_tensors + tensor) * 3 + std::uint64_t(what);
}

std::string Boundary::Shape::text() const { return fmt::format("[{}]", fmt::join(sizes, ", ")); }

at::Tensor Boundary::described(const at::Tensor& tensor, std::size_t tensors) {
  if (tensor.dim() > most_dimensions)
    throw InvalidArgument(
        fmt::format("a layer gave {} dimensions; between ranks of a pipeline there are {} at most",
                    tensor.dim(), most_dimensions));
  at::Tensor words = at::empty({description_words}, at::kLong).zero_();
  auto* const word = words.data_ptr<std::int64_t>();
  word[0] = tensor.dim();
  word[1] = static_cast<std::int64_t>(tensor.scalar_type()) + types * std::int64_t(tensors);
  for (std::int64_t d = 0; d < tensor.dim(); ++d) word[2 + d] = tensor.size(d);
  return words;
}

// Returns the number of tensors at the boundary.
std::size_t Boundary::read_shape(const at::Tensor& words, Shape& shape) {
  const at::Tensor here = words.to(at::kCPU);
  const auto* const word = here.const_data_ptr<std::int64_t>();
  const auto type = word[1] % types, tensors = word[1] / types;
  bool valid = word[0] >= 0 && word[0] <= most_dimensions && type >= 0 &&
               type < static_cast<std::int64_t>(at::ScalarType::NumOptions) && tensors >= 1 &&
               tensors <= std::int64_t(most_tensors);
  for (std::int64_t d = 0; valid && d < word[0]; ++d) valid = word[2 + d] >= 0;
  if (!valid)
    throw Error(fmt::format(
        "a rank of the pipeline announced a tensor of {} dimensions and type {}, one of {}",
        word[0], type, tensors));
  shape = {{word + 2, word + 2 + word[0]}, static_cast<at::ScalarType>(type)};
  return std::size_t(tensors);
}

void Boundary::send_outputs(int layer, int micro_batch, const Tensors& outputs) {
  if (outputs.empty() || outputs.size() > most_tensors)
    throw InvalidArgument(
        fmt::format("layer {} gave {} tensors; between ranks of a pipeline there are 1 to {}",
                    layer, outputs.size(), most_tensors));
  const int to = neighbours_.owner[std::size_t(layer) + 1];
  Tensors whole;
  std::vector<Shape> shapes;
  for (const auto& output : outputs) {
    whole.push_back(output.contiguous());
    shapes.push_back({output.sizes().vec(), output.scalar_type()});
  }
  Incoming& back = grads_[at(layer, micro_batch)];
  if (!told_[at(layer, micro_batch)]) {
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const at::Tensor words = described(whole[i], whole.size()).to(neighbours_.ranks->device());
      outgoing_.push_back({words, lane(outputs_, layer)
                                      .send(words, to, tag(layer, micro_batch, Message::sizes, i),
                                            {.tag = "setup"})});
    }
    told_[at(layer, micro_batch)] = true;
    back.shapes = shapes;
    back.told = true;
  }
  if (shapes != back.shapes) {
    const auto all = [](const std::vector<Shape>& some) {
      std::vector<std::string> texts;
      for (const auto& shape : some) texts.push_back(shape.text());
      return fmt::format("{}", fmt::join(texts, " and "));
    };
    throw InvalidArgument(fmt::format(
        "layer {} gave {} for micro-batch {} and {} in the step before, for a batch of the same "
        "sizes: the ranks of a pipeline expect the same sizes again",
        layer, all(shapes), micro_batch, all(back.shapes)));
  }
  for (std::size_t i = 0; i < whole.size(); ++i)
    send(lane(outputs_, layer), whole[i], to, tag(layer, micro_batch, Message::output, i), layer,
         micro_batch);
}

void Boundary::send_grads(int layer, int micro_batch, const Tensors& grads) {
  const auto& shapes = inputs_[at(layer, micro_batch)].shapes;
  if (grads.size() != shapes.size())
    throw InvalidArgument(fmt::format("layer {} has {} inputs and gave {} gradients for them",
                                      layer, shapes.size(), grads.size()));
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (!at::isFloatingType(shapes[i].type)) continue;
    if (!grads[i].defined())
      throw InvalidArgument(fmt::format(
          "layer {} gives no gradient for its input{}, and the rank below it in the pipeline needs "
          "one",
          layer, grads.size() > 1 ? fmt::format(" {}", i) : ""));
    send(lane(gradients_, layer - 1), grads[i].contiguous(),
         neighbours_.owner[std::size_t(layer) - 1], tag(layer - 1, micro_batch, Message::grad, i),
         layer, micro_batch);
  }
}

// `edge` is the layer below the boundary, whose number the tags have.
void Boundary::begin(Communicator& ranks, Incoming& one, int from, Message what, int edge,
                     int layer, int micro_batch) {
  const MemoryScope scope(MemoryKind::activations);
  one.tensors.assign(one.shapes.size(), {});
  one.works.assign(one.shapes.size(), {});
  for (std::size_t i = 0; i < one.shapes.size(); ++i) {
    const Shape& shape = one.shapes[i];
    if (what == Message::grad && !at::isFloatingType(shape.type)) continue;
    one.tensors[i] = at::empty(shape.sizes, at::TensorOptions(device_).dtype(shape.type));
    one.works[i] = exchange_->receive(
        ranks, one.tensors[i], from, tag(edge, micro_batch, what, i),
        {.purpose = Purpose::activations, .part = layer, .micro_batch = micro_batch});
  }
  one.begun = true;
}

void Boundary::begin_inputs(int layer, int micro_batch) {
  begin(lane(outputs_, layer - 1), inputs_[at(layer, micro_batch)],
        neighbours_.owner[std::size_t(layer) - 1], Message::output, layer - 1, layer, micro_batch);
}

void Boundary::begin_grads(int layer, int micro_batch) {
  begin(lane(gradients_, layer), grads_[at(layer, micro_batch)],
        neighbours_.owner[std::size_t(layer) + 1], Message::grad, layer, layer, micro_batch);
}

// The size must be known before a receive can be posted. take_inputs asks for it; a gradient's size
// is known once the output is sent. On a GPU a receive is posted only when it is taken: a kernel
// that waits for a message can block the host's next allocation, and the message may depend on what
// this rank sends after that. The host runs ahead of the GPU anyway.
bool Boundary::comes_early(const Incoming& one) const { return one.told && device_.is_cpu(); }

void Boundary::receive_inputs(int layer, int micro_batch) {
  if (comes_early(inputs_[at(layer, micro_batch)])) begin_inputs(layer, micro_batch);
}

void Boundary::receive_grads(int layer, int micro_batch) {
  if (comes_early(grads_[at(layer, micro_batch)])) begin_grads(layer, micro_batch);
}

Tensors Boundary::take(Incoming& one) {
  for (std::size_t i = 0; i < one.works.size(); ++i)
    if (one.tensors[i].defined()) exchange_->wait(one.works[i], device_);
  one.works.clear();
  one.begun = false;
  return std::exchange(one.tensors, {});
}

void Boundary::learn_shapes(Incoming& one, int from, int layer, int micro_batch) {
  one.shapes.resize(1);
  for (std::size_t i = 0; i < one.shapes.size(); ++i) {
    at::Tensor words = at::empty({description_words},
                                 at::TensorOptions(neighbours_.ranks->device()).dtype(at::kLong));
    lane(outputs_, layer - 1)
        .receive(words, from, tag(layer - 1, micro_batch, Message::sizes, i), {.tag = "setup"})
        .wait();
    const std::size_t tensors = read_shape(words, one.shapes[i]);
    one.shapes.resize(tensors);
  }
  one.told = true;
}

Tensors Boundary::take_inputs(int layer, int micro_batch) {
  Incoming& one = inputs_[at(layer, micro_batch)];
  if (!one.told) learn_shapes(one, neighbours_.owner[std::size_t(layer) - 1], layer, micro_batch);
  if (!one.begun) begin_inputs(layer, micro_batch);
  return take(one);
}

Tensors Boundary::take_grads(int layer, int micro_batch) {
  if (!grads_[at(layer, micro_batch)].begun) begin_grads(layer, micro_batch);
  return take(grads_[at(layer, micro_batch)]);
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
  at::Tensor words = here ? described(output, 1) : at::empty({description_words}, at::kLong);
  words = words.to(ranks.device());
  ranks.broadcast(words, last, {.tag = "setup"}).wait();
  Shape shape;
  read_shape(words, shape);
  const at::Tensor all = here
                             ? output.contiguous()
                             : at::empty(shape.sizes, at::TensorOptions(device_).dtype(shape.type));
  ranks.broadcast(all, last, {.tag = "activations"}).wait();
  return all;
}

void Boundary::forget_sizes() {
  for (auto* all : {&inputs_, &grads_})
    for (auto& one : *all) one.told = false;
  std::fill(told_.begin(), told_.end(), false);
}

}  // namespace echelon
