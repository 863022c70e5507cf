// A communicator over NCCL, on its own streams.
//
// An operation is put on our stream when it is issued: our stream first waits for the work queued
// so far on the caller's current stream, and an event marks the operation's end. Operations of one
// communicator follow each other on the stream, in the order in which they were issued.
//
// wait() makes the caller's current stream wait for that event and blocks the host until the event
// is reached. Only then is it known that no rank was lost, so wait() can report an error before
// anything is computed from an incomplete tensor. At the deadline NCCL is told to abort, which ends
// its kernels. While a CUDA graph is being captured nothing runs, and wait() only orders the
// streams.
//
// Messages have their own NCCL communicator and stream, so that they can overtake collectives. NCCL
// serialises operations that are not in one group, so two ranks that send to each other would
// deadlock. Sends and receives are therefore collected, and the next call that waits or is a
// collective puts them on the stream as one group. NCCL has no tags and no receive from any rank:
// two ranks must issue the messages between them in the same order.
//
// An adopted communicator is split into those two. After that it is never used, nor destroyed.
//
// NCCL calls that connect ranks for the first time block the host, without a deadline.
//
// Ledger: an entry holds the bytes that this rank passed to NCCL to send or to reduce, counted once
// per call, with the algorithm `automatic` and the link `tcp`, whatever NCCL used.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/comm/arguments.h"
#include "echelon/comm/backends.h"
#include "echelon/comm/lane_nccl.h"

namespace echelon {
namespace {

using namespace nccl;

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(std::shared_ptr<Lane> lane) : lane_(std::move(lane)) {}
  ~NcclCommunicator() override {
    const std::lock_guard lock(lane_->mutex);
    lane_->launch_messages();
  }

  const char* backend() const override { return "nccl"; }
  int rank() const override { return lane_->rank; }
  int size() const override { return lane_->size; }
  bool recordable() const override { return true; }
  at::Device device() const override { return {at::kCUDA, lane_->device}; }
  Ledger& ledger() override { return *lane_->ledger; }

  Work all_reduce(at::Tensor tensor, ReduceOp op, const CommCall& call) override {
    const DataType type = data_type(tensor.scalar_type());
    check(type, op);
    Piece data(tensor, Piece::both, stream());
    return launch(Operation::all_reduce, call, tensor.nbytes(), data, elements(tensor), [&] {
      return ncclAllReduce(data.data(), data.data(), elements(tensor), nccl_type(type),
                           nccl_op(type, op), comm(), stream());
    });
  }

  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CommCall& call,
                      std::vector<std::size_t> counts) override {
    const DataType type = same_type(output, input);
    check(type, op);
    expect_pieces("reduce_scatter", counts, input, size());
    expect_elements("reduce_scatter", "the output", output, counts[std::size_t(rank())]);
    Piece in(input, Piece::read, stream()), out(output, Piece::write, stream());
    return launch(Operation::reduce_scatter, call, input.nbytes(), out, elements(input), [&] {
      if (even(counts))
        return ncclReduceScatter(in.data(), out.data(), counts[0], nccl_type(type),
                                 nccl_op(type, op), comm(), stream());
      return grouped(
          [&](int owner, std::size_t first) {
            return ncclReduce(in.data() + first * size_of(type),
                              owner == rank() ? out.data() : nullptr, counts[std::size_t(owner)],
                              nccl_type(type), nccl_op(type, op), owner, comm(), stream());
          },
          counts);
    });
  }

  Work all_gather(at::Tensor output, at::Tensor input, const CommCall& call,
                  std::vector<std::size_t> counts) override {
    const DataType type = same_type(output, input);
    expect_pieces("all_gather", counts, output, size());
    expect_elements("all_gather", "the input", input, counts[std::size_t(rank())]);
    Piece in(input, Piece::read, stream()), out(output, Piece::write, stream());
    return launch(Operation::all_gather, call, input.nbytes(), out, elements(output), [&] {
      if (even(counts))
        return ncclAllGather(in.data(), out.data(), counts[0], nccl_type(type), comm(), stream());
      return grouped(
          [&](int owner, std::size_t first) {
            std::byte* const place = out.data() + first * size_of(type);
            return ncclBroadcast(owner == rank() ? in.data() : place, place,
                                 counts[std::size_t(owner)], nccl_type(type), owner, comm(),
                                 stream());
          },
          counts);
    });
  }

  Work broadcast(at::Tensor tensor, int root, const CommCall& call) override {
    expect_rank("broadcast", "root", root, size());
    const DataType type = data_type(tensor.scalar_type());
    const bool is_root = rank() == root;
    Piece data(tensor, is_root ? Piece::read : Piece::write, stream());
    return launch(Operation::broadcast, call, is_root ? tensor.nbytes() : 0, data, elements(tensor),
                  [&] {
                    return ncclBroadcast(data.data(), data.data(), elements(tensor),
                                         nccl_type(type), root, comm(), stream());
                  });
  }

