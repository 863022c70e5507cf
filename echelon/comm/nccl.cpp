// A communicator of NCCL, on streams of its own.
//
// An operation is put on our stream when it is issued: our stream first waits for what the caller's
// current stream has been given, and an event marks the operation's end. Operations of one
// communicator follow each other on the stream, which is the order they were issued in.
//
// wait() makes the caller's current stream wait for that event, and holds the host until it has
// been reached: only then is it known that no rank was lost, and an error can come out of wait()
// before anything was computed from a torn tensor. At the deadline NCCL is told to abort, which
// ends its kernels. While a CUDA graph is being recorded nothing runs, and wait() orders the
// streams alone.
//
// Messages have a NCCL communicator and a stream of their own, so that they pass collectives. NCCL
// runs one after another what is not in one group, and two ranks that send to each other would wait
// for each other. So sends and receives are collected, and put on the stream as one group by the
// next call that waits or is a collective. NCCL knows no tags and no receive from anyone: two ranks
// must name the messages between them in one order.
//
// A communicator that is adopted is split into those two; it is never used after that, nor
// destroyed.
//
// Calls of NCCL that connect ranks for the first time block the host, without a deadline.
//
// Ledger: an entry holds what this rank handed to NCCL to send or to reduce, once a call, with the
// algorithm `automatic` and the link `tcp`, whatever NCCL took.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sched.h>

// nccl.h includes CUDA's small floats, of which it uses nothing. They need CCCL's <nv/target>,
// which the wheels beside torch do not bring.
#if !__has_include(<nv/target>)
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#endif
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "echelon/base/deadline.h"
#include "echelon/base/error.h"
#include "echelon/collective/call.h"
#include "echelon/comm/arguments.h"
#include "echelon/comm/backends.h"

namespace echelon {
namespace {

void must(cudaError_t result, const char* what) {
  if (result != cudaSuccess)
    throw Error(fmt::format("CUDA cannot {}: {}", what, cudaGetErrorString(result)));
}

// `comm` may be null; NCCL's own words about it are the better ones.
void must(ncclResult_t result, const std::string& what, ncclComm_t comm) {
  if (result == ncclSuccess) return;
  const char* const words = comm ? ncclGetLastError(comm) : nullptr;
  const auto message = fmt::format("{}: NCCL says {}{}{}", what, ncclGetErrorString(result),
                                   words && *words ? ": " : "", words ? words : "");
  if (result == ncclRemoteError) throw PeerLost(message);
  if (result == ncclInvalidArgument || result == ncclInvalidUsage) throw InvalidArgument(message);
  throw Error(message);
}

// A point on a stream.
class Event {
 public:
  Event() { must(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "make an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { must(cudaEventRecord(event_, stream), "record an event"); }
  void hold(cudaStream_t stream) const {
    must(cudaStreamWaitEvent(stream, event_, 0), "let a stream wait");
  }
  bool reached() const {
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) return false;
    must(result, "run what was put on a stream");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

ncclDataType_t nccl_type(DataType type) {
  // In the order of DataType; a bool is a byte of 0 or 1.
  constexpr ncclDataType_t types[] = {ncclFloat64,  ncclFloat32, ncclFloat16,
                                      ncclBfloat16, ncclInt64,   ncclInt32,
                                      ncclInt8,     ncclUint8,   ncclUint8};
  return types[std::size_t(type)];
}

ncclRedOp_t nccl_op(DataType type, ReduceOp op) {
  if (type == DataType::boolean)
    return op == ReduceOp::sum || op == ReduceOp::max ? ncclMax : ncclMin;
  constexpr ncclRedOp_t ops[] = {ncclSum, ncclAvg, ncclMin, ncclMax, ncclProd};
  return ops[std::size_t(op)];
}

// A tensor as one piece of our device's memory: itself, or a copy that finish() writes back. Both
// are ordered by the stream that is current then; the memory is kept from reuse until `stream` is
// past it.
class Piece {
 public:
  enum Use { read, write, both };

  Piece() = default;
  Piece(const at::Tensor& tensor, Use use, const c10::cuda::CUDAStream& stream)
      : original_(tensor) {
    if (!tensor.is_cuda() || tensor.device().index() != stream.device_index())
      throw InvalidArgument(fmt::format(
          "NCCL works on cuda:{}, the tensor is on {}: move it there, or take the native backend",
          int(stream.device_index()), tensor.device().str()));
    const bool direct = tensor.is_contiguous();
    dense_ = direct         ? tensor
             : use == write ? at::empty(tensor.sizes(), tensor.options())
                            : tensor.contiguous();
    back_ = !direct && use != read;
    keep(dense_, stream);
    if (back_) keep(original_, stream);
  }

  std::byte* data() const {
    return dense_.defined() ? static_cast<std::byte*>(dense_.data_ptr()) : nullptr;
  }
  void finish() {
    if (back_) original_.copy_(dense_, true);
  }

 private:
  static void keep(const at::Tensor& tensor, const c10::cuda::CUDAStream& stream) {
    if (tensor.numel())
      c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream);
  }
  at::Tensor original_, dense_;
  bool back_ = false;
};

// A NCCL communicator with its stream. Ours to end.
struct Channel {
  ncclComm_t comm = nullptr;
  c10::cuda::CUDAStream stream;

  explicit Channel(ncclComm_t of, c10::DeviceIndex device)
      : comm(of), stream(c10::cuda::getStreamFromPool(true, device)) {}

  // What the current stream was given comes before what this one is given next.
  void follow_current() {
    Event now;
    now.record(c10::cuda::getCurrentCUDAStream(stream.device_index()));
    now.hold(stream);
  }
};

// What a communicator and its operations share.
class Lane {
 public:
  struct Operated;

  Lane(ncclComm_t collectives, ncclComm_t messages, c10::DeviceIndex on, CommOptions with)
      : device(on), options(std::move(with)), collective(collectives, on), message(messages, on) {
    must(ncclCommUserRank(collectives, &rank), "the rank", collectives);
    must(ncclCommCount(collectives, &size), "the number of ranks", collectives);
    const c10::cuda::CUDAStreamGuard ours(collective.stream);
    token = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(at::kCUDA, device));
  }

  // After what is still under way, or its deadline: what was dropped goes on.
  ~Lane() {
    for (const auto& work : {last_collective, last_message}) {
      try {
        if (work) hold_host(*work);
      } catch (const std::exception&) {
        // It had its chance to be heard.
      }
    }
    if (broken) return;  // aborted
    ncclCommDestroy(message.comm);
    ncclCommDestroy(collective.comm);
  }

  std::shared_ptr<Operated> issue(Operation operation, const CommCall& call);
  void launch_messages();          // under the mutex
  void hold_host(Operated& work);  // until it is over; throws what went wrong
  bool over(Operated& work);
  void fail(const std::exception_ptr& why);  // under the mutex

  c10::DeviceIndex device;
  CommOptions options;
  Channel collective, message;
  int rank = 0, size = 1;
  Ledger ledger;
  at::Tensor token;  // what a barrier sums

  std::mutex mutex;  // calls of NCCL, and all below
  std::exception_ptr broken;
  struct Message {
    Piece piece;
    std::size_t count = 0;
    DataType type = DataType::u8;
    int peer = 0;
    std::shared_ptr<Operated> work;
  };
  std::vector<Message> collected;
  std::shared_ptr<Operated> last_collective, last_message;

 private:
  void check(Channel& channel, const Operated& work);
};

struct Lane::Operated {
  Operated(Operation what, std::string why, Deadline by)
      : operation(what), tag(std::move(why)), deadline(by) {}

