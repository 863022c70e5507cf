#include <ATen/ops/from_blob.h>

#include <numeric>
#include <utility>

#include "echelon/collective/group.h"
#include "echelon/comm/arguments.h"
#include "echelon/comm/communicator.h"
#include "echelon/comm/dense.h"
#include "echelon/comm/queue.h"

namespace echelon {
namespace {

class MessageOperand final : public Operand {
 public:
  MessageOperand(std::shared_ptr<Group> group, Group::Ticket ticket, std::shared_ptr<Dense> dense)
      : group_(std::move(group)), ticket_(std::move(ticket)), dense_(std::move(dense)) {}
  bool done() override {
    if (!finished_ && group_->done(ticket_)) finish();
    return finished_;
  }
  void wait() override {
    if (finished_) return;
    group_->wait(ticket_);
    finish();
  }
  int source() override { return ticket_->peer; }

 private:
  void finish() {
    dense_->finish();
    finished_ = true;
  }
  std::shared_ptr<Group> group_;
  Group::Ticket ticket_;
  std::shared_ptr<Dense> dense_;
  bool finished_ = false;
};

class NativeCommunicator final : public Communicator {
 public:
  explicit NativeCommunicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  const char* backend() const override { return "native"; }
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  Work all_reduce(at::Tensor tensor, ReduceOp op, const CommCall& call) override {
    const DataType type = data_type(tensor.scalar_type());
    check(type, op);
    return submit(call, [=, group = group_](const CallOptions& options) {
      const Dense data(tensor, Dense::both);
      group->all_reduce(type, op, data.data(), data.data(), elements(tensor), options);
      data.finish();
    });
  }

  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CommCall& call,
                      std::vector<std::size_t> counts) override {
    const DataType type = same_type(output, input);
    check(type, op);
    expect_pieces("reduce_scatter", counts, input, size());
    expect_elements("reduce_scatter", "the output", output, counts[std::size_t(rank())]);
    return submit(call, [=, group = group_](const CallOptions& options) {
      const Dense in(input, Dense::read), out(output, Dense::write);
      group->reduce_scatter(type, op, in.data(), out.data(), counts, options);
      out.finish();
    });
  }

  Work all_gather(at::Tensor output, at::Tensor input, const CommCall& call,
                  std::vector<std::size_t> counts) override {
    const DataType type = same_type(output, input);
    expect_pieces("all_gather", counts, output, size());
    expect_elements("all_gather", "the input", input, counts[std::size_t(rank())]);
    return submit(call, [=, group = group_](const CallOptions& options) {
      const Dense in(input, Dense::read), out(output, Dense::write);
      group->all_gather(type, in.data(), out.data(), counts, options);
      out.finish();
    });
  }

  Work broadcast(at::Tensor tensor, int root, const CommCall& call) override {
    const DataType type = data_type(tensor.scalar_type());
    return submit(call, [=, group = group_](const CallOptions& options) {
      const Dense data(tensor, Dense::both);
      group->broadcast(type, data.data(), elements(tensor), root, options);
      data.finish();
    });
  }

  Work reduce(at::Tensor tensor, ReduceOp op, int root, const CommCall& call) override {
    const DataType type = data_type(tensor.scalar_type());
    check(type, op);
    return submit(call, [=, group = group_](const CallOptions& options) {
      const bool is_root = group->rank() == root;
      const Dense data(tensor, is_root ? Dense::both : Dense::read);
      group->reduce(type, op, data.data(), is_root ? data.data() : nullptr, elements(tensor), root,
                    options);
      data.finish();
    });
  }

  Work gather(at::Tensor output, at::Tensor input, int root, const CommCall& call) override {
    const DataType type = data_type(input.scalar_type());
    const std::vector<std::size_t> counts(std::size_t(size()), elements(input));
    if (rank() == root)
      expect_elements("gather", "the output", output, elements(input) * counts.size());
    return submit(call, [=, group = group_](const CallOptions& options) {
      const Dense in(input, Dense::read),
          out(group->rank() == root ? output : at::Tensor(), Dense::write);
      group->gather(type, in.data(), out.data(), counts, root, options);
      out.finish();
    });
  }

  Work scatter(at::Tensor output, at::Tensor input, int root, const CommCall& call) override {
    const DataType type = data_type(output.scalar_type());
    const std::vector<std::size_t> counts(std::size_t(size()), elements(output));
    if (rank() == root)
      expect_elements("scatter", "the input", input, elements(output) * counts.size());
    return submit(call, [=, group = group_](const CallOptions& options) {
      const Dense in(group->rank() == root ? input : at::Tensor(), Dense::read),
          out(output, Dense::write);
      group->scatter(type, in.data(), out.data(), counts, root, options);
      out.finish();
    });
  }

