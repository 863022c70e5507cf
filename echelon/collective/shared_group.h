// Collectives among the ranks of one host, through memory that all of them map.
//
// Every rank has a block in its heap: a line with the number of the last barrier it reached and a
// post that says what it is doing and where its buffers are, and two slots of staging memory. An
// operation begins with the post; when all are there everybody knows what each brought, and takes
// the same path:
//
//   direct      small vectors: each rank copies its own into its staging slot and reads
//   everybody's.
//               One barrier; (p-1) n bytes read by each.
//   registered  every buffer lies in a heap: each rank sums its slice of all and writes it to all,
//               with no copy. Two barriers; 2 ((p-1)/p) n bytes.
//   exposed     some buffers are private, but the system lets neighbours read them
//               (process_vm_readv): slices are read across, summed, and read back. Three barriers.
//   staged      otherwise, and for middle sizes: pieces go through the staging slots, the next
//   piece
//               being copied in while this one is summed. One barrier a piece, and one more.
//
// Two slots are enough: a rank that fills a slot again has seen everybody begin the piece between
// (by a barrier, or by `filled`), and nobody begins that before he is done with the piece before
// it. Barriers and pieces count up for ever, so a line has one writer and is never reset.
//
// Sums are taken in the order of the ranks: all ranks get the same bits, on every path.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "echelon/collective/call.h"
#include "echelon/collective/waiting.h"
#include "echelon/net/endpoint.h"
#include "echelon/net/link.h"

namespace echelon {

class SharedGroup {
 public:
  // Rings for messages between each pair: two for a collective's lanes, one for send and receive.
  static constexpr int rings = 3;

  static std::size_t block_bytes(int members);
  // Makes a block that may have been used before as good as new. Before others know of it.
  static void clear_block(std::byte* block, int members);

  // `members` are ranks of the job on one host, in the group's order; `blocks` the offsets of their
  // blocks in their heaps (own: allocated and zero).
  SharedGroup(Endpoint& endpoint, std::vector<int> members, const std::vector<std::size_t>& blocks);

  int size() const { return int(members_.size()); }
  int index() const { return index_; }

  // Whether private buffers of all members can be read in place; all members must agree on it.
  bool probe_exposure();  // what this rank can do
  void set_exposure(bool agreed) { exposure_ = agreed; }

  struct Result {
    std::uint64_t bytes;  // payload of peers that this rank read or wrote
    Algorithm algorithm;  // that was taken
  };
  // By shared_direct, by shared, or (automatic) by whichever suits size and buffers.
  Result run(const Call& call, Algorithm algorithm, bool spin);

  std::unique_ptr<Link> link(int member, int ring);

  // Sizes at which an all-reduce changes its path; the same on all ranks.
  struct Limits {
    std::size_t registered_from = 2 << 10;  // below, also registered buffers go the direct way
    std::size_t staged_from = 32 << 10;     // private buffers: below direct, from here on staged
    std::size_t exposed_from = 512
                               << 10;  // private buffers are read in place, where that is agreed
    std::size_t slice = 128 << 10;     // of a staged piece
  };
  void set_limits(const Limits& limits) { limits_ = limits; }

 private:
  struct Line;
  struct Block;
  struct Transfer {
    int from;                // member
    std::size_t begin, end;  // bytes of its input
    std::size_t to;          // where in our output
  };

  void post(const Call& call, std::uint64_t signature, std::size_t input_bytes, bool exposed);
  void signal();
  template <class Ready>
  void wait_for(int member, Ready ready);
  void wait_for_all();
  void barrier();
  void check_posts(const std::function<std::size_t(int)>& expected_bytes);

  std::uint64_t run_posted(const Call& call, Algorithm algorithm, bool spin);
  void begin_direct(const Call& call);
  void fill_direct(const Call& call, std::size_t at, std::size_t bytes);
  std::uint64_t all_reduce_direct(const Call& call, bool filled);
  std::uint64_t reduce(const Call& call);  // all_reduce, reduce, reduce_scatter
  std::uint64_t reduce_registered(const Call& call, std::span<const std::size_t> bounds);
  std::uint64_t reduce_exposed(const Call& call, std::span<const std::size_t> bounds);
  std::uint64_t reduce_staged(const Call& call, std::span<const std::size_t> bounds);
  static std::pair<std::size_t, std::size_t> part(std::span<const std::size_t> bounds,
                                                  std::size_t piece, std::size_t slice,
                                                  std::size_t element);
  void fill_slot(const Call& call, std::span<const std::size_t> bounds, std::size_t piece);

  // Everything that only moves: `plan` is asked for what this rank takes once all have posted.
  std::uint64_t move(const Call& call, std::size_t input_bytes,
                     const std::function<std::vector<Transfer>()>& plan,
                     const std::function<std::size_t(int)>& expected_bytes);

  std::vector<Transfer> all_to_all_transfers(const Call& call) const;

  std::byte* slot(int member, std::uint64_t piece) const;
  std::byte* result_slot(int member) const;  // of the current piece
  std::uint64_t* table(int member) const;
  std::byte* base(int member) const;  // of its block
  Line& line(int member) const;
  // The bytes of a member's posted input or output: in place when registered, else read into
  // scratch.
  const std::byte* look(int member, bool output, std::size_t offset, std::size_t bytes,
                        std::byte* scratch) const;
  std::byte* registered_out(int member, std::size_t offset, std::size_t bytes) const;
  void read_exposed(int member, std::uint64_t address, std::byte* to, std::size_t bytes) const;

  Endpoint& endpoint_;
  std::vector<int> members_;
  int index_ = 0;
  std::vector<Block*> blocks_;
  bool exposure_ = false;
  Limits limits_;
  bool direct_allowed_ = false;  // of the running call
  bool went_direct_ = false;
  std::vector<std::byte> scratch_;
  std::vector<const void*> inputs_;  // kept, so that a call allocates nothing
  std::vector<const std::byte*> ins_;
  std::vector<std::byte*> outs_;

  std::uint64_t sequence_ = 0;  // barriers passed
  std::uint64_t number_ = 0;    // operations begun
  std::uint64_t piece_ = 0;     // staged pieces begun
  Waiting* waiting_ = nullptr;  // of the running call
};

}  // namespace echelon
