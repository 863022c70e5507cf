#include "echelon/verify/altered_communicator.h"

#include <numeric>
#include <optional>
#include <utility>

#include "echelon/nn/memory.h"

namespace echelon {

at::Tensor Transfer::piece(const at::Tensor& all, int of) const {
  const auto flat = all.view({-1});
  if (counts.empty()) return flat.narrow(0, flat.numel() / size * of, flat.numel() / size);
  const auto begin = std::accumulate(counts.begin(), counts.begin() + of, std::size_t{0});
  return flat.narrow(0, std::int64_t(begin), std::int64_t(counts[std::size_t(of)]));
}

namespace {

using Kind = Transfer::Kind;

// Done when all works are done and the result has been changed, which happens once, in the thread
// that waits.
class AlteredOperand final : public Operand {
 public:
  AlteredOperand(std::vector<Work> works, std::function<void()> after)
      : works_(std::move(works)), after_(std::move(after)) {}

  bool done() override {
    for (const auto& work : works_)
      if (!work.done()) return false;
    finish();
    return true;
  }
  void wait() override {
    for (const auto& work : works_) work.wait();
    finish();
  }
  void follow() override {
    for (const auto& work : works_) work.follow();
    finish();
  }
  int source() override { return works_.back().source(); }
  std::optional<WorkSpan> span() override { return works_.back().span(); }

 private:
  void finish() {
    if (const auto after = std::exchange(after_, {})) after();
  }

  std::vector<Work> works_;
  std::function<void()> after_;
};

// The result of a skipped exchange.
void keep_own(const Transfer& one) {
  switch (one.kind) {
    case Kind::reduce_scatter:
      at::Tensor(one.output).view({-1}).copy_(one.piece(one.input, one.rank).clone());
      break;
    case Kind::all_gather: {
      const at::Tensor mine = one.input.reshape({-1}).clone();  // it may be part of the output
      at::Tensor(one.output).zero_();
      one.piece(one.output, one.rank).copy_(mine);
      break;
    }
    case Kind::receive:
      at::Tensor(one.output).zero_();
      break;
    case Kind::all_reduce:
    case Kind::broadcast:
    case Kind::send:
      break;
  }
}

Transfer with_copies(Transfer one) {
  for (auto* tensor : {&one.output, &one.input})
    if (tensor->defined()) *tensor = tensor->clone();
  return one;
}

class AlteredCommunicator final : public Communicator {
 public:
  AlteredCommunicator(std::shared_ptr<Communicator> ranks, std::shared_ptr<Alteration> alteration)
      : ranks_(std::move(ranks)), alteration_(std::move(alteration)) {}

  Work all_reduce(at::Tensor tensor, ReduceOp op, const CommCall& call) override {
    return pass({.kind = Kind::all_reduce, .tag = call.tag, .output = std::move(tensor), .op = op},
                [&](const Transfer& e) { return ranks_->all_reduce(e.output, e.op, call); });
  }
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CommCall& call,
                      std::vector<std::size_t> counts) override {
    return pass({.kind = Kind::reduce_scatter,
                 .tag = call.tag,
                 .output = std::move(output),
                 .input = std::move(input),
                 .op = op,
                 .counts = std::move(counts)},
                [&](const Transfer& e) {
                  return ranks_->reduce_scatter(e.output, e.input, e.op, call, e.counts);
                });
  }
  Work all_gather(at::Tensor output, at::Tensor input, const CommCall& call,
                  std::vector<std::size_t> counts) override {
    return pass(
        {.kind = Kind::all_gather,
         .tag = call.tag,
         .output = std::move(output),
         .input = std::move(input),
         .counts = std::move(counts)},
        [&](const Transfer& e) { return ranks_->all_gather(e.output, e.input, call, e.counts); });
  }
  Work broadcast(at::Tensor tensor, int root, const CommCall& call) override {
    return pass(
        {.kind = Kind::broadcast, .tag = call.tag, .output = std::move(tensor), .peer = root},
        [&](const Transfer& e) { return ranks_->broadcast(e.output, e.peer, call); });
  }
  Work send(at::Tensor tensor, int to, std::uint64_t tag, const CommCall& call) override {
    return pass({.kind = Kind::send,
                 .tag = call.tag,
                 .input = std::move(tensor),
                 .peer = to,
                 .message = tag},
                [&](const Transfer& e) { return ranks_->send(e.input, e.peer, e.message, call); });
  }
  Work receive(at::Tensor tensor, int from, std::uint64_t tag, const CommCall& call) override {
    return pass(
        {.kind = Kind::receive,
         .tag = call.tag,
         .output = std::move(tensor),
         .peer = from,
         .message = tag},
        [&](const Transfer& e) { return ranks_->receive(e.output, e.peer, e.message, call); });
  }