  Operation operation;
  std::string tag;
  Deadline deadline;
  bool launched = false;     // under Lane::mutex
  std::exception_ptr error;  // likewise
  std::shared_ptr<Event> end = std::make_shared<Event>();

  bool message() const { return operation == Operation::send || operation == Operation::receive; }
  std::string describe(const Lane& lane) const {
    return fmt::format("{} (NCCL, rank {} of {}){}", name(operation), lane.rank, lane.size,
                       tag.empty() ? "" : fmt::format(", tag \"{}\",", tag));
  }
};

std::shared_ptr<Lane::Operated> Lane::issue(Operation operation, const CommCall& call) {
  const auto timeout = call.timeout.count() > 0
                           ? call.timeout
                           : std::chrono::duration_cast<Deadline::Clock::duration>(
                                 std::chrono::duration<double>(options.timeout));
  return std::make_shared<Operated>(operation, call.tag, Deadline::in(timeout));
}

// Aborts both: a rank that is gone is gone for messages, too. Under the mutex.
void Lane::fail(const std::exception_ptr& why) {
  if (broken) return;
  broken = why;
  collected.clear();
  ncclCommAbort(message.comm);
  ncclCommAbort(collective.comm);
}

void Lane::launch_messages() {
  if (collected.empty() || broken) return;
  const c10::cuda::CUDAStreamGuard ours(message.stream);
  auto messages = std::exchange(collected, {});
  const auto what = messages.front().work->describe(*this);
  try {
    must(ncclGroupStart(), what, message.comm);
    for (auto& one : messages) {
      if (one.count == 0) continue;
      must(one.work->operation == Operation::send
               ? ncclSend(one.piece.data(), one.count, nccl_type(one.type), one.peer, message.comm,
                          message.stream)
               : ncclRecv(one.piece.data(), one.count, nccl_type(one.type), one.peer, message.comm,
                          message.stream),
           what, message.comm);
    }
    must(ncclGroupEnd(), what, message.comm);
    for (auto& one : messages) one.piece.finish();
    for (auto& one : messages) {
      one.work->end->record(message.stream);
      one.work->launched = true;
    }
    last_message = messages.back().work;
  } catch (...) {
    fail(std::current_exception());
  }
}

// Under the mutex.
void Lane::check(Channel& channel, const Operated& work) {
  if (broken) std::rethrow_exception(broken);
  try {
    ncclResult_t asynchronous = ncclSuccess;
    must(ncclCommGetAsyncError(channel.comm, &asynchronous), work.describe(*this), channel.comm);
    if (asynchronous != ncclInProgress) must(asynchronous, work.describe(*this), channel.comm);
    if (work.deadline.expired()) throw Timeout(work.describe(*this) + " reached its deadline");
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

bool Lane::over(Operated& work) {
  {
    const std::lock_guard lock(mutex);
    launch_messages();
    if (work.error) std::rethrow_exception(work.error);
    // An aborted kernel ends, too: its event means nothing.
    if (broken) std::rethrow_exception(work.error = broken);
    if (!work.launched) return false;
  }
  if (work.end->reached()) {
    // NCCL may have ended its kernel because of an error.
    const std::lock_guard lock(mutex);
    ncclResult_t asynchronous = ncclSuccess;
    if (broken) std::rethrow_exception(work.error = broken);
    Channel& channel = work.message() ? message : collective;
    if (ncclCommGetAsyncError(channel.comm, &asynchronous) == ncclSuccess &&
        asynchronous == ncclSuccess)
      return true;
    check(channel, work);
    return true;
  }
  const std::lock_guard lock(mutex);
  check(work.message() ? message : collective, work);
  return false;
}

void Lane::hold_host(Operated& work) {
  const c10::cuda::CUDAGuard guard(device);
  for (int round = 0; !over(work); ++round) {
    if (round < 2000)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(round / 100, 200)));
  }
}

class NcclOperand final : public Operand {
 public:
  NcclOperand(std::shared_ptr<Lane> lane, std::shared_ptr<Lane::Operated> work, int from)
      : lane_(std::move(lane)), work_(std::move(work)), from_(from) {}

