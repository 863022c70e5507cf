// Work on items by several threads, with the results in the order of the items:
//
//   OrderedWork<Batch> work(threads,
//                           [&](Batch& batch) { return source.next(batch); },  // false: no more
//                           [&](Batch& batch) { encode(batch); });             // by any thread
//   while (Batch* batch = work.next()) write(*batch);
//
// Items are made and taken by the thread that calls next(), and 4 for each thread are under way at
// most, so the memory does not depend on their number. Items are used again. With one thread, all
// happens in next().
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace echelon {

template <class Item>
class OrderedWork {
 public:
  OrderedWork(int threads, std::function<bool(Item&)> make, std::function<void(Item&)> work)
      : make_(std::move(make)), work_(std::move(work)) {
    if (threads < 2) return;
    limit_ = std::size_t(4 * threads);
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  OrderedWork(const OrderedWork&) = delete;
  OrderedWork& operator=(const OrderedWork&) = delete;
  ~OrderedWork() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    to_do_.notify_all();
  }

  // The next item when it is done; valid until the next call. nullptr: there are no more. Throws
  // what making this item or working on it has thrown.
  Item* next() {
    if (given_) spare_.push_back(std::move(given_));
    while (!ended_ && order_.size() < limit_) add();
    if (order_.empty()) return nullptr;
    given_ = std::move(order_.front());
    order_.pop_front();
    if (threads_.empty()) {
      if (!given_->error) finish(*given_);
    } else {
      std::unique_lock lock(mutex_);
      done_.wait(lock, [&] { return given_->done; });
    }
    if (given_->error) std::rethrow_exception(given_->error);
    return &given_->item;
  }

 private:
  struct Slot {
    Item item = {};
    bool done = false;
    std::exception_ptr error = {};
  };

  // An exception comes in the order of the items, too: what comes first is reported.
  void add() {
    auto slot = spare_.empty() ? std::make_unique<Slot>() : std::move(spare_.back());
    if (!spare_.empty()) spare_.pop_back();
    slot->done = false;
    try {
      ended_ = !make_(slot->item);
      if (ended_) return;
    } catch (...) {
      slot->error = std::current_exception();
      slot->done = ended_ = true;
    }
    Slot* const added = slot.get();
    order_.push_back(std::move(slot));
    if (threads_.empty() || added->done) return;
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(added);
    }
    to_do_.notify_one();
  }

  void finish(Slot& slot) {
    try {
      work_(slot.item);
    } catch (...) {
      slot.error = std::current_exception();
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      to_do_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
      if (stopped_) return;
      Slot& slot = *queue_.front();
      queue_.pop_front();
      lock.unlock();
      finish(slot);
      lock.lock();
      slot.done = true;
      done_.notify_one();
    }
  }

  std::function<bool(Item&)> make_;
  std::function<void(Item&)> work_;
  std::size_t limit_ = 1;
  bool ended_ = false;
  std::unique_ptr<Slot> given_;
  std::deque<std::unique_ptr<Slot>> order_;
  std::vector<std::unique_ptr<Slot>> spare_;

  std::mutex mutex_;  // guards what follows, and Slot::done
  std::condition_variable to_do_, done_;
  std::deque<Slot*> queue_;
  bool stopped_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace echelon
