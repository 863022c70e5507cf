// A group of ranks, and the collectives among them over plain memory.
//
//   auto group = Group::world(Endpoint::join(read_environment(), net), comm);
//   group->all_reduce(DataType::f32, ReduceOp::sum, data, data, count, {.tag = "gradients"});
//
// Every call blocks until this rank is done, throws at its deadline, and must be made by all ranks
// of the group, in the same order and with the same sizes, types and tables: if they differ, all
// ranks get InvalidArgument, which says which rank called what. If a rank dies, the others get
// PeerLost. After an error a group is broken: `out` of the failed call is undefined (torn), `in` is
// intact if it is separate memory, and every later collective throws the same error. Other groups
// are not affected.
//
// A group is not thread-safe, but several groups can be used concurrently. Buffers from allocate()
// are registered: ranks of a host work on them in place, without a copy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/collective/call.h"
#include "echelon/collective/cost.h"
#include "echelon/collective/ledger.h"
#include "echelon/collective/mailbox.h"
#include "echelon/collective/messenger.h"
#include "echelon/collective/options.h"
#include "echelon/collective/plan.h"
#include "echelon/collective/shared_group.h"
#include "echelon/net/endpoint.h"

namespace echelon {

// Options of a single call.
struct CallOptions {
  std::string_view tag = {};  // its purpose, for the ledger and for errors
  Algorithm algorithm = Algorithm::automatic;
  Deadline::Clock::duration timeout = {};  // 0: that of the group
  bool patient = false;                    // do not spin: other work needs this core
  std::shared_ptr<const void> owner = {};  // keeps the buffer of a message alive until it is done
};

class LinkWatch;

class Group : public std::enable_shared_from_this<Group> {
 public:
  // All ranks of the job. Link figures come from the plan, or are measured by all ranks together.
  static std::shared_ptr<Group> world(std::shared_ptr<Endpoint> endpoint,
                                      const CommOptions& options);
  ~Group();

  int rank() const { return index_; }
  int size() const { return int(members_.size()); }
  const std::vector<int>& members() const { return members_; }  // ranks of the job
  const Shape& shape() const { return shape_; }

  // Ranks of one colour form a group, ordered by key and then by rank; ranks with a negative colour
  // get nullptr. Collective.
  std::shared_ptr<Group> split(int colour, int key);

  void all_reduce(DataType type, ReduceOp op, const void* in, void* out, std::size_t count,
                  const CallOptions& options = {});
  // in: all pieces, concatenated; out: this rank's piece, reduced. counts: elements by rank.
  void reduce_scatter(DataType type, ReduceOp op, const void* in, void* out,
                      std::span<const std::size_t> counts, const CallOptions& options = {});
  void all_gather(DataType type, const void* in, void* out, std::span<const std::size_t> counts,
                  const CallOptions& options = {});
  void broadcast(DataType type, void* data, std::size_t count, int root,
                 const CallOptions& options = {});
  void reduce(DataType type, ReduceOp op, const void* in, void* out, std::size_t count, int root,
              const CallOptions& options = {});
  void gather(DataType type, const void* in, void* out, std::span<const std::size_t> counts,
              int root, const CallOptions& options = {});
  void scatter(DataType type, const void* in, void* out, std::span<const std::size_t> counts,
               int root, const CallOptions& options = {});
  // there: elements for each rank, concatenated in `in`; back: elements from each, in `out`.
  void all_to_all(DataType type, const void* in, void* out, std::span<const std::size_t> there,
                  std::span<const std::size_t> back, const CallOptions& options = {});
  void barrier(const CallOptions& options = {});

  // Messages; see mailbox.h. May run concurrently with a collective in another thread.
  using Ticket = Mailbox::Ticket;
  static constexpr int anyone = Mailbox::anyone;
  Ticket send(const void* data, std::size_t bytes, int to, std::uint64_t tag,
              const CallOptions& options = {}, bool background = true);
  Ticket receive(void* data, std::size_t bytes, int from, std::uint64_t tag,
                 const CallOptions& options = {}, bool background = true);
  bool done(const Ticket& ticket) { return mailbox_->done(ticket); }
  void wait(const Ticket& ticket) { mailbox_->wait(ticket, spins_); }
  void set_deadline(const Ticket& ticket, Deadline deadline) {
    mailbox_->set_deadline(ticket, deadline);
  }

  // Registered memory, freed with its last owner.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // Measures the links again and chooses algorithms again. Collective.
  void measure_again();

  // The algorithm that a call of this size uses.
  Algorithm algorithm(Operation operation, std::size_t bytes) const;
  const Figures& figures() const { return plan_.figures; }
  // Whether large private buffers are read in place, if all ranks of the host can; the same value
  // on all ranks.
  void set_single_copy(bool wanted);
  bool can_single_copy() const { return can_expose_; }
  const Plan& plan() const { return plan_; }  // the measured figures and chosen algorithms

  Ledger& ledger() { return *ledger_; }
  Endpoint& endpoint() { return *endpoint_; }
  const CommOptions& options() const { return options_; }

 private:
  struct Private {};

 public:
  Group(Private, std::shared_ptr<Endpoint> endpoint, CommOptions options, std::vector<int> members,
        std::uint64_t id, std::shared_ptr<Ledger> ledger, std::shared_ptr<BlockStore> store,
        const std::vector<std::size_t>& blocks);

 private:
  void set_plan(const Plan& plan);
  void require_same_options();
  Plan read_plan();
  Messenger::Sent run_as_servers(const Call& call, bool spin);
  void tell_what_does_not_fit(const Plan& plan) const;
  void run(Call& call, const CallOptions& options);
  void run_alone(const Call& call);
  void run_hierarchical(const Call& call, bool spin);
  void run_checked(const Call& call, Algorithm algorithm, bool spin);
  void give_up(const std::exception& error);
  std::unique_ptr<Link> tcp_link(int rank, std::uint64_t channel, Deadline deadline);
  Link* lane_link(int member, int lane, Deadline deadline);
  std::unique_ptr<Link> mail_link(int member, Deadline deadline);
  std::size_t near_index(int member) const;
  std::size_t choice_bytes(const Call& call) const;

  std::shared_ptr<Endpoint> endpoint_;
  CommOptions options_;
  std::vector<int> members_;
  int index_ = 0;
  std::uint64_t id_;
  std::uint64_t scope_;  // the group in which its ranks give up: this one or its parent
  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<BlockStore> store_;
  Algorithm forced_;  // comm.algorithm
  Shape shape_;
  bool spins_ = false;

  std::unique_ptr<SharedGroup> shared_;  // with the members on this host, if there are any
  bool can_expose_ = false;              // these can read each other's memory
  std::vector<int> near_;                // the members on this host, as indices of the group
  std::unique_ptr<Messenger> messenger_;
  std::unique_ptr<Mailbox> mailbox_;
  std::map<std::pair<int, int>, std::unique_ptr<Link>> links_;  // by member and lane
  std::shared_ptr<Group> across_;  // the ranks of other hosts that own the same slice
  int slices_ = 1;                 // of the hierarchical algorithm

  Plan plan_;
  std::shared_ptr<LinkWatch> watch_;  // on rank 0 of a job that reuses figures

  std::mutex mutex_;  // the running call
  std::uint64_t number_ = 0;
  // The last calls by number, to be compared with reports of ranks that are behind.
  std::array<Health::Wait, 16> recent_ = {};
  std::uint64_t splits_ = 0;
  std::exception_ptr broken_;
};

}  // namespace echelon
