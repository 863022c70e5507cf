// Operations within a host that move bytes without computing: each rank says which bytes of whose
// input it takes. Inputs are read in place if all of them are registered or exposed, and otherwise
// through the staging slots, piece by piece.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "echelon/base/error.h"
#include "echelon/collective/shared_group.h"

namespace echelon {

SharedGroup::Result SharedGroup::gather(const Call& call, Algorithm algorithm) {
  const std::size_t element = size_of(call.type);
  const std::size_t mine = call.counts[std::size_t(index_)] * element;
  const auto bounds = bounds_of(call.counts);
  const auto bytes_of = [&](int k) { return call.counts[std::size_t(k)] * element; };
  std::vector<Transfer> transfers;
  if (call.operation == Operation::all_gather || index_ == call.root)
    for (int k = 0; k < size(); ++k)
      transfers.push_back({k, 0, bytes_of(k), bounds[std::size_t(k)] * element});
  post(call, algorithm, mine, true);
  return move(
      call, mine, [&] { return transfers; }, bytes_of);
}

SharedGroup::Result SharedGroup::broadcast(const Call& call, Algorithm algorithm) {
  const auto bytes_of = [&](int k) { return k == call.root ? call.bytes() : 0; };
  post(call, algorithm, bytes_of(index_), true);
  return move(
      call, bytes_of(index_),
      [&] {
        return std::vector<Transfer>{{call.root, 0, call.bytes(), 0}};
      },
      bytes_of);
}

SharedGroup::Result SharedGroup::scatter(const Call& call, Algorithm algorithm) {
  const std::size_t element = size_of(call.type);
  const auto bounds = bounds_of(call.counts);
  const auto bytes_of = [&](int k) { return k == call.root ? bounds.back() * element : 0; };
  const std::size_t begin = bounds[std::size_t(index_)], end = bounds[std::size_t(index_) + 1];
  post(call, algorithm, bytes_of(index_), true);
  return move(
      call, bytes_of(index_),
      [&] {
        return std::vector<Transfer>{{call.root, begin * element, end * element, 0}};
      },
      bytes_of);
}

SharedGroup::Result SharedGroup::all_to_all(const Call& call, Algorithm algorithm) {
  const std::size_t mine = total(call.counts) * size_of(call.type);
  std::copy(call.counts.begin(), call.counts.end(), blocks_[std::size_t(index_)].table(number_));
  post(call, algorithm, mine, true);
  return move(
      call, mine, [&] { return all_to_all_transfers(call); },
      [&](int k) { return std::size_t(line(k).bytes); });  // any: the tables are compared
}

// Each rank publishes a table of what it sends to each other rank, so that both sides can compare
// sizes and each rank knows where its piece begins.
std::vector<SharedGroup::Transfer> SharedGroup::all_to_all_transfers(const Call& call) const {
  const std::size_t element = size_of(call.type);
  const auto bounds = bounds_of(call.back);
  std::vector<Transfer> transfers;
  for (int k = 0; k < size(); ++k) {
    // Read it once: the other rank could still write to it.
    const std::uint64_t* table = blocks_[std::size_t(k)].table(number_);
    const std::vector<std::uint64_t> theirs(table, table + size());
    const std::size_t expected = call.back[std::size_t(k)], most = line(k).bytes / element;
    const std::string& who = endpoint_.health().name(members_[std::size_t(k)]);
    if (theirs[std::size_t(index_)] != expected)
      throw InvalidArgument(fmt::format(
          "ranks disagree: in all_to_all, {} has {} {} for rank {}, which expects {}", who,
          theirs[std::size_t(index_)], name(call.type), endpoint_.rank(), expected));
    std::size_t begin = 0;
    for (int before = 0; before < index_ && begin <= most; ++before)
      begin += std::min<std::uint64_t>(theirs[std::size_t(before)], most + 1);
    const std::size_t end = begin + expected;
    if (begin > most || expected > most - begin)
      throw Corrupt(fmt::format("the table of {} for all_to_all contradicts its size", who));
    transfers.push_back({k, begin * element, end * element, bounds[std::size_t(k)] * element});
  }
  return transfers;
}

SharedGroup::Result SharedGroup::move(const Call& call, std::size_t input_bytes,
                                      const std::function<std::vector<Transfer>()>& plan,
                                      const std::function<std::size_t(int)>& expected_bytes) {
  const std::size_t piece = members_.size() * SharedBlock::slice;
  const bool mine_exposed = line(index_).flags & is_exposed;
  const auto fill = [&](std::size_t i) {
    const std::size_t from = std::min(i * piece, input_bytes);
    copy_past_cache(blocks_[std::size_t(index_)].slot(piece_), call.in + from,
                    std::min(piece, input_bytes - from));
  };
  ++piece_;
  if (!mine_exposed) fill(0);
  barrier();
  check_posts(expected_bytes);
  const std::vector<Transfer> transfers = plan();

  bool all_exposed = true, any_unfilled = false;
  std::size_t longest = 0;
  for (int k = 0; k < size(); ++k) {
    const Line& post = line(k);
    if (post.bytes == 0) continue;
    if (post.flags & is_exposed)
      any_unfilled = true;
    else
      all_exposed = false;
    longest = std::max(longest, std::size_t(post.bytes));
  }
  std::uint64_t moved = 0;
  for (const auto& transfer : transfers) {
    if (transfer.from == index_) {
      if (const std::size_t bytes = transfer.end - transfer.begin;
          bytes && call.out + transfer.to != call.in + transfer.begin)
        std::memmove(call.out + transfer.to, call.in + transfer.begin, bytes);
    } else {
      moved += transfer.end - transfer.begin;
    }
  }
  if (all_exposed) {
    require_all_present();
    for (const auto& transfer : transfers) {
      const std::size_t bytes = transfer.end - transfer.begin;
      if (transfer.from == index_ || bytes == 0) continue;
      std::byte* to = call.out + transfer.to;
      copy_bytes(to, look(transfer.from, false, transfer.begin, bytes, to), bytes);
    }
    last_barrier();
    return {moved};
  }
  if (any_unfilled) {
    if (mine_exposed) fill(0);
    barrier();
  }
  const std::size_t pieces = (longest + piece - 1) / piece;
  for (std::size_t i = 0; i < pieces; ++i) {
    if (i > 0) {
      ++piece_;
      fill(i);
      barrier();
    }
    for (const auto& transfer : transfers) {
      const std::size_t begin = std::max(transfer.begin, i * piece),
                        end = std::min(transfer.end, (i + 1) * piece);
      if (transfer.from == index_ || begin >= end) continue;
      std::memcpy(call.out + transfer.to + (begin - transfer.begin),
                  blocks_[std::size_t(transfer.from)].slot(piece_) + (begin - i * piece),
                  end - begin);
    }
  }
  return {moved};
}

}  // namespace echelon
