// Reductions within a host. A rank's slice of a vector is a run of whole cache lines, so that no
// two ranks write to the same line. Every path reads each input once.
#include <algorithm>
#include <cstring>

#include "echelon/collective/reduce.h"
#include "echelon/collective/shared_group.h"

namespace echelon {
namespace {

// Registered and exposed buffers are processed in blocks that fit into a core's cache.
constexpr std::size_t cache_block = 32 << 10;
constexpr std::size_t exposed_block = 64 << 10;
constexpr std::size_t direct_chunk = 64 << 10;
constexpr std::size_t small = 4 << 10;  // non-temporal stores are slower below this size
constexpr std::size_t line_bytes = 64;

// p+1 bounds of slices that are as even as whole cache lines allow.
void even_bounds(std::size_t count, std::size_t element, int slices,
                 std::vector<std::size_t>& bounds) {
  const std::size_t unit = line_bytes / element, ranks = std::size_t(slices);
  const std::size_t per = ((count + ranks - 1) / ranks + unit - 1) / unit * unit;
  bounds.clear();
  for (std::size_t i = 0; i <= ranks; ++i) bounds.push_back(std::min(count, per * i));
}

// The elements of a slice that lie in a staged piece.
std::pair<std::size_t, std::size_t> part(std::span<const std::size_t> bounds, std::size_t piece,
                                         std::size_t slice, std::size_t element) {
  const std::size_t per = SharedBlock::slice / element;
  const std::size_t begin = std::min(bounds[slice] + piece * per, bounds[slice + 1]);
  return {begin, std::min(begin + per, bounds[slice + 1])};
}

}  // namespace

SharedGroup::Result SharedGroup::all_reduce(const Call& call, Algorithm algorithm) {
  if (algorithm == Algorithm::shared_direct ||
      (algorithm == Algorithm::automatic && call.bytes() < limits_.registered_from)) {
    post(call, algorithm, call.bytes(), false);
    begin_direct(call);
    wait_for_all();
    check_posts();
    return finish_direct(call, true);
  }
  post(call, algorithm, call.bytes(), true);
  return reduce(call, algorithm == Algorithm::automatic && call.bytes() < limits_.staged_from);
}

// Each rank begins as its own buffers allow. How it continues depends on all ranks' buffers.
SharedGroup::Result SharedGroup::reduce(const Call& call, bool may_go_direct) {
  if (call.operation == Operation::reduce_scatter)
    bounds_ = bounds_of(call.counts);
  else
    even_bounds(call.count, size_of(call.type), size(), bounds_);
  const bool mine_exposed = line(index_).flags & is_exposed;
  if (may_go_direct && !mine_exposed) {
    begin_direct(call);
  } else {
    if (!mine_exposed) fill_slot(call, bounds_, 0);
    signal();
  }
  wait_for_all();
  check_posts();

  std::uint32_t common = in_registered | out_registered | is_exposed, any_exposed = 0;
  for (int k = 0; k < size(); ++k) {
    common &= line(k).flags;
    any_exposed |= line(k).flags & is_exposed;
  }
  const bool written = call.operation == Operation::reduce_scatter ||
                       (call.operation == Operation::reduce ? line(call.root).flags & out_registered
                                                            : common & out_registered);
  if ((common & in_registered) && written) return reduce_registered(call, bounds_);
  // Registered inputs count as exposed, but this path reads the outputs too.
  if (exposure_ && (common & is_exposed) && call.operation != Operation::reduce)
    return reduce_exposed(call, bounds_);
  if (may_go_direct) return finish_direct(call, !mine_exposed);
  if (any_exposed) {  // these ranks fill their slots now, and all ranks wait for it
    if (mine_exposed) fill_slot(call, bounds_, 0);
    barrier();
  }
  return reduce_staged(call, bounds_);
}

// ---- Direct ----

// Copies a piece of the input to the staging slot and publishes its progress, so that other ranks
// need not wait for the end.
void SharedGroup::fill_direct(const Call& call, std::size_t at, std::size_t bytes) {
  ++piece_;
  std::byte* to = blocks_[std::size_t(index_)].slot(piece_);
  Line& mine = line(index_);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t now = std::min(direct_chunk, bytes - done);
    if (now > small)
      copy_past_cache(to + done, call.in + at + done, now);
    else
      std::memcpy(to + done, call.in + at + done, now);
    done += now;
    mine.filled.store(piece_ << 32 | done, std::memory_order_release);
  }
}