  std::shared_ptr<Communicator> split(int colour, int key) override {
    auto group = ranks_->split(colour, key);
    return group ? std::make_shared<AlteredCommunicator>(std::move(group), alteration_) : nullptr;
  }

  // Forwarded unseen.
  Work reduce(at::Tensor tensor, ReduceOp op, int root, const CommCall& call) override {
    return ranks_->reduce(std::move(tensor), op, root, call);
  }
  Work gather(at::Tensor output, at::Tensor input, int root, const CommCall& call) override {
    return ranks_->gather(std::move(output), std::move(input), root, call);
  }
  Work scatter(at::Tensor output, at::Tensor input, int root, const CommCall& call) override {
    return ranks_->scatter(std::move(output), std::move(input), root, call);
  }
  Work all_to_all(at::Tensor output, at::Tensor input, const CommCall& call,
                  std::vector<std::size_t> there, std::vector<std::size_t> back) override {
    return ranks_->all_to_all(std::move(output), std::move(input), call, std::move(there),
                              std::move(back));
  }
  Work barrier(const CommCall& call) override { return ranks_->barrier(call); }
  const char* backend() const override { return ranks_->backend(); }
  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType type) override {
    return ranks_->allocate(sizes, type);
  }
  std::string host() const override { return ranks_->host(); }
  at::Device device() const override { return ranks_->device(); }
  bool recordable() const override { return false; }  // an alteration runs on the host
  LinkFigures link() const override { return ranks_->link(); }
  std::vector<Algorithm> algorithms() const override { return ranks_->algorithms(); }
  double predicted(Operation operation, Algorithm algorithm, std::size_t bytes) const override {
    return ranks_->predicted(operation, algorithm, bytes);
  }
  void measure_links() override { ranks_->measure_links(); }
  Ledger& ledger() override { return ranks_->ledger(); }
  std::string plan() const override { return ranks_->plan(); }

 private:
  template <class Call>
  Work pass(Transfer one, const Call& call) {
    one.rank = rank();
    one.size = size();
    Change change;
    std::vector<Work> works;
    {
      const MemoryScope scope(MemoryKind::workspace);  // the copies are not the job's memory
      change = (*alteration_)(one);
      if (change.times == 0) keep_own(one);
      for (int i = 1; i < change.times; ++i) works.push_back(call(with_copies(one)));
    }
    if (change.times > 0) works.push_back(call(one));
    if (works.empty()) works.emplace_back();
    if (works.size() == 1 && !change.after) return works.front();
    return Work(std::make_shared<AlteredOperand>(std::move(works), std::move(change.after)));
  }

  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<Alteration> alteration_;  // this rank's, for all groups
};

}  // namespace

std::shared_ptr<Communicator> altered(std::shared_ptr<Communicator> ranks, Alteration alteration) {
  return std::make_shared<AlteredCommunicator>(std::move(ranks),
                                               std::make_shared<Alteration>(std::move(alteration)));
}

}  // namespace echelon
