// c10d's Work: an operation of a process group in progress.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "echelon/collective/group.h"
#include "python/lane.h"

namespace echelon::python {

using Milliseconds = std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;

// Converts an Echelon error to the one that Python expects of torch: DistBackendError, or a plain
// RuntimeError for a mistake of the caller. The message stays.
std::exception_ptr in_torch_terms(std::exception_ptr error, Milliseconds timeout);

// A collective. Its future holds the outputs; wait() without a timeout may run it.
class CollectiveWork final : public c10d::Work {
 public:
  struct About {
    int rank;
    c10d::OpType type;
    const char* title;  // in the profiler
    std::optional<Tensors> inputs;
    std::vector<Tensors> outputs;
    std::uint64_t sequence;
    Milliseconds timeout;
  };
  using Body = std::function<void(const CallOptions&)>;

  CollectiveWork(About about, std::shared_ptr<Lane> lane);
  static c10::intrusive_ptr<CollectiveWork> start(About about, std::shared_ptr<Lane> lane,
                                                  Body body, bool blocking);

  bool isCompleted() override { return future_->completed(); }
  bool wait(Milliseconds timeout) override;
  Tensors result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::uint64_t getSequencenumber() const override { return about_.sequence; }

 private:
  void complete(std::exception_ptr error);

  About about_;
  std::shared_ptr<Lane> lane_;
  std::shared_ptr<Lane::Job> job_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A send or a receive. The deadline of a receive starts with wait(): it may be posted long before
// the other side sends.
class MessageWork final : public c10d::Work {
 public:
  MessageWork(int rank, c10d::OpType type, const char* title, at::Tensor tensor,
              std::shared_ptr<Group> group, Milliseconds timeout, std::uint64_t sequence);
  void send(int to, std::uint64_t tag);
  void receive(int from, std::uint64_t tag);

  // Whether the message is done or has failed: its memory will not be accessed any more.
  bool settled();

  bool isCompleted() override { return settled(); }
  bool isSuccess() const override;
  bool wait(Milliseconds timeout) override;
  int sourceRank() const override;
  Tensors result() override { return {tensor_}; }
  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  std::shared_ptr<const void> owner() const;
  void finish_once(std::exception_ptr error);

  at::Tensor tensor_, memory_;  // the same if the tensor is contiguous
  std::shared_ptr<Group> group_;
  Group::Ticket ticket_;
  Milliseconds timeout_;
  std::uint64_t sequence_;
  std::mutex finishing_;
};

// Combines several works.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}
  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(Milliseconds timeout) override;
  Tensors result() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

// While it lives, tensor operations of this thread only copy memory: autograd, inference mode and
// Python's dispatch modes are off.
class PlainTensors {
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard without_python_{c10::python_ks};
};

// The tensor itself if it is contiguous, otherwise a contiguous copy.
at::Tensor one_piece(const at::Tensor& tensor);

}  // namespace echelon::python