// A small first piece is copied before the post, a large one after it, so that others can read the
// post meanwhile.
void SharedGroup::begin_direct(const Call& call) {
  const std::size_t first = std::min(members_.size() * SharedBlock::slice, call.bytes());
  if (first > small) signal();
  fill_direct(call, 0, first);
  if (first <= small) signal();
}

// Every rank sums all vectors. The posts are published; with `filled`, so is the first piece.
SharedGroup::Result SharedGroup::finish_direct(const Call& call, bool filled) {
  const std::size_t element = size_of(call.type), bytes = call.bytes();
  const std::size_t piece = members_.size() * SharedBlock::slice;
  inputs_.resize(members_.size());
  for (std::size_t at = 0; at < bytes; at += piece) {
    const std::size_t length = std::min(piece, bytes - at);
    if (!filled || at > 0) fill_direct(call, at, length);
    for (std::size_t done = 0; done < length;) {
      const std::size_t now = std::min(direct_chunk, length - done);
      for (int k = 0; k < size(); ++k) {
        if (k == index_) {
          inputs_[std::size_t(k)] = call.in + at + done;
          continue;
        }
        wait_for(k, [&](const Line& theirs) {
          // Compares by difference: the count of pieces wraps around in its 32 bits.
          const std::uint64_t there = theirs.filled.load(std::memory_order_acquire);
          return std::int64_t(there - (piece_ << 32 | (done + now))) >= 0;
        });
        inputs_[std::size_t(k)] = blocks_[std::size_t(k)].slot(piece_) + done;
      }
      echelon::reduce(call.type, call.op, call.out + at + done, inputs_.data(), size(),
                      now / element, size());
      done += now;
    }
  }
  return {(members_.size() - 1) * bytes, Algorithm::shared_direct};
}

// ---- Registered ----

SharedGroup::Result SharedGroup::reduce_registered(const Call& call,
                                                   std::span<const std::size_t> bounds) {
  const std::size_t element = size_of(call.type), begin = bounds[std::size_t(index_)] * element,
                    end = bounds[std::size_t(index_) + 1] * element;
  const bool scatter = call.operation == Operation::reduce_scatter;
  require_all_present();
  inputs_.resize(members_.size());
  ins_.clear();
  outs_.clear();
  for (int k = 0; k < size(); ++k) {
    ins_.push_back(look(k, false, begin, end - begin, nullptr));
    if (!scatter && k != index_ && (call.operation == Operation::all_reduce || k == call.root))
      outs_.emplace_back(k, const_cast<std::byte*>(look(k, true, begin, end - begin, nullptr)));
  }
  std::byte* own = scatter ? call.out : call.out + begin;
  const bool into_root = call.operation == Operation::reduce && index_ != call.root;
  if (into_root) {
    own = outs_.front().second;
    outs_.clear();
  }
  for (std::size_t at = 0; at < end - begin; at += cache_block) {
    const std::size_t now = std::min(cache_block, end - begin - at);
    for (std::size_t k = 0; k < ins_.size(); ++k) inputs_[k] = ins_[k] + at;
    if (into_root) require_present(call.root);
    echelon::reduce(call.type, call.op, own + at, inputs_.data(), size(), now / element, size());
    for (const auto& [member, out] : outs_) {
      require_present(member);
      std::memcpy(out + at, own + at, now);
    }
  }
  last_barrier();
  const std::uint64_t mine = end - begin, others = members_.size() - 1;
  if (scatter) return {others * mine};
  if (call.operation == Operation::reduce)
    return {others * mine + (index_ == call.root ? 0 : mine)};
  return {2 * others * mine};
}

// ---- Exposed ----

