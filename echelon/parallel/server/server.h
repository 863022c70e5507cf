// A parameter server: owns a range of the flat buffer with its optimiser state, receives gradients
// for this range and serves its values. Several servers divide the buffer. The first server also
// keeps the clock table (which worker computes what) and the order of updates, so that all servers
// apply the same updates.
//
//   ParameterServer server({…}, bind, net, token);
//   …the addresses of all servers are exchanged…
//   server.start(addresses);      // accepts workers from now on
//   server.wait();                // until the job's workers have said goodbye
//
// An update sums a step's shares in the order of their numbers, whichever worker sent them and
// whenever they arrived. So sync, and bounded with staleness 0, give the same bits every time. A
// share is computed on one version of the parameters, the same on all servers: the newest version
// when the share was handed out. Every server keeps this version until the worker has read it
// (snapshots.h). A gradient that is older than the bound, not finite, or for another range or type
// is rejected with an error that names the worker. No rejected gradient is applied.
//
// A worker that dies or stays silent for server.patience is dropped, and its share goes to another
// worker. If the dropped worker comes back, it is told so. In sync mode the job ends instead, with
// a PeerLost or Timeout that names the worker. A worker may join at any time as a guest of the job.
// No one waits for guests, and guests may not control the job: its start, its state, its end and
// the order of updates.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
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
#include "echelon/nn/memory.h"
#include "echelon/optim/slice_update.h"
#include "echelon/parallel/server/clock_table.h"
#include "echelon/parallel/server/options.h"
#include "echelon/parallel/server/peer.h"
#include "echelon/parallel/server/slices.h"
#include "echelon/parallel/server/snapshots.h"

namespace echelon {

class ParameterServer {
 public:
  struct Setup {
    ServerOptions server;
    OptimOptions optim;
    int index = 0;                // this server's number
    int shares = 1;               // shares that a step's batch is cut into
    std::int64_t steps = 1;       // length of the learning-rate schedule
    std::int64_t end = 0;         // the step after which the servers are done; 0: the last
    std::int64_t save_every = 0;  // steps between the states that the first worker saves
    double timeout = 60;          // of a transfer
    std::string name = "a parameter server";
    std::string first = "the first parameter server";  // the first server's name
    // Throws InvalidArgument if a joining worker's options differ from the job's.
    std::function<void(const std::string& options)> check_guest = {};
    // The servers serve an asynchronous phase of ranks that otherwise all-reduce. All ranks are
    // needed. A gradient that is not finite ends the phase instead of the job, and the state is the
    // one before that gradient's step.
    bool async_phase = false;
  };

  // The initial state of a job, from the first worker. A server keeps only tensors that nothing
  // else holds.
  struct Beginning {
    at::ScalarType type = at::kFloat;  // of parameters and gradients on the wire
    std::int64_t version = 0;          // updates applied before
    double updates = 0;                // updates that changed the parameters
    std::vector<UpdateRange> ranges;   // within this server's range
    std::vector<at::Tensor> state;     // as in SliceUpdate::state, this server's range
  };

  // An update that was applied.
  struct Applied {
    std::int64_t clock = 0;
    double loss = 0, norm = 0, rate = 0;
    std::vector<std::int64_t> ages;  // staleness of the shares' gradients, in updates
  };

  struct Next {
    std::optional<Task> task;
    bool finished = false;
    std::vector<Applied> applied;  // since the caller's last request
    std::int64_t version = 0;
    std::string failure;            // why the work ended early; empty: it did not
    std::vector<std::string> lost;  // workers that died or were dropped so far, with reasons
  };

  ParameterServer(Setup setup, const std::string& bind, const NetOptions& net, const Token& token);
  ~ParameterServer();
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  const Address& address() const { return address_; }
  int shares() const { return setup_.shares; }
  void start(const std::vector<Address>& servers);
  void wait();  // throws the error that ended the job early

