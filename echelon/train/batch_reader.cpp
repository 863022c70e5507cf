#include "echelon/train/batch_reader.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace echelon {

using Clock = std::chrono::steady_clock;

BatchReader::BatchReader(Read read, const Options& options)
    : read_(std::move(read)), options_(options) {
  if (options_.ahead > 0)
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
}

BatchReader::~BatchReader() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  to_read_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void BatchReader::read_into(Slot& slot) const {
  try {
    slot.prepared = read_(slot.request);
  } catch (...) {
    slot.failure = std::current_exception();
  }
}

std::shared_ptr<BatchReader::Slot> BatchReader::first_expected() const {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [](const auto& slot) {
    return slot->state == Slot::State::expected;
  });
  return found == slots_.end() ? nullptr : *found;
}

void BatchReader::work() {
  const at::NoGradGuard no_grad;  // as in the loop
  const MemoryContext::Join counted(memory_);
  std::unique_lock lock(mutex_);
  for (;;) {
    std::shared_ptr<Slot> slot;
    to_read_.wait(lock, [&] { return ends_ || (!paused_ && (slot = first_expected())); });
    if (ends_) return;
    slot->state = Slot::State::under_way;
    ++reading_;
    lock.unlock();
    read_into(*slot);
    lock.lock();
    slot->state = Slot::State::done;
    --reading_;
    was_read_.notify_all();
  }
}

// Waking threads costs time, so that they are woken only once half of the batches have been taken.
void BatchReader::expect_after(Request request) {
  if (std::int64_t(slots_.size()) > options_.ahead / 2) return;
  if (!slots_.empty()) request = slots_.back()->request;
  while (std::int64_t(slots_.size()) < options_.ahead && ++request.step < options_.steps) {
    slots_.push_back(std::make_shared<Slot>());
    slots_.back()->request = request;
  }
  to_read_.notify_all();
}

BatchReader::Prepared BatchReader::take(const Request& request) {
  std::unique_lock lock(mutex_);
  waited_from_ = waited_until_ = Clock::now();
  paused_ = false;
  if (!slots_.empty() && slots_.front()->request != request) slots_.clear();
  std::shared_ptr<Slot> slot;
  if (slots_.empty()) {
    // Only then are following requests expected, so that a single thread at a time reads.
    lock.unlock();
    slot = std::make_shared<Slot>();
    slot->request = request;
    read_into(*slot);
    lock.lock();
    waited_until_ = Clock::now();
  } else {
    slot = slots_.front();
    if (slot->state != Slot::State::done) {
      to_read_.notify_all();  // after a pause
      was_read_.wait(lock, [&] { return slot->state == Slot::State::done; });
      waited_until_ = Clock::now();
    }
    slots_.pop_front();
  }
  if (slot->failure) std::rethrow_exception(slot->failure);
  if (!threads_.empty()) expect_after(request);
  return std::move(slot->prepared);
}

void BatchReader::pause() {
  std::unique_lock lock(mutex_);
  paused_ = true;
  was_read_.wait(lock, [this] { return reading_ == 0; });
}

}  // namespace echelon
