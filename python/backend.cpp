#include "python/backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <utility>

#include "python/join.h"

namespace echelon::python {
namespace {

const at::Tensor& message(const Tensors& tensors, int tag, const char* operation) {
  TORCH_CHECK(tensors.size() == 1, operation, " takes one tensor; got ", tensors.size());
  TORCH_CHECK(tensors[0].device().is_cpu() && tensors[0].layout() == at::kStrided, operation,
              ": backend echelon works on dense CPU tensors, not on ", tensors[0].toString());
  TORCH_CHECK(tag >= 0, operation, ": the tag must be nonnegative; got ", tag);
  return tensors[0];
}

}  // namespace

EchelonBackend::EchelonBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                               Milliseconds timeout)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(c10::make_intrusive<Options>("echelon", timeout)) {
  try {
    group_ = join(store_, rank, size, timeout);
  } catch (const std::exception&) {
    std::rethrow_exception(in_torch_terms(std::current_exception(), timeout));
  }
  init();
}

EchelonBackend::~EchelonBackend() {
  // The last owner is often a Python object; threads of the lane may want the GIL for callbacks.
  std::optional<pybind11::gil_scoped_release> without_gil;
  if (Py_IsInitialized() && PyGILState_Check()) without_gil.emplace();
  lane_->close();
  messages_.clear();
  group_.reset();
}

Milliseconds EchelonBackend::timeout_of(Milliseconds given) const {
  return given == c10d::kUnsetTimeout ? options_->timeout : given;
}

WorkPointer EchelonBackend::noted(WorkPointer work) {
  const std::lock_guard lock(mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

void EchelonBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const Milliseconds timeout = timeout_of(options.timeout);
  const Deadline deadline = Deadline::in(timeout);
  const auto arrives = [&](const std::string& key) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline.remaining());
    try {
      store_->wait({key}, std::max(left, Milliseconds(1)));
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  const auto key = [prefix = fmt::format("echelon/monitored/{}/", ++monitored_)](int rank) {
    return prefix + std::to_string(rank);
  };
  const std::vector<std::uint8_t> passed = {1}, failed = {0};
  store_->set(key(rank_), passed);
  if (rank_ != 0) {
    const bool told = arrives(key(size_));
    TORCH_CHECK(told && store_->get(key(size_)) == passed, "[Rank ", rank_, "]: Rank ", rank_,
                " successfully reached monitoredBarrier, but received errors while waiting for "
                "send/recv from rank 0. Please check rank 0 logs for faulty rank.");
    return;
  }
  std::vector<int> missing;
  std::string error;
  for (int rank = 1; rank < size_ && error.empty(); ++rank) {
    if (deadline.expired() && missing.empty()) {
      error = fmt::format(
          "Rank 0 timed out in monitoredBarrier after {} ms: it had still to wait for rank {}",
          timeout.count(), rank);
    } else if (!arrives(key(rank))) {
      missing.push_back(rank);
      if (!wait_all_ranks) break;
    }
  }
  if (!missing.empty())
    error = fmt::format("Rank{} {} failed to pass monitoredBarrier in {} ms",
                        missing.size() > 1 ? "s" : "", fmt::join(missing, ", "), timeout.count());
  store_->set(key(size_), error.empty() ? passed : failed);
  TORCH_CHECK(error.empty(), "[Rank 0]: ", error);
}

WorkPointer EchelonBackend::post(c10::intrusive_ptr<MessageWork> work) {
  {
    const std::lock_guard lock(mutex_);
    messages_.remove_if([](const auto& message) { return message->settled(); });
    messages_.push_back(work);
  }
  return noted(std::move(work));
}

WorkPointer EchelonBackend::send(Tensors& tensors, int to, int tag) {
  const at::Tensor tensor = message(tensors, tag, "send");
  auto work = c10::make_intrusive<MessageWork>(rank_, c10d::OpType::SEND, "echelon:send", tensor,
                                               group_, options_->timeout, sequence_);
  work->send(to, std::uint64_t(tag));
  return post(std::move(work));
}

WorkPointer EchelonBackend::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor tensor = message(tensors, tag, "recv");
  auto work = c10::make_intrusive<MessageWork>(rank_, c10d::OpType::RECV, "echelon:recv", tensor,
                                               group_, options_->timeout, sequence_);
  work->receive(from, std::uint64_t(tag));
  return post(std::move(work));
}

WorkPointer EchelonBackend::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor tensor = message(tensors, tag, "recv");
  auto work =
      c10::make_intrusive<MessageWork>(rank_, c10d::OpType::RECVANYSOURCE, "echelon:recvAnySource",
                                       tensor, group_, options_->timeout, sequence_);
  work->receive(Group::anyone, std::uint64_t(tag));
  return post(std::move(work));
}

void EchelonBackend::startCoalescing() {
  const std::lock_guard lock(mutex_);
  coalescing_ = true;
}

WorkPointer EchelonBackend::endCoalescing() {
  const std::lock_guard lock(mutex_);
  coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
}

c10::intrusive_ptr<c10d::Backend> EchelonBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  return merge(store, options, int(mine - ranks.begin()), int(ranks.size()));
}

c10::intrusive_ptr<c10d::Backend> EchelonBackend::merge(
    const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<Options>& options,
    const int& rank, const int& size) {
  auto made = c10::make_intrusive<EchelonBackend>(store->clone(), rank, size,
                                                  options ? options->timeout : options_->timeout);
  if (options) {
    made->options_->group_name = options->group_name;
    made->options_->global_ranks_in_group = options->global_ranks_in_group;
  }
  return made;
}

}  // namespace echelon::python
