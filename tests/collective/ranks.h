// Ranks as threads of one process: each with its own endpoint, real sockets and real shared memory.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "echelon/collective/group.h"
#include "echelon/net/endpoint.h"
#include "tests/net/connection.h"

namespace echelon {

struct Layout {
  int world = 2;
  int hosts = 1;              // ranks are dealt out to them in blocks
  bool shared_memory = true;  // false: every rank on a host of its own
  NetOptions net = {};
  CommOptions comm = {};
  std::function<void(int rank, NetOptions&, CommOptions&)> differ = {};  // where ranks shall
};

// Gives every rank the peer info of all.
class ThreadExchange {
 public:
  explicit ThreadExchange(int world) : infos_(std::size_t(world)) {}
  std::vector<std::string> operator()(int rank, const std::string& info) {
    std::unique_lock lock(mutex_);
    infos_[std::size_t(rank)] = info;
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return arrived_ == int(infos_.size()); });
    return infos_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> infos_;
  int arrived_ = 0;
};

// Runs `body` on every rank; gives what it came to on each.
inline std::vector<Outcome> run_outcomes(const Layout& layout,
                                         const std::function<void(Group&)>& body) {
  const Token token = Token::random();
  ThreadExchange exchange(layout.world);
  std::vector<Outcome> outcomes(std::size_t(layout.world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < layout.world; ++rank)
    threads.emplace_back([&, rank] {
      outcomes[std::size_t(rank)] = outcome([&] {
        NetOptions net = layout.net;
        net.heap = net.heap ? net.heap : 256 << 20;
        net.shared_memory = layout.shared_memory;
        net.host = "host" + std::to_string(rank * layout.hosts / layout.world);
        CommOptions comm = layout.comm;
        if (layout.differ) layout.differ(rank, net, comm);
        const auto endpoint = std::make_shared<Endpoint>(
            rank, layout.world, "127.0.0.1", net, token,
            [&](const std::string& info, Deadline) { return exchange(rank, info); });
        body(*Group::world(endpoint, comm));
      });
    });
  for (auto& thread : threads) thread.join();
  return outcomes;
}

// What each rank threw ("" for nothing).
inline std::vector<std::string> run_ranks(const Layout& layout,
                                          const std::function<void(Group&)>& body) {
  std::vector<std::string> errors;
  for (const auto& one : run_outcomes(layout, body)) errors.push_back(one.message);
  return errors;
}

inline void run_ranks_well(const Layout& layout, const std::function<void(Group&)>& body) {
  const auto errors = run_ranks(layout, body);
  for (std::size_t rank = 0; rank < errors.size(); ++rank)
    EXPECT_EQ(errors[rank], "") << "rank " << rank;
}

}  // namespace echelon
