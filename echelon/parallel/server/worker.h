// A worker's side of the parameter servers: asks what to compute, fetches parameters into the flat
// buffer of values, and hands over the flat buffer of gradients.
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
// Every call throws PeerLost when a server is gone, Timeout, or what the servers say has failed.
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
    std::vector<OwnedRange> ranges;       // by server; together all of the flat buffer
    std::string name;                     // "rank 2 on node7 (pid 4711)"
    ParameterServer* local = nullptr;     // the one in this process, which needs no connection
    int local_index = -1;
    double timeout = 60;
    double connect_timeout = 60;
    std::string options = {};  // of a guest, which must be the job's (ParameterServer::Setup)
    std::shared_ptr<Exchange> exchange = plain_exchange();  // that gradients go through
  };

  ServerWorker(Setup setup, const NetOptions& net, const Token& token,
               const std::vector<FlatUnit>& units, at::Tensor values, at::Tensor grads,
               Ledger& ledger);
  // Says goodbye; where an exception ends it, that it failed.
  ~ServerWorker();
  ServerWorker(const ServerWorker&) = delete;
  ServerWorker& operator=(const ServerWorker&) = delete;

  // The first worker, once: what training begins with. Flat buffers as MasterUpdate::state has
  // them.
  void begin(const std::vector<SliceUpdate::State>& state, std::int64_t version, double updates);

  int shares() const { return shares_; }  // that a step's batch is cut into

  ParameterServer::Next next(std::int64_t until = ClockTable::unbounded);
  // The parameters that a task is to be computed on, of one version on all servers.
  void pull(const Task& task);
  // The newest parameters, likewise of one version: after at least so many updates.
  void pull_newest(std::int64_t at_least);
  // The first worker: names a version, after at least so many updates, whose masters all servers
  // keep until the next call of next(), pull_newest() or pin().
  Task pin(std::int64_t at_least);
  // Of that version, the masters from element `begin` of the flat buffer on: as many as fit.
  void read_masters(const Task& pinned, std::int64_t begin, const at::Tensor& into);
  // `weight` is the share of the global batch that the gradient is of.
  void push(const Task& task, double weight);
  void done(const Task& task, double loss);

  // Fills flat buffers with the state after exactly so many updates: no step may be under way
  // (save_every, finished). Gives the updates that changed anything.
  double fetch_state(const std::vector<SliceUpdate::State>& state, std::int64_t version);
  // By server, what its process took of memory so far (ParameterServer::report_memory).
  std::vector<std::string> memory_reports();
  void saved(std::int64_t version);
  void stop();                           // finishes the steps that were begun
  void abandon(const std::string& why);  // does not

 private:
  void deliver(std::size_t server, const Task& task, double weight, const at::Tensor& slice);
  // fn(server) for all at once.
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
  int exceptions_ = 0;    // under way when it was made
  std::size_t seen_ = 0;  // updates told of
};

}  // namespace echelon