  Work all_to_all(at::Tensor output, at::Tensor input, const CommCall& call,
                  std::vector<std::size_t> there, std::vector<std::size_t> back) override {
    const DataType type = same_type(output, input);
    expect_pieces("all_to_all", there, input, size());
    expect_pieces("all_to_all", back, output, size());
    return submit(call, [=, group = group_](const CallOptions& options) {
      const Dense in(input, Dense::read), out(output, Dense::write);
      group->all_to_all(type, in.data(), out.data(), there, back, options);
      out.finish();
    });
  }

  Work send(at::Tensor tensor, int to, std::uint64_t tag, const CommCall& call) override {
    data_type(tensor.scalar_type());
    auto dense = std::make_shared<Dense>(tensor, Dense::read);
    auto ticket =
        group_->send(dense->data(), tensor.nbytes(), to, tag,
                     {.tag = call.tag, .timeout = call.timeout, .owner = dense}, !call.blocking);
    return Work(std::make_shared<MessageOperand>(group_, std::move(ticket), std::move(dense)));
  }

  Work receive(at::Tensor tensor, int from, std::uint64_t tag, const CommCall& call) override {
    data_type(tensor.scalar_type());
    auto dense = std::make_shared<Dense>(tensor, Dense::write);
    auto ticket =
        group_->receive(dense->data(), tensor.nbytes(), from, tag,
                        {.tag = call.tag, .timeout = call.timeout, .owner = dense}, !call.blocking);
    return Work(std::make_shared<MessageOperand>(group_, std::move(ticket), std::move(dense)));
  }

  Work barrier(const CommCall& call) override {
    return submit(call, [group = group_](const CallOptions& options) { group->barrier(options); });
  }

  std::shared_ptr<Communicator> split(int colour, int key) override {
    std::shared_ptr<Group> group;
    submit({.blocking = true}, [&](const CallOptions&) {
      group = group_->split(colour, key);
    }).wait();
    return group ? std::make_shared<NativeCommunicator>(std::move(group)) : nullptr;
  }

  at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType type) override {
    const auto count =
        std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
    auto memory = group_->allocate(std::size_t(count) * at::elementSize(type));
    void* data = memory.get();
    // Reported like the memory of torch's own allocators, so that memory accounts include it.
    const auto bytes = std::int64_t(count) * std::int64_t(at::elementSize(type));
    const auto tell = [data](std::int64_t change) {
      c10::reportMemoryUsageToProfiler(data, change, 0, 0, c10::Device(c10::kCPU));
    };
    tell(bytes);
    return at::from_blob(
        data, sizes,
        [memory = std::move(memory), tell, bytes](void*) mutable {
          tell(-bytes);
          memory.reset();
        },
        at::TensorOptions().dtype(type));
  }

  std::string host() const override {
    return group_->endpoint().peer_info(group_->endpoint().rank()).host;
  }

  LinkFigures link() const override {
    return group_->shape().hosts > 1 ? group_->figures().tcp : group_->figures().shared;
  }

  bool link_is_reused() const override { return group_->figures().reused; }

  std::vector<Algorithm> algorithms() const override {
    return candidates(Operation::all_reduce, group_->shape());
  }
  double predicted(Operation operation, Algorithm algorithm, std::size_t bytes) const override {
    if (algorithm == Algorithm::automatic) algorithm = group_->algorithm(operation, bytes);
    return cost(operation, algorithm, bytes, group_->shape(), group_->figures(),
                BufferKind::registered);
  }
  void measure_links() override {
    submit({.blocking = true}, [&](const CallOptions&) { group_->measure_again(); }).wait();
  }

  Ledger& ledger() override { return group_->ledger(); }
  std::string plan() const override { return group_->plan().json(); }

 private:
  template <class Body>
  Work submit(const CommCall& call, Body body) {
    return queue_.submit(
        [body = std::move(body), tag = call.tag, timeout = call.timeout,
         algorithm = call.algorithm](bool patient) {
          body(CallOptions{
              .tag = tag, .algorithm = algorithm, .timeout = timeout, .patient = patient});
        },
        call.blocking);
  }

  std::shared_ptr<Group> group_;
  Queue queue_;
};

}  // namespace

std::shared_ptr<Communicator> native_communicator(std::shared_ptr<Group> group) {
  return std::make_shared<NativeCommunicator>(std::move(group));
}

}  // namespace echelon