  // Requests, from connections or directly from a worker in the same process.
  void begin(Beginning beginning, int worker);
  enum class Part { rank, guest };  // a worker of the job, or one that joined by itself
  int join(const std::string& name, Part part = Part::rank);
  int join_here(const std::string& name);  // a worker in this process; leave() ends it
  // Hands out no share once `until` updates are applied. A caller that needs the parameters of a
  // synchronous job after exactly `until` updates must not begin another step.
  Next next(int worker, std::size_t seen, std::int64_t until = ClockTable::unbounded);
  void done(int worker, const Task& task, double loss);
  // Gives back the worker's unfinished task. `why`: the worker failed.
  void leave(int worker, const std::string& why = "");
  // On the first server: the task to read in order to see the parameters of all servers at one
  // version, after at least `at_least` updates.
  Task newest(int worker, std::int64_t at_least,
              ClockTable::Reads what = ClockTable::Reads::values);
  // Elements [begin, end) of this server's masters, at the version that the task names. All servers
  // keep this version until the worker asks the first server for another task.
  at::Tensor masters(const Task& task, std::int64_t begin, std::int64_t end);
  // Values of the task's version. `worker` is -1 on servers that do not number workers, here and in
  // push(). Throws InvalidArgument for a task that the worker was not given. Servers that cannot
  // know this bound what they keep for guests by the most that a job can have waiting.
  at::Tensor pull(int worker, const Task& task, Part part = Part::rank);
  // Takes ownership of the gradient; one per task.
  void push(int worker, const std::string& from, const Task& task, double weight, at::Tensor grad,
            Part part = Part::rank);
  // Shows the state after exactly `version` updates. Its tensors are the server's own; no update
  // changes them during the call.
  void show_state(std::int64_t version, const std::function<void(const Beginning&)>& show);
  void saved(std::int64_t version);
  void stop();                           // finishes the steps that were begun
  void abandon(const std::string& why);  // abandons the steps that were begun

  // Sets the function that answers the first worker's request for this process's memory use.
  void report_memory(std::function<std::string()> words);
  std::string memory_report() const;

  const Ledger& ledger() const { return ledger_; }
  const MemoryContext& memory() const { return memory_; }  // the account of this server's memory

  std::int64_t version() const;  // updates applied

  // Bytes of the values as sent, and bytes of everything that is kept for them between updates.
  std::uint64_t owned_bytes() const;
  std::uint64_t held_bytes() const;

 private:
  enum class Role { stranger, rank, guest, server };
  struct Connection {
    std::unique_ptr<Peer> peer;  // null once the peer has left
    std::thread thread;
    Role role = Role::stranger;  // until the peer has said who it is
    bool first = false;          // of the first worker
    bool waited_for = false;     // the job does not end before this peer has left
    bool ended = false;          // the thread is about to exit
    int worker = -1;
  };
  struct Arrival {
    Task task;
    Part part = Part::rank;  // who sent it
    at::Tensor grad = {};
    double weight = 0;
    at::Tensor read = {};  // the values it was computed on, if they are needed
  };
  using Lock = std::unique_lock<std::mutex>;
  // The interval between checks of whether to stop.
  static constexpr auto a_moment = std::chrono::milliseconds(200);

  static Part part_of(const Connection& one) {
    return one.role == Role::guest ? Part::guest : Part::rank;
  }
  void welcome(std::unique_ptr<Stream> stream, const Frame& first);
  void reap();  // joins threads of ended connections; call without mutex_
  void serve(Connection& connection, const Frame& first);
  void introduce(Connection& connection, const Frame& hello);
  void answer(Connection& connection, const Frame& request);
  void require_role(const Connection& connection, const Frame& request) const;
  void answer_push(Connection& connection, const Frame& request);
  void answer_begin(Connection& connection, const Frame& request);
  void lose(int worker, const std::string& why);  // empty `why`: it left properly
  void fail(std::exception_ptr why);              // with mutex_
  void check() const;                             // with mutex_: throws the error that was recorded
  void require_alive(int worker) const;
  // With mutex_. The first server knows which worker has which task. The other servers know a task
  // by its number, and bound how many gradients guests may leave there.
  void require_its_own(int worker, const Task& task) const;
  void require_room(const Task& task, Part part) const;
  bool needs_all_workers() const {
    return setup_.server.mode == ServerMode::sync || setup_.async_phase;
  }
  // With mutex_:
  void shut_if(const std::function<bool(const Connection&)>& whom);
  int waited_for() const;  // the job's ranks and servers that have not left
  int guests() const;
  template <class Ready>
  void wait_until(Lock& lock, Deadline deadline, const char* what, Ready ready);
  [[noreturn]] void fail_to_see(const char* what) const;
  Deadline transfer() const { return Deadline::in_seconds(setup_.timeout); }

