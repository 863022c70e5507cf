// NCCL operations under way, the basis of the NCCL communicator (nccl.cpp). Needs nccl.h, which
// users of Echelon need not have: private to this component.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

// nccl.h includes CUDA's small float headers but uses nothing from them. They need CCCL's
// <nv/target>, which the wheels beside torch do not contain.
#if !__has_include(<nv/target>)
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#endif
#include <nccl.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/collective/call.h"
#include "echelon/comm/communicator.h"

namespace echelon::nccl {

// Throw Error, or PeerLost and InvalidArgument for some NCCL results. `comm` may be null; with it,
// NCCL gives a better reason.
void must(cudaError_t result, const char* what);
void must(ncclResult_t result, const std::string& what, ncclComm_t comm);

ncclDataType_t nccl_type(DataType type);
ncclRedOp_t nccl_op(DataType type, ReduceOp op);

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

// A tensor as one contiguous piece of our device's memory: itself, or a copy that finish() writes
// back. Both copies run on the stream that is current at that time. The memory is not reused before
// `stream` is past it.
class Piece {
 public:
  enum Use { read, write, both };

  Piece() = default;
  Piece(const at::Tensor& tensor, Use use, const c10::cuda::CUDAStream& stream);

  std::byte* data() const {
    return dense_.defined() ? static_cast<std::byte*>(dense_.data_ptr()) : nullptr;
  }
  void finish() {
    if (back_) original_.copy_(dense_, true);
  }

 private:
  static void keep(const at::Tensor& tensor, const c10::cuda::CUDAStream& stream);
  at::Tensor original_, dense_;
  bool back_ = false;
};

// A NCCL communicator with its stream. We own it and end it.
struct Channel {
  ncclComm_t comm = nullptr;
  c10::cuda::CUDAStream stream;

  explicit Channel(ncclComm_t of, c10::DeviceIndex device)
      : comm(of), stream(c10::cuda::getStreamFromPool(true, device)) {}

  // Orders the next work of this stream after the work queued so far on the current stream.
  void follow_current() {
    Event now;
    now.record(c10::cuda::getCurrentCUDAStream(stream.device_index()));
    now.hold(stream);
  }
};

// State that a communicator shares with its operations.
class Lane {
 public:
  struct Operated;

  Lane(ncclComm_t collectives, ncclComm_t messages, c10::DeviceIndex on, CommOptions with,
       std::shared_ptr<Ledger> in);

  // Waits for operations under way, or their deadlines: dropped work still completes.
  ~Lane();

  std::shared_ptr<Operated> issue(Operation operation, const CommCall& call);
  void launch_messages();          // under the mutex
  void hold_host(Operated& work);  // until the work is over; throws its error
  bool over(Operated& work);
  void fail(const std::exception_ptr& why);  // under the mutex

  c10::DeviceIndex device;
  CommOptions options;
  Channel collective, message;
  int rank = 0, size = 1;
  std::shared_ptr<Ledger> ledger;  // shared by all communicators split from one
  at::Tensor token;                // the tensor that a barrier sums

  std::mutex mutex;  // guards NCCL calls and everything below
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
  std::string describe(const Lane& lane) const;  // for errors
};

// The Work of an operation. `from` is the rank that a receive names.
Work make_work(std::shared_ptr<Lane> lane, std::shared_ptr<Lane::Operated> operated, int from = -1);

// Both channels of a communicator of these ranks; nullptr if this rank is not a member. Collective.
std::shared_ptr<Lane> split_lane(ncclComm_t of, int colour, int key, c10::DeviceIndex device,
                                 const CommOptions& options, std::shared_ptr<Ledger> ledger);

}  // namespace echelon::nccl