  Work reduce(at::Tensor tensor, ReduceOp op, int root, const CommCall& call) override {
    expect_rank("reduce", "root", root, size());
    const DataType type = data_type(tensor.scalar_type());
    check(type, op);
    const bool is_root = rank() == root;
    Piece data(tensor, is_root ? Piece::both : Piece::read, stream());
    return launch(Operation::reduce, call, tensor.nbytes(), data, elements(tensor), [&] {
      return ncclReduce(data.data(), is_root ? data.data() : nullptr, elements(tensor),
                        nccl_type(type), nccl_op(type, op), root, comm(), stream());
    });
  }

  Work gather(at::Tensor output, at::Tensor input, int root, const CommCall& call) override {
    expect_rank("gather", "root", root, size());
    const DataType type = data_type(input.scalar_type());
    const bool is_root = rank() == root;
    const std::vector<std::size_t> counts(std::size_t(size()), elements(input));
    if (is_root) {
      same_type(output, input);
      expect_elements("gather", "the output", output, elements(input) * counts.size());
    }
    Piece in(input, Piece::read, stream()), out;
    if (is_root) out = Piece(output, Piece::write, stream());
    return launch(Operation::gather, call, input.nbytes(), out, elements(input), [&] {
      return grouped(
          [&](int other, std::size_t first) {
            ncclResult_t result = ncclSuccess;
            if (other == root)
              result =
                  ncclSend(in.data(), elements(input), nccl_type(type), root, comm(), stream());
            if (is_root && result == ncclSuccess)
              result = ncclRecv(out.data() + first * size_of(type), elements(input),
                                nccl_type(type), other, comm(), stream());
            return result;
          },
          counts);
    });
  }

  Work scatter(at::Tensor output, at::Tensor input, int root, const CommCall& call) override {
    expect_rank("scatter", "root", root, size());
    const DataType type = data_type(output.scalar_type());
    const bool is_root = rank() == root;
    const std::vector<std::size_t> counts(std::size_t(size()), elements(output));
    if (is_root) {
      same_type(output, input);
      expect_elements("scatter", "the input", input, elements(output) * counts.size());
    }
    Piece in, out(output, Piece::write, stream());
    if (is_root) in = Piece(input, Piece::read, stream());
    return launch(Operation::scatter, call, is_root ? input.nbytes() : 0, out, elements(output),
                  [&] {
                    return grouped(
                        [&](int other, std::size_t first) {
                          ncclResult_t result = ncclSuccess;
                          if (is_root)
                            result = ncclSend(in.data() + first * size_of(type), elements(output),
                                              nccl_type(type), other, comm(), stream());
                          if (other == root && result == ncclSuccess)
                            result = ncclRecv(out.data(), elements(output), nccl_type(type), root,
                                              comm(), stream());
                          return result;
                        },
                        counts);
                  });
  }

  Work all_to_all(at::Tensor output, at::Tensor input, const CommCall& call,
                  std::vector<std::size_t> there, std::vector<std::size_t> back) override {
    const DataType type = same_type(output, input);
    expect_pieces("all_to_all", there, input, size());
    expect_pieces("all_to_all", back, output, size());
    Piece in(input, Piece::read, stream()), out(output, Piece::write, stream());
    return launch(
        Operation::all_to_all, call, input.nbytes(), out, elements(input) + elements(output), [&] {
          std::size_t to = 0, from = 0;
          must(ncclGroupStart(), "all_to_all", comm());
          ncclResult_t result = ncclSuccess;
          for (std::size_t other = 0; other < there.size() && result == ncclSuccess; ++other) {
            if (there[other])
              result = ncclSend(in.data() + to * size_of(type), there[other], nccl_type(type),
                                int(other), comm(), stream());
            if (back[other] && result == ncclSuccess)
              result = ncclRecv(out.data() + from * size_of(type), back[other], nccl_type(type),
                                int(other), comm(), stream());
            to += there[other];
            from += back[other];
          }
          const ncclResult_t ended = ncclGroupEnd();
          return result == ncclSuccess ? ended : result;
        });
  }

  Work send(at::Tensor tensor, int to, std::uint64_t, const CommCall& call) override {
    expect_rank("send", "the receiver", to, size());
    return collect(Operation::send, tensor, to, call);
  }

  Work receive(at::Tensor tensor, int from, std::uint64_t, const CommCall& call) override {
    if (from == anyone)
      throw InvalidArgument(
          "NCCL cannot receive from anyone: name the sender, or take the native backend");
    expect_rank("receive", "the sender", from, size());
    return collect(Operation::receive, tensor, from, call);
  }

  Work barrier(const CommCall& call) override {
    Piece none;
    return launch(Operation::barrier, call, 0, none, 1, [&] {
      return ncclAllReduce(lane_->token.data_ptr(), lane_->token.data_ptr(), 1, ncclInt32, ncclSum,
                           comm(), stream());
    });
  }

