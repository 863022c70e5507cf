// Ranks as threads that pass tensors in memory: messages and sums, for tests that create thousands
// of worlds.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/comm/communicator.h"

namespace echelon {

class InProcess final : public Communicator {
 public:
  struct World {
    explicit World(int ranks) : size(ranks) {}
    int size;
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::tuple<int, int, std::uint64_t>, std::vector<at::Tensor>> mail;  // from, to, tag
    std::vector<at::Tensor> summands;
    std::size_t round = 0;
    at::Tensor sum;
  };

  InProcess(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}

  const char* backend() const override { return "in process"; }
  int rank() const override { return rank_; }
  int size() const override { return world_->size; }

  Work send(at::Tensor tensor, int to, std::uint64_t tag, const CommCall&) override {
    const std::lock_guard lock(world_->mutex);
    world_->mail[{rank_, to, tag}].push_back(tensor.clone());
    world_->changed.notify_all();
    return {};
  }
  Work receive(at::Tensor tensor, int from, std::uint64_t tag, const CommCall&) override {
    return Work(std::make_shared<Receive>(world_, std::tuple{from, rank_, tag}, tensor));
  }
  Work all_reduce(at::Tensor tensor, ReduceOp, const CommCall&) override {
    std::unique_lock lock(world_->mutex);
    const auto round = world_->round;
    world_->summands.push_back(tensor.clone());
    if (int(world_->summands.size()) == world_->size) {
      world_->sum = world_->summands[0];
      for (std::size_t r = 1; r < world_->summands.size(); ++r) world_->sum += world_->summands[r];
      world_->summands.clear();
      ++world_->round;
      world_->changed.notify_all();
    } else {
      wait(lock, *world_, [&] { return world_->round != round; });
    }
    tensor.copy_(world_->sum);
    return {};
  }

  Work reduce_scatter(at::Tensor, at::Tensor, ReduceOp, const CommCall&,
                      std::vector<std::size_t>) override {
    throw Error("messages and sums alone");
  }
  Work all_gather(at::Tensor, at::Tensor, const CommCall&, std::vector<std::size_t>) override {
    throw Error("messages and sums alone");
  }
  Work broadcast(at::Tensor, int, const CommCall&) override {
    throw Error("messages and sums alone");
  }
  Work reduce(at::Tensor, ReduceOp, int, const CommCall&) override {
    throw Error("messages and sums alone");
  }
  Work gather(at::Tensor, at::Tensor, int, const CommCall&) override {
    throw Error("messages and sums alone");
  }
  Work scatter(at::Tensor, at::Tensor, int, const CommCall&) override {
    throw Error("messages and sums alone");
  }
  Work all_to_all(at::Tensor, at::Tensor, const CommCall&, std::vector<std::size_t>,
                  std::vector<std::size_t>) override {
    throw Error("messages and sums alone");
  }
  Work barrier(const CommCall&) override { throw Error("messages and sums alone"); }
  std::shared_ptr<Communicator> split(int, int) override { throw Error("messages and sums alone"); }
  Ledger& ledger() override { return ledger_; }

 private:
  template <class Until>
  static void wait(std::unique_lock<std::mutex>& lock, World& world, const Until& until) {
    if (!world.changed.wait_for(lock, std::chrono::seconds(20), until))
      throw Timeout("ranks wait for each other");
  }

  class Receive final : public Operand {
   public:
    Receive(std::shared_ptr<World> world, std::tuple<int, int, std::uint64_t> from, at::Tensor to)
        : world_(std::move(world)), from_(from), to_(std::move(to)) {}
    bool done() override {
      wait();
      return true;
    }
    void wait() override {
      std::unique_lock lock(world_->mutex);
      if (taken_) return;
      auto& letters = world_->mail[from_];
      InProcess::wait(lock, *world_, [&] { return !letters.empty(); });
      to_.copy_(letters.front());
      letters.erase(letters.begin());
      taken_ = true;
    }

   private:
    std::shared_ptr<World> world_;
    std::tuple<int, int, std::uint64_t> from_;
    at::Tensor to_;
    bool taken_ = false;
  };

  std::shared_ptr<World> world_;
  int rank_;
  Ledger ledger_;
};

// Runs `body` on this many ranks; returns what each rank threw, empty if nothing.
inline std::vector<std::string> run_in_process(
    int ranks, const std::function<void(std::shared_ptr<Communicator>)>& body) {
  const auto world = std::make_shared<InProcess::World>(ranks);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        body(std::make_shared<InProcess>(world, r));
      } catch (const std::exception& error) {
        errors[std::size_t(r)] = error.what();
      }
    });
  threads.clear();
  return errors;
}

}  // namespace echelon
