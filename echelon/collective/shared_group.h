// Collectives among the ranks of one host, through memory that all of them map.
//
// Every rank has a block in its heap (shared_block.h): a line with the number of the last barrier
// it reached and a post that says what it is doing and where its buffers are, and two slots of
// staging memory. An operation begins with the post; when all are there everybody knows what each
// brought, and takes the same path:
//
//   direct      small vectors: each rank copies its own into its staging slot and reads those of
//               all. One barrier; (p-1) n bytes read by each.
//   registered  every buffer lies in a heap: each rank sums its slice of all and writes it to all,
//               with no copy. Two barriers; 2 ((p-1)/p) n bytes.
//   exposed     some buffers are private, but the system lets neighbours read them
//               (process_vm_readv): slices are read across, summed, and read back. Three barriers.
//   staged      otherwise, and for middle sizes: pieces go through the staging slots, the next one
//               being copied in while this one is summed. One barrier a piece, and one more.
//
// Two slots are enough: a rank that fills a slot again has seen everybody begin the piece between
// (by a barrier, or by `filled`), and nobody begins that before he is done with the piece before
// it. Barriers and pieces count up for ever, so a line has one writer and is never reset.
//
// Sums are taken in the order of the ranks: all ranks get the same bits, on every path.
//
// A rank whose operation failed withdraws: no neighbour then takes what it reads there for good,
// nor begins to write there; one may be in the middle of 32 KiB that it was writing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "echelon/collective/call.h"
#include "echelon/collective/shared_block.h"
#include "echelon/collective/waiting.h"
#include "echelon/net/endpoint.h"
#include "echelon/net/link.h"

namespace echelon {

class SharedGroup {
 public:
  // `members` are ranks of the job on one host, in the group's order; `blocks` the offsets of their
  // blocks in their heaps (the own one: from `store`).
  SharedGroup(Endpoint& endpoint, std::shared_ptr<BlockStore> store, std::vector<int> members,
              const std::vector<std::size_t>& blocks);
  ~SharedGroup();

  int size() const { return int(members_.size()); }
  int index() const { return index_; }

  // Whether private buffers of all members can be read in place; all members must agree on it.
  bool probe_exposure();  // what this rank can do
  void set_exposure(bool agreed) { exposure_ = agreed; }

  struct Result {
    std::uint64_t bytes;                      // payload of peers that this rank read or wrote
    Algorithm algorithm = Algorithm::shared;  // that was taken
  };
  // By shared_direct, by shared, or (automatic) by whichever suits size and buffers.
  Result run(const Call& call, Algorithm algorithm, bool spin);

  std::unique_ptr<Link> link(int member, int ring);

  // Sizes at which an all-reduce changes its path; the same on all ranks.
  struct Limits {
    std::size_t registered_from = 2 << 10;  // below, also registered buffers go the direct way
    std::size_t staged_from = 32 << 10;     // private buffers: below direct, from here on staged
    std::size_t exposed_from = 512 << 10;   // where agreed, private buffers are read in place
  };
  void set_limits(const Limits& limits) { limits_ = limits; }

 private:
  using Line = SharedBlock::Line;
  struct Transfer {
    int from;                // member
    std::size_t begin, end;  // bytes of its input
    std::size_t to;          // where in our output
  };

  // ---- Meeting (shared_group.cpp) ----
  Result run_posted(const Call& call, Algorithm algorithm);
  void post(const Call& call, Algorithm algorithm, std::size_t input_bytes, bool may_expose);
  void signal();
  template <class Ready>
  void wait_for(int member, Ready ready);
  void wait_for_all();
  void barrier();
  void check_posts(const std::function<std::size_t(int)>& expected_bytes = {});
  void require_present(int member);  // before its memory is written
  void require_all_present();
  // Ends what worked in members' memory: with the last barrier, and the certainty that nobody took
  // his back before it was read.
  void last_barrier();
  Line& line(int member) const { return blocks_[std::size_t(member)].line(number_); }
  // The bytes of a member's posted input or output: in place when registered, else read into
  // scratch.
  const std::byte* look(int member, bool output, std::size_t offset, std::size_t bytes,
                        std::byte* scratch) const;
  void read_exposed(int member, std::uint64_t address, std::byte* to, std::size_t bytes) const;

  // ---- Reductions (shared_reduce.cpp) ----
  Result all_reduce(const Call& call, Algorithm algorithm);
  Result reduce(const Call& call, bool may_go_direct);  // all_reduce, reduce, reduce_scatter
  void begin_direct(const Call& call);
  void fill_direct(const Call& call, std::size_t at, std::size_t bytes);
  Result finish_direct(const Call& call, bool filled);
  Result reduce_registered(const Call& call, std::span<const std::size_t> bounds);
  Result reduce_exposed(const Call& call, std::span<const std::size_t> bounds);
  Result reduce_staged(const Call& call, std::span<const std::size_t> bounds);
  void fill_slot(const Call& call, std::span<const std::size_t> bounds, std::size_t piece);

  // ---- Moves (shared_move.cpp) ----
  // Everything that only moves: `plan` is asked for what this rank takes once all have posted.
  Result move(const Call& call, std::size_t input_bytes,
              const std::function<std::vector<Transfer>()>& plan,
              const std::function<std::size_t(int)>& expected_bytes);
  Result gather(const Call& call, Algorithm algorithm);  // to all or to a root
  Result broadcast(const Call& call, Algorithm algorithm);
  Result scatter(const Call& call, Algorithm algorithm);
  Result all_to_all(const Call& call, Algorithm algorithm);
  std::vector<Transfer> all_to_all_transfers(const Call& call) const;

  Endpoint& endpoint_;
  std::shared_ptr<BlockStore> store_;
  std::vector<int> members_;
  int index_ = 0;
  std::size_t own_block_ = 0;  // offset
  std::vector<SharedBlock> blocks_;
  bool exposure_ = false;
  Limits limits_;
  std::vector<std::byte> scratch_;
  std::vector<std::size_t> bounds_;  // these are kept, so that a call allocates nothing
  std::vector<const void*> inputs_;
  std::vector<const std::byte*> ins_;
  std::vector<std::pair<int, std::byte*>> outs_;  // of members

  std::uint64_t sequence_ = 0;  // barriers passed
  std::uint64_t number_ = 0;    // operations begun
  std::uint64_t piece_ = 0;     // staged pieces begun
  Waiting* waiting_ = nullptr;  // of the running call
};

// Flags of a post.
constexpr std::uint32_t in_registered = 1, out_registered = 2, is_exposed = 4;

// Past the caches: what another core will read is faster fetched from memory than from this core's
// cache, and this core does not need it again.
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes);
// Nothing where both are the same.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

template <class Ready>
void SharedGroup::wait_for(int member, Ready ready) {
  Line& theirs = line(member);
  if (ready(theirs)) return;
  waiting_->until([&] { return ready(theirs); },
                  [&](bool) {
                    std::vector<int> missing;
                    for (int k = 0; k < size(); ++k)
                      if (!ready(line(k))) missing.push_back(members_[std::size_t(k)]);
                    return missing;
                  },
                  [&](std::chrono::microseconds time) {
                    const auto seen = theirs.sequence.load(std::memory_order_acquire);
                    if (!ready(theirs)) sleep_on(theirs.sequence, seen, theirs.sleepers, time);
                  });
}

}  // namespace echelon
