// The backend "echelon" of torch.distributed: implements c10d's process group on the CPU with a
// Group.
//
// Collectives of one process group run one after another, in the order of their calls; sends and
// receives run concurrently. Each process group has its own endpoint, so that a failure in one does
// not affect another.
#pragma once

#include <torch/version.h>
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "python/work.h"

namespace echelon::python {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

class EchelonBackend final : public c10d::Backend {
 public:
  // Blocks until all ranks of the process group are connected.
  EchelonBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, Milliseconds timeout);
  ~EchelonBackend() override;

  const std::string getBackendName() const override { return "echelon"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}  // every rank counts from 0
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& back,
                            std::vector<std::int64_t>& there,
                            const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  // Rank 0 names the missing ranks. Uses the store, so that it works with a broken process group.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;

  // The calls in between become one work at the end.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& options, const int& rank,
                                    const int& size) override;

 private:
  template <class CallOptions_>
  WorkPointer start(c10d::OpType type, const char* title, std::optional<Tensors> inputs,
                    std::vector<Tensors> outputs, const CallOptions_& options,
                    CollectiveWork::Body body);
  WorkPointer post(c10::intrusive_ptr<MessageWork> work);
  WorkPointer noted(WorkPointer work);
  Milliseconds timeout_of(Milliseconds given) const;

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Options> options_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Lane> lane_ = std::make_shared<Lane>();
  std::atomic<std::uint64_t> sequence_ = 0;
  std::uint64_t monitored_ = 0;

  std::mutex mutex_;                                     // guards all below
  std::list<c10::intrusive_ptr<MessageWork>> messages_;  // in progress: their memory must stay
  bool coalescing_ = false;
  std::vector<WorkPointer> coalesced_;
};

}  // namespace echelon::python
