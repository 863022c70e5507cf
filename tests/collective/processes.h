// Ranks as real processes: forked before any thread is started, each reporting over a pipe.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "echelon/collective/group.h"
#include "echelon/net/rendezvous.h"
#include "tests/net/connection.h"

namespace echelon {

class Processes {
 public:
  using Body = std::function<void(std::shared_ptr<Group> group)>;
  struct Job {
    int world = 3;
    bool shared_memory = true;
    int control_mesh = 64;  // larger worlds have some control connections only
    double timeout = 60;  // also while the links are measured, which takes long on a loaded machine
    Token token = a_token();
    std::string name = "job";
  };

  // Starts the ranks; they meet at a free port of the loopback, which rank 0 inherits. Each child
  // runs `body` and reports what it came to; then it ends.
  Processes(const Job& job, const Body& body) {
    Descriptor listener = listen_tcp("127.0.0.1", 0);
    address_ = local_address(listener);
    std::fflush(nullptr);
    for (int rank = 0; rank < job.world; ++rank) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) throw Error(with_errno("pipe"));
      const pid_t child = fork();
      if (child < 0) throw Error(with_errno("fork"));
      if (child == 0) {
        reports_.clear();  // the others' pipes
        Descriptor report(ends[1]);
        close(ends[0]);
        run(job, rank, rank == 0 ? std::move(listener) : Descriptor(), body, report);
      }
      close(ends[1]);
      reports_.emplace_back(ends[0]);
      children_.push_back(child);
    }
  }

  ~Processes() {
    for (std::size_t rank = 0; rank < children_.size(); ++rank)
      if (children_[rank] > 0) {
        kill(children_[rank], SIGKILL);
        waitpid(children_[rank], nullptr, 0);
      }
  }
  Processes(const Processes&) = delete;

  pid_t process(int rank) const { return children_[std::size_t(rank)]; }
  const Address& address() const { return address_; }

  // The next line that a rank reported; "(nothing)" when it ended, "(late)" after half of a job's
  // time: a rank that waits for its deadline is late.
  std::string line(int rank) {
    std::string text;
    for (char c = 0;;) {
      pollfd ready = {reports_[std::size_t(rank)].get(), POLLIN, 0};
      if (poll(&ready, 1, 30'000) <= 0) return "(late)";
      if (read(ready.fd, &c, 1) != 1) return "(nothing)";
      if (c == '\n') return text;
      text += c;
    }
  }

  // From a child: a line for its parent.
  static void say(const std::string& text) {
    const std::string whole = text + "\n";
    if (write(said_to, whole.data(), whole.size()) < 0) _exit(3);
  }

 private:
  [[noreturn]] void run(const Job& job, int rank, Descriptor listener, const Body& body,
                        const Descriptor& report) {
    said_to = report.get();
    alarm(120);  // whatever happens, nothing stays behind
    const auto result = outcome([&] {
      NetOptions net;
      net.heap = 64 << 20;
      net.shared_memory = job.shared_memory;
      net.control_mesh = job.control_mesh;
      net.connect_timeout = 60;
      Rendezvous meeting{.rank = rank,
                         .world = job.world,
                         .address = address_,
                         .listener = std::move(listener),
                         .tls = false,
                         .token = job.token};
      auto endpoint = std::make_shared<Endpoint>(rank, job.world, "127.0.0.1", net, job.token,
                                                 [&](const std::string& info, Deadline deadline) {
                                                   return meeting.exchange(info, deadline);
                                                 });
      CommOptions comm;
      comm.timeout = job.timeout;
      body(Group::world(std::move(endpoint), comm));
    });
    say(result.kind + ": " + result.message);
    _exit(0);
  }

  inline static int said_to = -1;
  Address address_;
  std::vector<Descriptor> reports_;
  std::vector<pid_t> children_;
};

}  // namespace echelon
