#include "python/work.h"

#include <fmt/format.h>

#include <utility>

#include "echelon/base/error.h"

namespace echelon::python {
namespace {

template <class Kind>
std::exception_ptr torch_error(const std::string& message) {
  return std::make_exception_ptr(Kind({__func__, __FILE__, std::uint32_t(__LINE__)}, message));
}

[[noreturn]] void throw_not_done_in(Milliseconds timeout) {
  std::rethrow_exception(torch_error<c10::DistBackendError>(fmt::format(
      "Operation timed out! It was not done within the {} ms given to wait()", timeout.count())));
}

c10::TypePtr type_of(const std::vector<Tensors>& outputs) {
  const auto list = c10::ListType::create(c10::TensorType::get());
  return outputs.size() > 1 ? c10::TypePtr(c10::ListType::create(list)) : c10::TypePtr(list);
}

c10::IValue value_of(const std::vector<Tensors>& outputs) {
  if (outputs.size() > 1) return outputs;
  return outputs.empty() ? Tensors{} : outputs[0];
}

}  // namespace

std::exception_ptr in_torch_terms(std::exception_ptr error, Milliseconds timeout) {
  try {
    std::rethrow_exception(error);
  } catch (const Timeout& one) {
    return torch_error<c10::DistBackendError>(
        fmt::format("{} (with a timeout of {} ms)", one.what(), timeout.count()));
  } catch (const InvalidArgument& one) {
    return torch_error<c10::Error>(one.what());
  } catch (const Error& one) {
    return torch_error<c10::DistBackendError>(one.what());
  } catch (...) {
    return error;
  }
}

at::Tensor one_piece(const at::Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg().contiguous();
}

CollectiveWork::CollectiveWork(About about, std::shared_ptr<Lane> lane)
    : Work(about.rank, about.type, about.title, about.inputs),
      about_(std::move(about)),
      lane_(std::move(lane)),
      future_(c10::make_intrusive<c10::ivalue::Future>(type_of(about_.outputs))) {
  about_.inputs.reset();  // only the profiler needs them
}

c10::intrusive_ptr<CollectiveWork> CollectiveWork::start(About about, std::shared_ptr<Lane> lane,
                                                         Body body, bool blocking) {
  auto work = c10::make_intrusive<CollectiveWork>(std::move(about), std::move(lane));
  work->job_ = std::make_shared<Lane::Job>();
  work->job_->run = [body = std::move(body), timeout = work->about_.timeout](bool patient) {
    const PlainTensors plain;
    body({.tag = "torch", .timeout = timeout, .patient = patient});
  };
  work->job_->finish = [work](std::exception_ptr error) { work->complete(std::move(error)); };
  work->lane_->submit(work->job_, blocking);
  return work;
}

// The future comes last, because its callbacks run here.
void CollectiveWork::complete(std::exception_ptr error) {
  if (error) error = in_torch_terms(error, about_.timeout);
  finish(error);
  if (error)
    future_->setError(error);
  else
    future_->markCompleted(value_of(about_.outputs));
}

bool CollectiveWork::wait(Milliseconds timeout) {
  if (timeout == kNoTimeout) {
    lane_->help(*job_);
  } else {
    std::unique_lock lock(mutex_);
    if (!cv_.wait_for(lock, timeout, [this] { return completed_; })) throw_not_done_in(timeout);
  }
  future_->waitAndThrow();
  return true;
}

Tensors CollectiveWork::result() {
  TORCH_CHECK(isCompleted(), "Work needs to be completed before calling result(): call wait()");
  TORCH_CHECK(about_.outputs.size() <= 1,
              "result() gives one list of tensors, and this work has several: use get_future()");
  return about_.outputs.empty() ? Tensors{} : about_.outputs[0];
}

MessageWork::MessageWork(int rank, c10d::OpType type, const char* title, at::Tensor tensor,
                         std::shared_ptr<Group> group, Milliseconds timeout, std::uint64_t sequence)
    : Work(rank, type, title, std::optional<Tensors>({tensor})),
      tensor_(std::move(tensor)),
      group_(std::move(group)),
      timeout_(timeout),
      sequence_(sequence) {
  const PlainTensors plain;
  memory_ = one_piece(tensor_);
}

// Keeps the memory for as long as the mailbox may touch it.
std::shared_ptr<const void> MessageWork::owner() const {
  return std::make_shared<at::Tensor>(memory_);
}

void MessageWork::send(int to, std::uint64_t tag) {
  ticket_ = group_->send(memory_.const_data_ptr(), memory_.nbytes(), to, tag,
                         {.tag = "torch", .timeout = timeout_, .owner = owner()});
}

void MessageWork::receive(int from, std::uint64_t tag) {
  ticket_ = group_->receive(
      memory_.mutable_data_ptr(), memory_.nbytes(), from, tag,
      {.tag = "torch", .timeout = Deadline::Clock::duration::max(), .owner = owner()});
}

void MessageWork::finish_once(std::exception_ptr error) {
  const std::lock_guard once(finishing_);
  if (Work::isCompleted()) return;
  if (!error && !ticket_->sends && !memory_.is_same(tensor_)) {
    const PlainTensors plain;
    tensor_.copy_(memory_);
  }
  finish(error ? in_torch_terms(error, timeout_) : nullptr);
}

bool MessageWork::settled() {
  if (Work::isCompleted()) return true;
  try {
    if (!group_->done(ticket_)) return false;
    finish_once(nullptr);
  } catch (const std::exception&) {
    finish_once(std::current_exception());
  }
  return true;
}

bool MessageWork::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

bool MessageWork::wait(Milliseconds timeout) {
  if (!settled()) {
    // A receive may have been posted long before; its deadline starts with wait().
    if (!ticket_->sends)
      group_->set_deadline(ticket_, Deadline::in(timeout == kNoTimeout ? timeout_ : timeout));
    try {
      group_->wait(ticket_);
      finish_once(nullptr);
    } catch (const std::exception&) {
      finish_once(std::current_exception());
    }
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  return true;
}

int MessageWork::sourceRank() const { return ticket_->peer; }

bool CoalescedWork::isCompleted() {
  for (const auto& work : works_)
    if (!work->isCompleted()) return false;
  return true;
}

bool CoalescedWork::isSuccess() const {
  for (const auto& work : works_)
    if (!work->isSuccess()) return false;
  return true;
}

bool CoalescedWork::wait(Milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

Tensors CoalescedWork::result() {
  Tensors all;
  for (const auto& work : works_)
    for (auto& tensor : work->result()) all.push_back(std::move(tensor));
  return all;
}

}  // namespace echelon::python