  bool done() override {
    if (finished_) return true;
    const c10::cuda::CUDAGuard guard(lane_->device);
    finished_ = lane_->over(*work_);
    return finished_;
  }

  void wait() override {
    {
      const c10::cuda::CUDAGuard guard(lane_->device);
      const auto current = c10::cuda::getCurrentCUDAStream(lane_->device);
      {
        const std::lock_guard lock(lane_->mutex);
        lane_->launch_messages();
        if (work_->launched) work_->end->hold(current);
      }
      cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
      must(cudaStreamIsCapturing(current, &recording), "say whether a stream is recorded");
      if (recording != cudaStreamCaptureStatusNone) return;
    }
    if (finished_) return;
    lane_->hold_host(*work_);
    finished_ = true;
  }

  int source() override { return from_; }

 private:
  std::shared_ptr<Lane> lane_;
  std::shared_ptr<Lane::Operated> work_;
  int from_;
  bool finished_ = false;
};

// Both halves of a communicator of these ranks; nullptr where this rank takes no part. Collective.
std::shared_ptr<Lane> split_lane(ncclComm_t of, int colour, int key, c10::DeviceIndex device,
                                 const CommOptions& options) {
  const int group = colour < 0 ? NCCL_SPLIT_NOCOLOR : colour;
  ncclComm_t parts[2] = {};
  for (auto& part : parts) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ncclResult_t result = ncclCommSplit(of, group, key, &part, &config);
    while (result == ncclInProgress) {  // an adopted one may not block
      sched_yield();
      must(ncclCommGetAsyncError(of, &result), "split", of);
    }
    must(result, "split", of);
  }
  return parts[0] ? std::make_shared<Lane>(parts[0], parts[1], device, options) : nullptr;
}

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
  Ledger& ledger() override { return lane_->ledger; }

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

  // NCCL splits where nothing is under way.
  std::shared_ptr<Communicator> split(int colour, int key) override {
    barrier({.tag = "split"}).wait();
    std::unique_lock lock(lane_->mutex);
    if (const auto last = lane_->last_message) {
      lock.unlock();
      lane_->hold_host(*last);
      lock.lock();
    }
    const c10::cuda::CUDAGuard guard(lane_->device);
    auto lane = split_lane(comm(), colour, key, lane_->device, lane_->options);
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

  // call(rank, where its piece begins) for every piece that is not empty, as one group.
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

  // `out` is written back behind the operation. Without elements nothing is called.
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
        lane_->ledger.add(operation, options.tag, Algorithm::automatic, LinkKind::tcp, bytes);
      } catch (...) {
        lane_->fail(std::current_exception());  // comes out of the work
      }
    }
    return Work(std::make_shared<NcclOperand>(lane_, work, -1));
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
    lane_->ledger.add(operation, options.tag, Algorithm::automatic, LinkKind::tcp,
                      sends ? tensor.nbytes() : 0);
    return Work(std::make_shared<NcclOperand>(lane_, work, sends ? -1 : peer));
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
      std::make_shared<Lane>(comms[0], comms[1], device, options));
}

std::shared_ptr<Communicator> Communicator::adopt_nccl(ncclComm* comm, const CommOptions& options) {
  int device = 0, rank = 0;
  must(ncclCommCuDevice(comm, &device), "the device of an adopted communicator", comm);
  must(ncclCommUserRank(comm, &rank), "the rank in an adopted communicator", comm);
  const auto on = c10::DeviceIndex(device);
  const c10::cuda::CUDAGuard guard(on);
  return std::make_shared<NcclCommunicator>(split_lane(comm, 0, rank, on, options));
}

}  // namespace echelon