  // Runs on the thread that applies updates.
  void run();
  void take_beginning(Beginning beginning);
  std::optional<Complete> next_in_order(std::int64_t update);
  std::vector<Arrival> take_arrivals(const Complete& step);
  // The squared norm of all gradients, and the tasks held by workers that may still need the
  // parameters before this update.
  struct Agreed {
    double square = 0;
    std::vector<Task> held;
  };
  Agreed agree(std::int64_t update, double square);
  double sum_squares(std::int64_t update, int server, double square);
  at::Tensor sum(std::vector<Arrival> shares, std::int64_t update);
  void apply(at::Tensor grad, const Applied& applied, const std::vector<Task>& held);
  void keep_masters(const std::vector<Task>& held);
  at::Tensor kept_masters(const Task& task) const;  // with mutex_; undefined: none kept
  void require_soon(Lock& lock, std::int64_t version);
  void look_for_silent_workers();  // with mutex_
  double patience() const;         // likewise; in seconds

  Setup setup_;
  NetOptions net_;
  Token token_;
  Address address_;
  Ledger ledger_;
  MemoryContext memory_;
  std::unique_ptr<Peer> first_;  // connection to the first server, on the other servers
  std::string all_addresses_;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::exception_ptr failed_;
  bool stopping_ = false;
  std::function<std::string()> memory_words_ = [] { return std::string(); };
  int servers_ = 0;                     // in the job; 0: not started
  std::optional<Beginning> beginning_;  // until the update thread has taken it
  int begun_by_ = -1;                   // the first worker, which may read and save the state
  std::int64_t now() const { return snapshots_.version(); }
  std::unique_ptr<SliceUpdate> update_;
  at::ScalarType type_ = at::kFloat;
  std::int64_t numel_ = 0;
  Snapshots snapshots_;
  // Masters as they were before an update, by the number of the task that reads them. Used only if
  // masters are wider than the values, which are in snapshots_.
  std::map<std::int64_t, at::Tensor> masters_;
  std::map<std::int64_t, Arrival> arrivals_;  // by task number
  std::set<std::int64_t> done_;               // steps applied recently
  // Only on the first server:
  std::unique_ptr<ClockTable> table_;
  // Other servers may already have applied the update that this server is applying: no task is
  // handed out until this server has applied it too.
  bool applying_ = false;
  std::map<int, Deadline::Clock::time_point> since_;  // when each worker was given its task
  std::map<int, Deadline::Clock::time_point> asked_;  // when each waiting worker began to wait
  double task_seconds_ = 0;                           // recent average time per share
  double longest_task_ = 0;                           // seconds, over all finished tasks
  bool stop_asked_ = false;
  std::map<int, std::string> dropped_;  // workers, and the reason they are told
  std::vector<std::string> lost_;
  Deadline::Clock::time_point began_ = Deadline::Clock::now();
  std::map<std::int64_t, std::vector<double>> losses_;     // by step, then share
  std::map<std::int64_t, std::map<int, double>> squares_;  // by update, then server
  std::vector<Applied> applied_;
  std::string failure_;
  int ranks_ = 0;       // the job's ranks that have joined
  int here_ = 0;        // workers in this process that have not left
  bool ended_ = false;  // no further updates
  std::list<Connection> connections_;

  std::mutex update_mutex_;  // guards update_ from begin() on; lock before mutex_
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
