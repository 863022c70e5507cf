// A parameter server: owns a range of the flat buffer with its optimiser state, takes gradients for
// it and gives out its values. Several share the buffer; the first of them also keeps the clock
// table (who computes what) and the order of updates, so that all apply the same ones.
//
//   ParameterServer server({…}, bind, net, token);
//   …the addresses of all servers are exchanged…
//   server.start(addresses);      // takes workers from now on
//   server.wait();                // until the last worker has said goodbye
//
// An update is the sum of a step's shares in the order of the shares, whoever sent them and
// whenever, so sync and bounded with staleness 0 give the same bits every time. A gradient that is
// older than the bound, or not finite, is refused, and the worker named; so is one for another
// range or type. Nothing that was refused is applied.
//
// A worker that dies or stays silent for server.patience is dropped, and its share goes to another;
// in sync mode the job ends instead, with PeerLost or Timeout naming it. One may join at any time.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/collective/ledger.h"
#include "echelon/net/acceptor.h"
#include "echelon/net/options.h"
#include "echelon/optim/slice_update.h"
#include "echelon/parallel/server/clock_table.h"
#include "echelon/parallel/server/options.h"
#include "echelon/parallel/server/peer.h"
#include "echelon/parallel/server/slices.h"

namespace echelon {

class ParameterServer {
 public:
  struct Setup {
    ServerOptions server;
    OptimOptions optim;
    int index = 0;                // among the servers
    int shares = 1;               // that a step's batch is cut into
    std::int64_t steps = 1;       // that the rate's schedule is for
    std::int64_t end = 0;         // the step after which the servers are done; 0: the last
    std::int64_t save_every = 0;  // steps between states that the first worker writes
    double timeout = 60;          // of a transfer
    std::string name = "a parameter server";
    // Throws InvalidArgument where the options of a worker that joins are not the job's.
    std::function<void(const std::string& options)> check_guest = {};
    // For ranks that otherwise reduce among themselves: none of them can be done without, and a
    // gradient that is not finite ends the servers' work in place of the job, with the state
    // before.
    bool spell = false;
  };

  // What a job begins with: from the first worker.
  struct Beginning {
    at::ScalarType type = at::kFloat;  // of parameters and gradients as they travel
    std::int64_t version = 0;          // updates that were applied before
    double updates = 0;                // those that changed anything
    std::vector<UpdateRange> ranges;   // within this server's part
    std::vector<at::Tensor> state;     // as SliceUpdate::state, this server's part
  };

  struct Values {
    at::Tensor values;
    std::int64_t version = 0;
  };

  // An update that was applied.
  struct Applied {
    std::int64_t clock = 0;
    double loss = 0, norm = 0, rate = 0;
    std::vector<std::int64_t> ages;  // of the shares' gradients, in updates
  };

  struct Next {
    std::optional<Task> task;
    bool finished = false;
    std::vector<Applied> applied;  // since the caller's last question
    std::int64_t version = 0;
    std::string spoiled;  // why the work ended before its time; empty: it did not
  };

  ParameterServer(Setup setup, const std::string& bind, const NetOptions& net, const Token& token);
  ~ParameterServer();
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  const Address& address() const { return address_; }
  int shares() const { return setup_.shares; }
  void start(const std::vector<Address>& servers);
  void wait();  // throws what ended the job before its end

  // What connections ask for, and a worker in the same process directly.
  void begin(Beginning beginning, int worker);
  int join(const std::string& name);
  Next next(int worker, std::size_t seen);
  void done(int worker, const Task& task, double loss);
  void leave(int worker);  // with what it had undone
  Values pull(std::int64_t at_least, const Task& task);
  void push(const std::string& from, const Task& task, std::int64_t version, double weight,
            at::Tensor grad);
  // After exactly so many updates.
  Beginning state(std::int64_t version);
  void saved(std::int64_t version);
  void stop();                           // finishes the steps that were begun
  void abandon(const std::string& why);  // does not

  const Ledger& ledger() const { return ledger_; }

  // Of values, as they travel; and of all that is kept for them between updates.
  std::uint64_t owned_bytes() const;
  std::uint64_t held_bytes() const;

