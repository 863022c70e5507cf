#include "echelon/comm/lane_nccl.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "echelon/base/error.h"

namespace echelon::nccl {

void must(cudaError_t result, const char* what) {
  if (result != cudaSuccess)
    throw Error(fmt::format("CUDA cannot {}: {}", what, cudaGetErrorString(result)));
}

void must(ncclResult_t result, const std::string& what, ncclComm_t comm) {
  if (result == ncclSuccess) return;
  const char* const words = comm ? ncclGetLastError(comm) : nullptr;
  const auto message = fmt::format("{}: NCCL says {}{}{}", what, ncclGetErrorString(result),
                                   words && *words ? ": " : "", words ? words : "");
  if (result == ncclRemoteError) throw PeerLost(message);
  if (result == ncclInvalidArgument || result == ncclInvalidUsage) throw InvalidArgument(message);
  throw Error(message);
}

ncclDataType_t nccl_type(DataType type) {
  // In the order of DataType. A bool is a byte of 0 or 1.
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

Piece::Piece(const at::Tensor& tensor, Use use, const c10::cuda::CUDAStream& stream)
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

void Piece::keep(const at::Tensor& tensor, const c10::cuda::CUDAStream& stream) {
  if (tensor.numel())
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream);
}

Lane::Lane(ncclComm_t collectives, ncclComm_t messages, c10::DeviceIndex on, CommOptions with,
           std::shared_ptr<Ledger> in)
    : device(on),
      options(std::move(with)),
      collective(collectives, on),
      message(messages, on),
      ledger(std::move(in)) {
  must(ncclCommUserRank(collectives, &rank), "the rank", collectives);
  must(ncclCommCount(collectives, &size), "the number of ranks", collectives);
  const c10::cuda::CUDAStreamGuard ours(collective.stream);
  token = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(at::kCUDA, device));
}

Lane::~Lane() {
  for (const auto& work : {last_collective, last_message}) {
    try {
      if (work) hold_host(*work);
    } catch (const std::exception&) {
      // The caller could have waited for the error.
    }
  }
  if (broken) return;  // aborted
  ncclCommDestroy(message.comm);
  ncclCommDestroy(collective.comm);
}

std::string Lane::Operated::describe(const Lane& lane) const {
  return fmt::format("{} (NCCL, rank {} of {}){}", name(operation), lane.rank, lane.size,
                     tag.empty() ? "" : fmt::format(", tag \"{}\"", tag));
}

std::shared_ptr<Lane::Operated> Lane::issue(Operation operation, const CommCall& call) {
  const auto timeout = call.timeout.count() > 0
                           ? call.timeout
                           : std::chrono::duration_cast<Deadline::Clock::duration>(
                                 std::chrono::duration<double>(options.timeout));
  return std::make_shared<Operated>(operation, call.tag, Deadline::in(timeout));
}

// Aborts both channels: a rank that is gone is gone for messages, too. Under the mutex.
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
    // An aborted kernel also ends, so its event means nothing.
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

namespace {

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
    follow();
    cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
    must(cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(lane_->device), &recording),
         "say whether a stream is recorded");
    if (finished_ || recording != cudaStreamCaptureStatusNone) return;
    lane_->hold_host(*work_);
    finished_ = true;
  }

  void follow() override {
    const c10::cuda::CUDAGuard guard(lane_->device);
    const std::lock_guard lock(lane_->mutex);
    lane_->launch_messages();
    if (work_->launched) work_->end->hold(c10::cuda::getCurrentCUDAStream(lane_->device));
  }

  int source() override { return from_; }

 private:
  std::shared_ptr<Lane> lane_;
  std::shared_ptr<Lane::Operated> work_;
  int from_;
  bool finished_ = false;
};

}  // namespace

Work make_work(std::shared_ptr<Lane> lane, std::shared_ptr<Lane::Operated> operated, int from) {
  return Work(std::make_shared<NcclOperand>(std::move(lane), std::move(operated), from));
}

std::shared_ptr<Lane> split_lane(ncclComm_t of, int colour, int key, c10::DeviceIndex device,
                                 const CommOptions& options, std::shared_ptr<Ledger> ledger) {
  const int group = colour < 0 ? NCCL_SPLIT_NOCOLOR : colour;
  ncclComm_t parts[2] = {};
  for (auto& part : parts) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ncclResult_t result = ncclCommSplit(of, group, key, &part, &config);
    while (result == ncclInProgress) {  // an adopted communicator may be non-blocking
      sched_yield();
      must(ncclCommGetAsyncError(of, &result), "split", of);
    }
    must(result, "split", of);
  }
  if (!parts[0]) return nullptr;
  return std::make_shared<Lane>(parts[0], parts[1], device, options, std::move(ledger));
}

}  // namespace echelon::nccl
