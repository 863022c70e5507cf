// A parameter server: owns a range of the flat buffer with its optimiser state, takes gradients for
// it and gives out its values. Several share the buffer; the first of them also keeps the clock
// table (who computes what) and the order of updates, so that all apply the same ones.
//
//   ParameterServer server({…}, bind, net, token);
//   …the addresses of all servers are exchanged…
//   server.start(addresses);      // takes workers from now on
//   server.wait();                // until the job's workers have said goodbye
//
// An update is the sum of a step's shares in the order of the shares, whoever sent them and
// whenever, so sync and bounded with staleness 0 give the same bits every time. A share is computed
// on one version of the parameters, the same on all servers: the newest when it was handed out,
// which every server keeps until it was read (snapshots.h). A gradient that is older than the
// bound, or not finite, is refused, and the worker named; so is one for another range or type.
// Nothing that was refused is applied.
//
// A worker that dies or stays silent for server.patience is dropped, and its share goes to another;
// should it come back, it is told so. In sync mode the job ends instead, with PeerLost or Timeout
// naming it. One may join at any time, as a guest of the job: nobody waits for guests, and what
// steers a job (its beginning, its state, its end, the order of updates) is not theirs to ask for.
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
    int index = 0;                // among the servers
    int shares = 1;               // that a step's batch is cut into
    std::int64_t steps = 1;       // that the rate's schedule is for
    std::int64_t end = 0;         // the step after which the servers are done; 0: the last
    std::int64_t save_every = 0;  // steps between states that the first worker writes
    double timeout = 60;          // of a transfer
    std::string name = "a parameter server";
    std::string first = "the first parameter server";  // its name
    // Throws InvalidArgument where the options of a worker that joins are not the job's.
    std::function<void(const std::string& options)> check_guest = {};
    // For ranks that otherwise reduce among themselves: none of them can be done without, and a
    // gradient that is not finite ends the servers' work in place of the job, with the state
    // before.
    bool async_phase = false;
  };

  // What a job begins with: from the first worker. A server keeps tensors that nobody else has.
  struct Beginning {
    at::ScalarType type = at::kFloat;  // of parameters and gradients as they travel
    std::int64_t version = 0;          // updates that were applied before
    double updates = 0;                // those that changed anything
    std::vector<UpdateRange> ranges;   // within this server's part
    std::vector<at::Tensor> state;     // as SliceUpdate::state, this server's part
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
    std::string failure;            // why the work ended before its time; empty: it did not
    std::vector<std::string> lost;  // workers that died or were dropped so far, and why
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
  enum class Part { rank, guest };  // one of the job's own workers, or one that came by itself
  int join(const std::string& name, Part part = Part::rank);
  int join_here(const std::string& name);  // a worker in this process, which leave() ends
  // No share once there were `until` updates: who wants to see the parameters after exactly so many
  // of a synchronous job begins nothing further.
  Next next(int worker, std::size_t seen, std::int64_t until = ClockTable::unbounded);
  void done(int worker, const Task& task, double loss);
  // With what it had undone; `why`: it failed.
  void leave(int worker, const std::string& why = "");
  // The first server: what to read to see all servers' parameters after the same updates, at least
  // so many.
  Task newest(int worker, std::int64_t at_least,
              ClockTable::Reads what = ClockTable::Reads::values);
  // Elements [begin, end) of this server's masters, of the version that such a task names. All
  // servers keep it until the worker asks the first for another task.
  at::Tensor masters(const Task& task, std::int64_t begin, std::int64_t end);
  // Of the task's version. `worker` is -1 on servers that keep no count of them, here and in
  // push(). Throws InvalidArgument for a task that it was not given; servers that do not know
  // keep no more for guests than a job can have waiting.
  at::Tensor pull(int worker, const Task& task, Part part = Part::rank);
  // Takes the gradient over, one for each task.
  void push(int worker, const std::string& from, const Task& task, double weight, at::Tensor grad,
            Part part = Part::rank);
  // Shows the state after exactly so many updates; its tensors are the server's own, which no
  // update changes meanwhile.
  void show_state(std::int64_t version, const std::function<void(const Beginning&)>& show);
  void saved(std::int64_t version);
  void stop();                           // finishes the steps that were begun
  void abandon(const std::string& why);  // does not

  // What the first worker is told when it asks what this process took of memory.
  void report_memory(std::function<std::string()> words);
  std::string memory_report() const;

  const Ledger& ledger() const { return ledger_; }
  const MemoryContext& memory() const { return memory_; }  // the account of what it keeps

  std::int64_t version() const;  // updates that were applied

  // Of values, as they travel; and of all that is kept for them between updates.
  std::uint64_t owned_bytes() const;
  std::uint64_t held_bytes() const;

 private:
  enum class Role { stranger, rank, guest, server };
  struct Connection {
    std::unique_ptr<Peer> peer;  // null once it has left
    std::thread thread;
    Role role = Role::stranger;  // until it has said who it is
    bool first = false;          // it is the first worker's
    bool waited_for = false;     // the end of the job waits until it has left
    bool ended = false;          // the thread has nothing more to do
    int worker = -1;
  };
  struct Arrival {
    Task task;
    Part part = Part::rank;  // whose
    at::Tensor grad = {};
    double weight = 0;
    at::Tensor read = {};  // what it was computed on, where that is needed
  };
  using Lock = std::unique_lock<std::mutex>;
  // Between looks at whether to stop.
  static constexpr auto a_moment = std::chrono::milliseconds(200);

  static Part part_of(const Connection& one) {
    return one.role == Role::guest ? Part::guest : Part::rank;
  }
  void welcome(std::unique_ptr<Stream> stream, const Frame& first);
  void reap();  // threads of connections that have ended; not with mutex_
  void serve(Connection& connection, const Frame& first);
  void introduce(Connection& connection, const Frame& hello);
  void answer(Connection& connection, const Frame& request);
  void require_role(const Connection& connection, const Frame& request) const;
  void answer_push(Connection& connection, const Frame& request);
  void answer_begin(Connection& connection, const Frame& request);
  void lose(int worker, const std::string& why);  // empty: it left as it should
  void fail(std::exception_ptr why);              // with mutex_
  void check() const;                             // with mutex_: throws what has failed
  void require_alive(int worker) const;
  // With mutex_. The first server knows who has which task; the others know a task by its number,
  // and bound what guests may leave there.
  void require_its_own(int worker, const Task& task) const;
  void require_room(const Task& task, Part part) const;
  bool needs_all_workers() const {
    return setup_.server.mode == ServerMode::sync || setup_.async_phase;
  }
  // With mutex_:
  void shut_if(const std::function<bool(const Connection&)>& whom);
  int waited_for() const;  // ranks of the job and servers that have not left
  int guests() const;
  template <class Ready>
  void wait_until(Lock& lock, Deadline deadline, const char* what, Ready ready);
  [[noreturn]] void fail_to_see(const char* what) const;
  Deadline transfer() const { return Deadline::in_seconds(setup_.timeout); }

  // The thread that applies updates.
  void run();
  void take_beginning(Beginning beginning);
  std::optional<Complete> next_in_order(std::int64_t update);
  std::vector<Arrival> take_arrivals(const Complete& step);
  // The square of the norm of all gradients, and what workers have in hand that may be of the
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
  at::Tensor kept_masters(const Task& task) const;  // with mutex_; undefined: none
  void require_soon(Lock& lock, std::int64_t version);
  void look_for_silent_workers();  // with mutex_
  double patience() const;         // likewise, in seconds

  Setup setup_;
  NetOptions net_;
  Token token_;
  Address address_;
  Ledger ledger_;
  MemoryContext memory_;
  std::unique_ptr<Peer> first_;  // the first server, on the others
  std::string all_addresses_;

  mutable std::mutex mutex_;  // all below
  std::condition_variable changed_;
  std::exception_ptr failed_;
  bool stopping_ = false;
  std::function<std::string()> memory_words_ = [] { return std::string(); };
  int servers_ = 0;                     // of the job; 0: not started
  std::optional<Beginning> beginning_;  // until the thread has taken it
  int begun_by_ = -1;                   // the worker that brought it, which shows and saves
  std::int64_t now() const { return snapshots_.version(); }
  std::unique_ptr<SliceUpdate> update_;
  at::ScalarType type_ = at::kFloat;
  std::int64_t numel_ = 0;
  Snapshots snapshots_;
  // Before they were updated, by the number of the task that reads them. Only where they are wider
  // than the values, which are in snapshots_.
  std::map<std::int64_t, at::Tensor> masters_;
  std::map<std::int64_t, Arrival> arrivals_;  // by the number of their task
  std::set<std::int64_t> done_;               // steps that were applied lately
  // The first server's:
  std::unique_ptr<ClockTable> table_;
  // The others may have applied the next update already: no task is handed out before this one has.
  bool applying_ = false;
  std::map<int, Deadline::Clock::time_point> since_;  // when a worker was given its task
  std::map<int, Deadline::Clock::time_point> asked_;  // when a worker that waits began to
  double task_seconds_ = 0;                           // that a share takes, of late
  double longest_task_ = 0;                           // seconds, of all that were done
  bool stop_asked_ = false;
  std::map<int, std::string> dropped_;  // workers, and what they are told
  std::vector<std::string> lost_;
  Deadline::Clock::time_point began_ = Deadline::Clock::now();
  std::map<std::int64_t, std::vector<double>> losses_;     // by step, then share
  std::map<std::int64_t, std::map<int, double>> squares_;  // by update, then server
  std::vector<Applied> applied_;
  std::string failure_;
  int ranks_ = 0;       // of the job, that came
  int here_ = 0;        // workers in this process that have not left
  bool ended_ = false;  // no update is to come
  std::list<Connection> connections_;

  std::mutex update_mutex_;  // update_, from begin() on; before mutex_
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