 private:
  struct Connection {
    std::unique_ptr<Peer> peer;
    std::thread thread;
    bool here = false, first = false;  // it has not left; it is the first worker's
    int worker = -1;
  };
  struct Arrival {
    at::Tensor grad;
    std::int64_t version = 0;
    double weight = 0;
  };
  using Lock = std::unique_lock<std::mutex>;
  // Between looks at whether to stop.
  static constexpr auto a_moment = std::chrono::milliseconds(200);

  void welcome(std::unique_ptr<Stream> stream, const Frame& first);
  void serve(Connection& connection, const Frame& first);
  bool answer(Connection& connection, const Frame& request);  // false: it said goodbye
  void answer_push(Peer& peer, const Frame& request);
  void answer_begin(Connection& connection, const Frame& request);
  void lose(int worker, const std::string& why);
  void fail(std::exception_ptr why);  // with mutex_
  void check() const;                 // with mutex_: throws what has failed
  void require_alive(int worker) const;
  bool needs_all_workers() const { return setup_.server.mode == "sync" || setup_.spell; }
  void shut_if(const std::function<bool(const Connection&)>& whom);  // not with mutex_
  template <class Ready>
  void wait_until(Lock& lock, Deadline deadline, const char* what, Ready ready);
  [[noreturn]] void fail_to_see(const char* what) const;
  Deadline transfer() const { return Deadline::in_seconds(setup_.timeout); }

  // The thread that applies updates.
  void run();
  void take_beginning(const Beginning& beginning);
  std::optional<std::int64_t> next_in_order(std::int64_t update);
  double whole_norm(std::int64_t update, double square);
  double sum_squares(std::int64_t update, int server, double square);
  at::Tensor sum(const std::vector<Arrival>& shares, std::int64_t clock);
  void look_for_silent_workers(Lock& lock);

  Setup setup_;
  NetOptions net_;
  Token token_;
  Address address_;
  Ledger ledger_;
  std::unique_ptr<Peer> first_;  // the first server, on the others

  mutable std::mutex mutex_;  // all below
  std::condition_variable changed_;
  std::exception_ptr failed_;
  bool stopping_ = false;
  int servers_ = 1;
  std::optional<Beginning> beginning_;  // until the thread has taken it
  int begun_by_ = -1;                   // the worker that brought it, which shows and saves
  std::unique_ptr<SliceUpdate> update_;
  at::ScalarType type_ = at::kFloat;
  at::Tensor published_;  // never written: who holds it may go on reading
  std::int64_t version_ = 0;
  std::map<std::int64_t, std::vector<Arrival>> rounds_;      // by step, then share
  std::set<std::int64_t> done_;                              // steps that were applied lately
  std::map<std::pair<std::int64_t, int>, at::Tensor> read_;  // what a share was computed on
  // The first server's:
  std::unique_ptr<ClockTable> table_;
  std::map<int, Deadline::Clock::time_point> since_;  // when a worker was given its task
  std::map<int, Deadline::Clock::time_point> asked_;  // when a worker that waits began to
  double task_seconds_ = 0;                           // that a share takes, of late
  Deadline::Clock::time_point began_ = Deadline::Clock::now();
  std::map<std::int64_t, std::vector<double>> losses_;     // by step, then share
  std::map<std::int64_t, std::map<int, double>> squares_;  // by update, then server
  std::vector<Applied> applied_;
  std::string spoiled_;
  int present_ = 0;     // workers, and on the first server other servers, that have not left
  bool ended_ = false;  // no update is to come

  std::mutex update_mutex_;  // update_, from begin() on
  std::mutex connections_mutex_;
  std::deque<Connection> connections_;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
};

template <class Ready>
void ParameterServer::wait_until(Lock& lock, Deadline deadline, const char* what, Ready ready) {
  while (!ready()) {
    check();
    if (deadline.expired()) fail_to_see(what);
    changed_.wait_for(lock, std::min<Deadline::Clock::duration>(deadline.remaining(), a_moment));
  }
  check();
}

}  // namespace echelon