  // NCCL can split only if nothing is under way.
  std::shared_ptr<Communicator> split(int colour, int key) override {
    barrier({.tag = "split"}).wait();
    std::unique_lock lock(lane_->mutex);
    if (const auto last = lane_->last_message) {
      lock.unlock();
      lane_->hold_host(*last);
      lock.lock();
    }
    const c10::cuda::CUDAGuard guard(lane_->device);
    auto lane = split_lane(comm(), colour, key, lane_->device, lane_->options, lane_->ledger);
    return lane ? std::make_shared<NcclCommunicator>(std::move(lane)) : nullptr;
  }

  at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType type) override {
    return at::empty(sizes, at::TensorOptions().dtype(type).device(at::kCUDA, lane_->device));
  }

 private:
  ncclComm_t comm() const { return lane_->collective.comm; }
  const c10::cuda::CUDAStream& stream() const { return lane_->collective.stream; }

  static bool even(const std::vector<std::size_t>& counts) {
    return std::all_of(counts.begin(), counts.end(),
                       [&](auto count) { return count == counts[0]; });
  }

  // Calls call(rank, where its piece begins) for every non-empty piece, as one group.
  template <class Each>
  ncclResult_t grouped(Each call, const std::vector<std::size_t>& counts) const {
    must(ncclGroupStart(), "a group", comm());
    ncclResult_t result = ncclSuccess;
    std::size_t first = 0;
    for (std::size_t other = 0; other < counts.size() && result == ncclSuccess; ++other) {
      if (counts[other]) result = call(int(other), first);
      first += counts[other];
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
  }

  // `out` is written back after the operation. Without elements, NCCL is not called.
  template <class Call>
  Work launch(Operation operation, const CommCall& options, std::size_t bytes, Piece& out,
              std::size_t count, Call call) {
    const c10::cuda::CUDAGuard guard(lane_->device);
    const auto work = lane_->issue(operation, options);
    const std::lock_guard lock(lane_->mutex);
    lane_->launch_messages();
    if (!lane_->broken) {
      try {
        lane_->collective.follow_current();
        const c10::cuda::CUDAStreamGuard ours(stream());
        if (count) must(call(), work->describe(*lane_), comm());
        out.finish();
        work->end->record(stream());
        work->launched = true;
        lane_->last_collective = work;
        lane_->ledger->add(operation, options.tag, Algorithm::automatic, LinkKind::tcp, bytes);
      } catch (...) {
        lane_->fail(std::current_exception());  // the work reports it
      }
    }
    return make_work(lane_, work);
  }

  Work collect(Operation operation, const at::Tensor& tensor, int peer, const CommCall& options) {
    const c10::cuda::CUDAGuard guard(lane_->device);
    const DataType type = data_type(tensor.scalar_type());
    const bool sends = operation == Operation::send;
    const auto work = lane_->issue(operation, options);
    Piece piece(tensor, sends ? Piece::read : Piece::write, lane_->message.stream);
    const std::lock_guard lock(lane_->mutex);
    lane_->message.follow_current();
    lane_->collected.push_back({std::move(piece), elements(tensor), type, peer, work});
    lane_->ledger->add(operation, options.tag, Algorithm::automatic, LinkKind::tcp,
                       sends ? tensor.nbytes() : 0);
    return make_work(lane_, work, sends ? -1 : peer);
  }

  std::shared_ptr<Lane> lane_;
};

}  // namespace

std::shared_ptr<Communicator> nccl_world(std::shared_ptr<Communicator> control,
                                         const CommOptions& options) {
  const auto device = c10::cuda::current_device();
  const c10::cuda::CUDAGuard guard(device);
  ncclComm_t comms[2] = {};
  for (auto& comm : comms) {
    ncclUniqueId id = {};
    if (control->rank() == 0) must(ncclGetUniqueId(&id), "an id for the ranks", nullptr);
    auto bytes = at::empty({std::int64_t(sizeof id)}, at::kByte);
    std::memcpy(bytes.data_ptr(), &id, sizeof id);
    control->broadcast(bytes, 0, {.tag = "nccl", .blocking = true}).wait();
    std::memcpy(&id, bytes.data_ptr(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    must(ncclCommInitRankConfig(&comm, control->size(), id, control->rank(), &config),
         "a communicator of all ranks", nullptr);
  }
  return std::make_shared<NcclCommunicator>(
      std::make_shared<Lane>(comms[0], comms[1], device, options, std::make_shared<Ledger>()));
}

std::shared_ptr<Communicator> Communicator::adopt_nccl(ncclComm* comm, const CommOptions& options) {
  int device = 0, rank = 0;
  must(ncclCommCuDevice(comm, &device), "the device of an adopted communicator", comm);
  must(ncclCommUserRank(comm, &rank), "the rank in an adopted communicator", comm);
  const auto on = c10::DeviceIndex(device);
  const c10::cuda::CUDAGuard guard(on);
  return std::make_shared<NcclCommunicator>(
      split_lane(comm, 0, rank, on, options, std::make_shared<Ledger>()));
}

}  // namespace echelon
