// A rank's connection to its job: it knows every other rank, shares memory with those on its host,
// and learns within moments when one of them is lost.
//
//   auto endpoint = Endpoint::join(read_environment(), options);
//
// Control connections (control_network.h) stay open from start to end: to every rank of the same
// host (Unix sockets), and to all or some ranks of other hosts (TCP). They carry the descriptor of
// a neighbour's heap, reports of long waits, the reason why a rank gives up, and goodbyes; a
// connection that ends without a goodbye means that the rank is lost. Data streams are opened on
// first use.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "echelon/net/acceptor.h"
#include "echelon/net/control_network.h"
#include "echelon/net/frame.h"
#include "echelon/net/health.h"
#include "echelon/net/host.h"
#include "echelon/net/job_environment.h"
#include "echelon/net/launcher_report.h"
#include "echelon/net/options.h"
#include "echelon/net/peer_info.h"
#include "echelon/net/rendezvous.h"
#include "echelon/net/shared_heap.h"
#include "echelon/net/stream.h"

namespace echelon {

class Endpoint {
 public:
  // Joins the job through the rendezvous given by the environment.
  static std::shared_ptr<Endpoint> join(const JobEnvironment& environment,
                                        const NetOptions& options);
  static std::shared_ptr<Endpoint> join(const JobEnvironment& environment,
                                        const NetOptions& options, const Token& token);

  // The numeric address that this rank listens on.
  static std::string listening_address(const JobEnvironment& environment,
                                       const NetOptions& options);

  // Joins through any exchange of peer info. `bind` is the numeric address to listen on.
  Endpoint(int rank, int world, const std::string& bind, const NetOptions& options,
           const Token& token, const PeerInfoExchange& exchange);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }
  const NetOptions& options() const { return options_; }
  const PeerInfo& peer_info(int rank) const { return peer_infos_[std::size_t(rank)]; }
  // The number of cores that those of these ranks have together which are on this machine.
  int cores(const std::vector<int>& ranks) const;
  bool have_cores(const std::vector<int>& ranks) const;  // at least one core per rank
  // Whether memory can be shared with this rank.
  bool near(int rank) const;
  int process(int rank) const;  // its pid in this process's namespace; 0 if unknown

  SharedHeap& heap() { return *heap_; }
  const std::shared_ptr<SharedHeap>& heap_owner() const { return heap_; }
  const HeapMapping& heap(int rank) const;  // of a near rank, or one's own

  // The purpose of connections, and their group: both sides must name the same.
  struct Purpose {
    std::uint64_t channel;
    std::uint64_t group = 0;  // opening fails if the other rank gives up in this group
    int count = 1;            // number of connections
  };
  std::vector<std::unique_ptr<Stream>> open(int rank, const Purpose& purpose, Deadline deadline);
  // Like open(), but returns nothing if the other rank has to connect and has not done so yet.
  std::optional<std::vector<std::unique_ptr<Stream>>> try_open(int rank, const Purpose& purpose,
                                                               Deadline deadline);

  Health& health() { return *health_; }
  // Tells `ranks` that this rank gives up in a group, and why. Does not throw.
  void give_up(const std::vector<int>& ranks, std::uint64_t group,
               const std::exception& error) noexcept;
  // Tells `ranks` that this rank has been waiting for a while. Does not throw.
  void tell_wait(const std::vector<int>& ranks, const Health::Wait& wait) noexcept;
  // Checks in the background whether a rank that this one waits for is still there. Does not wait
  // and does not throw.
  void ask_after(int rank) noexcept;
  std::size_t control_connections() const { return network_->connections(); }

 private:
  // job, rank, channel, index
  using Key = std::tuple<std::uint64_t, int, std::uint64_t, std::uint64_t>;

  std::vector<Listener> listen(const std::string& bind, PeerInfo& mine);
  void check_peer_infos(const std::string& bind) const;
  void require_files_for(int linked, int near, int far) const;
  void require_files_for_links() const;
  void welcome(std::unique_ptr<Stream> stream, const Frame& first);
  static bool is_on_demand(const Key& key);
  void add_on_demand(int rank, std::unique_ptr<Stream> stream);
  bool has_control(int rank) const;
  void connect_controls(Deadline deadline);
  void connect_all(const std::vector<int>& ranks, const std::function<void(int)>& connect);
  void look_at_assembly();
  std::unique_ptr<Stream> reach(int rank);
  std::unique_ptr<Stream> connect(int rank, const Purpose& purpose, int index, Deadline deadline);
  std::unique_ptr<Stream> introduce(Descriptor socket, int rank, const Purpose& purpose, int index,
                                    bool local, Deadline deadline);
  void prepare(Stream& stream, int rank, const Purpose& purpose) const;
  Key key_of(int rank, const Purpose& purpose, int index) const;
  std::unique_ptr<Stream> take(int rank, const Purpose& purpose, int index, Deadline deadline);

  int rank_, world_;
  NetOptions options_;
  Token token_;
  std::shared_ptr<SharedHeap> heap_;
  std::vector<PeerInfo> peer_infos_;
  std::unique_ptr<Health> health_;
  std::unique_ptr<ControlNetwork> network_;
  std::vector<std::shared_ptr<HeapMapping>> heaps_;
  std::vector<int> processes_;
  LauncherReport report_;

  std::mutex assembly_mutex_;                    // the next two
  std::shared_ptr<Assembly> assembly_;           // while ranks connect
  std::exception_ptr assembly_error_;            // the error that it threw
  std::atomic<bool> connecting_failed_ = false;  // to one of them

  std::mutex filed_mutex_;  // the next three, and job_
  std::condition_variable filed_changed_;
  std::map<Key, std::unique_ptr<Stream>> filed_;
  bool takes_on_demand_ = false;      // the network takes control connections opened on demand
  std::optional<std::uint64_t> job_;  // this job, once the peer info is known

  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace echelon
