// A worker's side of the parameter servers: asks what to compute, pulls parameters into the flat
// buffer of values, and pushes the flat buffer of gradients.
//
//   ServerWorker worker({…}, stack.units(), stack.values(), stack.grads(), ledger);
//   for (;;) {
//     const auto next = worker.next();
//     if (next.finished) break;
//     if (!next.task) continue;              // ask again: nothing may run right now
//     worker.pull(*next.task);
//     …forward, backward…
//     worker.push(*next.task, weight);
//     worker.done(*next.task, loss);
//   }
//
// Every call throws PeerLost if a server is gone, Timeout if it does not answer, or the failure
// that the servers report.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/collective/ledger.h"
#include "echelon/parallel/server/server.h"
#include "echelon/parallel/server/wire.h"
#include "echelon/step/exchange.h"

namespace echelon {

class ServerWorker {
 public:
  struct Setup {
    std::vector<Address> servers;
    std::vector<std::string> names = {};  // "parameter server 1 (rank 1)"; empty: by number
    std::vector<OwnedRange> ranges;       // by server; together they cover the flat buffer
    std::string name;                     // "rank 2 on node7 (pid 4711)"
    ParameterServer* local = nullptr;     // the server in this process, which needs no connection
    int local_index = -1;
    double timeout = 60;
    double connect_timeout = 60;
    std::string options = {};  // of a guest: must equal the job's (ParameterServer::Setup)
    std::shared_ptr<Exchange> exchange = plain_exchange();  // pushes and pulls go through it
  };

  ServerWorker(Setup setup, const NetOptions& net, const Token& token,
               const std::vector<FlatUnit>& units, at::Tensor values, at::Tensor grads,
               Ledger& ledger);
  // Says goodbye. If an exception destroys the worker, tells the servers that it failed.
  ~ServerWorker();
  ServerWorker(const ServerWorker&) = delete;
  ServerWorker& operator=(const ServerWorker&) = delete;

  // The first worker calls it once, with the initial state. Flat buffers as in MasterUpdate::state.
  void begin(const std::vector<SliceUpdate::State>& state, std::int64_t version, double updates);

  int shares() const { return shares_; }  // shares that a step's batch is cut into

  ParameterServer::Next next(std::int64_t until = ClockTable::unbounded);
  // Pulls the parameters that a task is computed on: the same version from all servers.
  void pull(const Task& task);
  // Pulls the newest parameters, the same version from all servers, after at least `at_least`
  // updates.
  void pull_newest(std::int64_t at_least);
  // First worker only: names a version, after at least `at_least` updates, whose masters all
  // servers keep until the next call of next(), pull_newest() or pin().
  Task pin(std::int64_t at_least);
  // Fills `into` with masters of the pinned version, from element `begin` of the flat buffer on.
  void read_masters(const Task& pinned, std::int64_t begin, const at::Tensor& into);
  // `weight` is the fraction of the step's targets that the gradient covers; of its samples, if all
  // have equally many targets.
  void push(const Task& task, double weight);
  void done(const Task& task, double loss);

  // Fills flat buffers with the state after exactly `version` updates. No step may be in progress
  // (save_every, finished). Returns how many updates changed the parameters.
  double fetch_state(const std::vector<SliceUpdate::State>& state, std::int64_t version);
  // The memory use of each server's process so far, by server (ParameterServer::report_memory).
  std::vector<std::string> memory_reports();
  void saved(std::int64_t version);
  void stop();                           // finishes the steps that were begun
  void abandon(const std::string& why);  // abandons the steps that were begun

 private:
  void fetch(std::size_t server, const Task& task, const at::Tensor& slice);
  void deliver(std::size_t server, const Task& task, double weight, const at::Tensor& slice,
               const std::string& tag);
  // Calls fn(server) for all servers concurrently.
  void on_all(const std::function<void(std::size_t)>& fn);
  bool local(std::size_t server) const { return int(server) == setup_.local_index; }
  Deadline transfer() const { return Deadline::in_seconds(setup_.timeout); }
  template <class T>
  T narrowed(const T& flat, std::size_t server) const {
    const auto& range = setup_.ranges[server];
    return flat.narrow(0, range.begin, range.numel());
  }

  Setup setup_;
  std::vector<FlatUnit> units_;
  at::Tensor values_, grads_;
  Ledger& ledger_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by server; nullptr for the local one
  std::vector<std::vector<wire::Matrix>> matrices_;
  int number_ = -1;  // in the clock table
  int shares_ = 1;
  int exceptions_ = 0;    // std::uncaught_exceptions() at construction
  std::size_t seen_ = 0;  // updates reported so far
};

}  // namespace echelon