SharedGroup::Result SharedGroup::reduce_exposed(const Call& call,
                                                std::span<const std::size_t> bounds) {
  const std::size_t element = size_of(call.type), begin = bounds[std::size_t(index_)] * element,
                    end = bounds[std::size_t(index_) + 1] * element;
  const bool scatter = call.operation == Operation::reduce_scatter;
  require_all_present();
  scratch_.resize(members_.size() * exposed_block);
  inputs_.resize(members_.size());
  std::byte* own = scatter ? call.out : call.out + begin;
  for (std::size_t at = 0; at < end - begin; at += exposed_block) {
    const std::size_t now = std::min(exposed_block, end - begin - at);
    for (int k = 0; k < size(); ++k)
      inputs_[std::size_t(k)] =
          look(k, false, begin + at, now, scratch_.data() + std::size_t(k) * exposed_block);
    echelon::reduce(call.type, call.op, own + at, inputs_.data(), size(), now / element, size());
  }
  const std::uint64_t read = (members_.size() - 1) * (end - begin);
  if (scatter) {
    last_barrier();
    return {read};
  }
  barrier();
  for (int step = 1; step < size(); ++step) {
    const int k = (index_ + step) % size();
    const std::size_t from = bounds[std::size_t(k)] * element,
                      bytes = bounds[std::size_t(k) + 1] * element - from;
    if (bytes) copy_bytes(call.out + from, look(k, true, from, bytes, call.out + from), bytes);
  }
  last_barrier();
  return {read + bounds.back() * element - (end - begin)};
}

// ---- Staged ----

// Copies a piece of the input, a part of every other rank's slice, to the next slot.
void SharedGroup::fill_slot(const Call& call, std::span<const std::size_t> bounds,
                            std::size_t piece) {
  const std::size_t element = size_of(call.type);
  std::byte* to = blocks_[std::size_t(index_)].slot(piece_ + 1);
  for (std::size_t k = 0; k < members_.size(); ++k) {
    if (k == std::size_t(index_)) continue;  // no other rank reads this part
    const auto [begin, end] = part(bounds, piece, k, element);
    copy_past_cache(to + k * SharedBlock::slice, call.in + begin * element,
                    (end - begin) * element);
  }
}

SharedGroup::Result SharedGroup::reduce_staged(const Call& call,
                                               std::span<const std::size_t> bounds) {
  const std::size_t element = size_of(call.type), per = SharedBlock::slice / element;
  const bool scatter = call.operation == Operation::reduce_scatter;
  std::size_t longest = 0;
  for (std::size_t k = 0; k < members_.size(); ++k)
    longest = std::max(longest, bounds[k + 1] - bounds[k]);
  const std::size_t pieces = (longest + per - 1) / per, mine = std::size_t(index_);
  inputs_.resize(members_.size());
  const bool keeps = !scatter && (call.operation == Operation::all_reduce || index_ == call.root);
  std::uint64_t moved = 0;
  for (std::size_t i = 0; i < pieces; ++i) {
    ++piece_;
    if (i + 1 < pieces) fill_slot(call, bounds, i + 1);
    const auto [begin, end] = part(bounds, i, mine, element);
    for (std::size_t k = 0; k < members_.size(); ++k)
      inputs_[k] = k == mine ? call.in + begin * element
                             : blocks_[k].slot(piece_) + mine * SharedBlock::slice;
    const std::size_t bytes = (end - begin) * element;
    std::byte* result = blocks_[mine].result(piece_);
    std::byte* to = scatter ? call.out + (begin - bounds[mine]) * element
                    : keeps ? call.out + begin * element
                            : result;
    echelon::reduce(call.type, call.op, to, inputs_.data(), size(), end - begin, size());
    if (keeps && call.operation == Operation::all_reduce) copy_past_cache(result, to, bytes);
    moved += (members_.size() - 1) * bytes;
    if (!scatter || i + 1 < pieces) barrier();
    if (!keeps) continue;
    for (std::size_t k = 0; k < members_.size(); ++k) {
      if (k == mine) continue;
      const auto [from, until] = part(bounds, i, k, element);
      copy_bytes(call.out + from * element, blocks_[k].result(piece_), (until - from) * element);
      moved += (until - from) * element;
    }
  }
  return {moved};
}

}  // namespace echelon
