#include "echelon/collective/shared_group.h"

#include <fmt/format.h>
#include <linux/futex.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>

#include "echelon/base/error.h"
#include "echelon/collective/reduce.h"

namespace echelon {
namespace {

// Work on registered and exposed buffers goes in blocks that stay in a core's cache.
constexpr std::size_t cache_block = 32 << 10;
constexpr std::size_t exposed_block = 64 << 10;
constexpr std::size_t direct_chunk = 64 << 10;
constexpr std::size_t small = 4 << 10;  // writing past the caches takes longer for less
constexpr std::size_t line_bytes = 64;
constexpr std::size_t any_size = std::numeric_limits<std::size_t>::max();

constexpr std::uint32_t in_registered = 1, out_registered = 2, is_exposed = 4;

std::size_t rounded(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// p+1 bounds of slices that are as even as whole cache lines allow.
std::vector<std::size_t> even_bounds(std::size_t count, std::size_t element, int slices) {
  const std::size_t unit = line_bytes / element;
  const std::size_t per = rounded((count + std::size_t(slices) - 1) / std::size_t(slices), unit);
  std::vector<std::size_t> bounds;
  for (int i = 0; i <= slices; ++i) bounds.push_back(std::min(count, per * std::size_t(i)));
  return bounds;
}

// Equal for equal tables (FNV-1a over words).
std::uint64_t digest(std::span<const std::size_t> counts) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto count : counts) {
    hash = (hash ^ count) * 0x100000001b3u;
    hash ^= hash >> 32;
  }
  return hash;
}

// Past the caches: what another core will read is faster fetched from memory than from this core's
// cache, and this core does not need it again.
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  std::size_t at = 0;
  for (; at + 64 <= bytes; at += 64) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
                  c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

// Asks for lines that will be written soon, which another core has read.
void claim(const std::byte* memory, std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t at = 0; at < bytes; at += line_bytes)
    asm volatile("prefetchw %0" ::"m"(memory[at]));
#else
  for (std::size_t at = 0; at < bytes; at += line_bytes) __builtin_prefetch(memory + at, 1);
#endif
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes) std::memcpy(to, from, bytes);
}

}  // namespace

// Everything that others look at when an operation begins, in one cache line.
struct alignas(64) SharedGroup::Line {
  std::atomic<std::uint64_t> sequence;  // the last barrier that was reached
  std::atomic<std::uint64_t>
      filled;  // the piece in the staging slot << 32 | bytes of it that are there
  std::atomic<std::uint32_t> sleepers;  // ranks asleep until `sequence` changes
  std::uint32_t flags;                  // of the post
  std::uint64_t signature;
  std::uint64_t bytes;    // of the input
  std::uint64_t counts;   // of the pieces, in one word
  std::uint64_t in, out;  // offsets in the heap, or addresses
};

// What of a block is of fixed size: a line for operations of even and one for those of odd number,
// so that a rank that goes on does not write over what a slower one still reads. After it:
// all_to_all's tables, staging slots, result slots, rings.
struct SharedGroup::Block {
  Line lines[2];
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

namespace {

constexpr std::size_t slice_bytes = SharedGroup::Limits{}.slice;

struct Layout {
  std::size_t tables, slots, results, rings, end;
  explicit Layout(std::size_t members, std::size_t head)
      : tables(rounded(head, line_bytes)),
        slots(rounded(tables + 2 * members * sizeof(std::uint64_t), 4096)),
        results(slots + 2 * members * slice_bytes),
        rings(results + 2 * slice_bytes),
        end(rings + members * SharedGroup::rings * sizeof(SharedRing::Memory)) {}
};

}  // namespace

std::size_t SharedGroup::block_bytes(int members) {
  return Layout(std::size_t(members), sizeof(Block)).end;
}

void SharedGroup::clear_block(std::byte* block, int members) {
  const Layout layout(std::size_t(members), sizeof(Block));
  std::memset(block, 0, layout.slots);
  for (std::size_t at = layout.rings; at < layout.end; at += sizeof(SharedRing::Memory))
    std::memset(block + at, 0, offsetof(SharedRing::Memory, bytes));
}

SharedGroup::SharedGroup(Endpoint& endpoint, std::vector<int> members,
                         const std::vector<std::size_t>& blocks)
    : endpoint_(endpoint), members_(std::move(members)) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] == endpoint.rank()) index_ = int(i);
    std::byte* block = endpoint.heap(members_[i]).at(blocks[i], block_bytes(size()));
    if (block == nullptr || blocks[i] % line_bytes != 0)
      throw Corrupt(
          fmt::format("{} named a block outside its heap", endpoint.health().name(members_[i])));
    blocks_.push_back(reinterpret_cast<Block*>(block));
  }
}

std::unique_ptr<Link> SharedGroup::link(int member, int ring) {
  const std::size_t rings_at = Layout(members_.size(), sizeof(Block)).rings;
  const auto memory = [&](int from, int to) {
    const std::size_t index = std::size_t(to) * rings + std::size_t(ring);
    return SharedRing(reinterpret_cast<SharedRing::Memory*>(base(from) + rings_at +
                                                            index * sizeof(SharedRing::Memory)));
  };
  return std::make_unique<SharedLink>(memory(index_, member), memory(member, index_),
                                      endpoint_.health().name(members_[std::size_t(member)]));
}

bool SharedGroup::probe_exposure() {
  // A word of each neighbour's heap mapping cannot be named from here, but its stack and heap can
  // be anywhere: what is asked is the permission, so any address tells. EFAULT means allowed.
  for (const int rank : members_) {
    if (rank == endpoint_.rank()) continue;
    std::byte byte;
    const iovec local = {&byte, 1}, remote = {reinterpret_cast<void*>(16), 1};
    const int process = endpoint_.process(rank);
    if (process <= 0 ||
        (process_vm_readv(process, &local, 1, &remote, 1, 0) < 0 && errno != EFAULT))
      return false;
  }
  return true;
}

std::byte* SharedGroup::slot(int member, std::uint64_t piece) const {
  const Layout layout(members_.size(), sizeof(Block));
  return base(member) + layout.slots + piece % 2 * members_.size() * slice_bytes;
}

std::byte* SharedGroup::result_slot(int member) const {
  const Layout layout(members_.size(), sizeof(Block));
  return base(member) + layout.results + piece_ % 2 * slice_bytes;
}

std::byte* SharedGroup::base(int member) const {
  return reinterpret_cast<std::byte*>(blocks_[std::size_t(member)]);
}

SharedGroup::Line& SharedGroup::line(int member) const {
  return blocks_[std::size_t(member)]->lines[number_ % 2];
}

void SharedGroup::post(const Call& call, std::uint64_t signature, std::size_t input_bytes,
                       bool exposed) {
  Line& mine = line(index_);
  std::uint32_t flags = 0;
  const auto place = [&](const std::byte* buffer, std::size_t bytes, std::uint32_t flag) {
    if (const auto offset = endpoint_.heap().offset(buffer, bytes); offset && buffer) {
      flags |= flag;
      return std::uint64_t(*offset);
    }
    return std::uint64_t(reinterpret_cast<std::uintptr_t>(buffer));
  };
  const std::uint64_t counts = call.operation == Operation::all_to_all ? 0 : digest(call.counts);
  const std::uint64_t in = place(call.in, input_bytes, in_registered);
  const std::uint64_t out = place(call.out, call.bytes(), out_registered);
  if (exposed || (flags & in_registered)) flags |= is_exposed;
  // Written in one go: others are looking at this line, and take it away between two stores.
  mine.flags = flags;
  mine.signature = signature;
  mine.bytes = input_bytes;
  mine.counts = counts;
  mine.in = in;
  mine.out = out;
}

void SharedGroup::signal() {
  Line& mine = line(index_);
  mine.sequence.store(++sequence_, std::memory_order_release);
  // A sleeper that is missed here looks again by itself: its sleeps are short.
  if (mine.sleepers.load(std::memory_order_relaxed) != 0)
    syscall(SYS_futex, &mine.sequence, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr,
            nullptr, 0);
}

// Until ready(line) holds for a member.
template <class Ready>
void SharedGroup::wait_for(int member, Ready ready) {
  Line& theirs = line(member);
  if (ready(theirs)) return;
  waiting_->until([&] { return ready(theirs); },
                  [&] {
                    std::vector<int> missing;
                    for (int k = 0; k < size(); ++k)
                      if (!ready(line(k))) missing.push_back(members_[std::size_t(k)]);
                    return missing;
                  },
                  [&](std::chrono::microseconds time) {
                    const std::uint64_t seen = theirs.sequence.load(std::memory_order_acquire);
                    if (ready(theirs)) return;
                    const timespec limit = {0, long(time.count()) * 1000};
                    theirs.sleepers.fetch_add(1);
                    syscall(SYS_futex, &theirs.sequence, FUTEX_WAIT, std::uint32_t(seen), &limit,
                            nullptr, 0);
                    theirs.sleepers.fetch_sub(1);
                  });
}

void SharedGroup::wait_for_all() {
  for (int k = 0; k < size(); ++k)
    if (k != index_)
      wait_for(k, [this](const Line& theirs) {
        return theirs.sequence.load(std::memory_order_acquire) >= sequence_;
      });
}

void SharedGroup::barrier() {
  signal();
  wait_for_all();
}

void SharedGroup::check_posts(const std::function<std::size_t(int)>& expected_bytes) {
  const Line& mine = line(index_);
  for (int k = 0; k < size(); ++k) {
    const Line& other = line(k);
    const std::size_t expected = expected_bytes ? expected_bytes(k) : mine.bytes;
    const bool same_size = expected == any_size || other.bytes == expected;
    if (other.signature == mine.signature && same_size && other.counts == mine.counts) continue;
    const std::size_t element =
        std::max<std::size_t>(1, size_of(DataType(mine.signature >> 16 & 0xff)));
    const std::size_t other_type = other.signature >> 16 & 0xff;
    const std::size_t other_element =
        other_type <= std::size_t(DataType::boolean) ? size_of(DataType(other_type)) : 1;
    throw InvalidArgument(fmt::format(
        "ranks disagree: {} called {}, this rank (rank {}) {}{}",
        endpoint_.health().name(members_[std::size_t(k)]),
        describe(other.signature, other.bytes / other_element), endpoint_.rank(),
        describe(mine.signature, mine.bytes / element),
        other.signature != mine.signature ? ""
        : same_size                       ? ", with another table of counts"
        : expected != mine.bytes ? fmt::format(" and expected {} from it", expected / element)
                                 : ""));
  }
}

const std::byte* SharedGroup::look(int member, bool output, std::size_t offset, std::size_t bytes,
                                   std::byte* scratch) const {
  const Line& post = line(member);
  const std::uint64_t place = (output ? post.out : post.in) + offset;
  if (post.flags & (output ? out_registered : in_registered)) {
    const std::byte* there = endpoint_.heap(members_[std::size_t(member)]).at(place, bytes);
    if (there == nullptr)
      throw Corrupt(fmt::format("{} named a buffer outside its heap",
                                endpoint_.health().name(members_[std::size_t(member)])));
    return there;
  }
  if (member == index_) return reinterpret_cast<const std::byte*>(place);
  read_exposed(member, place, scratch, bytes);
  return scratch;
}

std::byte* SharedGroup::registered_out(int member, std::size_t offset, std::size_t bytes) const {
  return const_cast<std::byte*>(look(member, true, offset, bytes, nullptr));
}

void SharedGroup::read_exposed(int member, std::uint64_t address, std::byte* to,
                               std::size_t bytes) const {
  const int rank = members_[std::size_t(member)];
  for (std::size_t done = 0; done < bytes;) {
    const iovec local = {to + done, bytes - done};
    const iovec remote = {reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t count = process_vm_readv(endpoint_.process(rank), &local, 1, &remote, 1, 0);
    if (count > 0) {
      done += std::size_t(count);
      continue;
    }
    const int error = errno;
    const std::string why =
        with_errno(fmt::format("cannot read a buffer of {}", endpoint_.health().name(rank)));
    endpoint_.health().check({rank});
    if (error == ESRCH) throw PeerLost(why);
    throw Error(why);
  }
}

// ---- Reductions ----

// Copies a piece of the input to the staging slot, telling how far it is, so that the others need
// not wait for its end.
void SharedGroup::fill_direct(const Call& call, std::size_t at, std::size_t bytes) {
  ++piece_;
  std::byte* to = slot(index_, piece_);
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

// The first piece goes out with the post where it is small, else after it: others may then look at
// the post meanwhile.
void SharedGroup::begin_direct(const Call& call) {
  const std::size_t first = std::min(members_.size() * slice_bytes, call.bytes());
  if (first > small) signal();
  fill_direct(call, 0, first);
  if (first <= small) signal();
}

// Everyone sums all of everyone's vectors. The posts are out; with `filled`, so is the first piece.
std::uint64_t SharedGroup::all_reduce_direct(const Call& call, bool filled) {
  const std::size_t element = size_of(call.type), bytes = call.bytes();
  const std::size_t piece = members_.size() * slice_bytes;
  inputs_.resize(members_.size());
  for (std::size_t at = 0; at < bytes; at += piece) {
    const std::size_t length = std::min(piece, bytes - at);
    if (!filled || at > 0) fill_direct(call, at, length);
    for (std::size_t done = 0; done < length;) {
      const std::size_t now = std::min(direct_chunk, length - done);
      for (int k = 0; k < size(); ++k) {
        if (k != index_)
          wait_for(k, [&](const Line& theirs) {
            // By difference: pieces are counted for ever, and wrap in their 32 bits.
            const std::uint64_t there = theirs.filled.load(std::memory_order_acquire);
            return std::int64_t(there - (piece_ << 32 | (done + now))) >= 0;
          });
        inputs_[std::size_t(k)] = k == index_ ? call.in + at + done : slot(k, piece_) + done;
      }
      echelon::reduce(call.type, call.op, call.out + at + done, inputs_.data(), size(),
                      now / element, size());
      done += now;
    }
  }
  went_direct_ = true;
  // The next small one goes to the other slot, which nobody reads any more.
  if (bytes <= small) claim(slot(index_, piece_ + 1), bytes);
  return (members_.size() - 1) * bytes;
}

std::uint64_t SharedGroup::reduce(const Call& call) {
  const std::size_t element = size_of(call.type);
  const auto bounds = call.operation == Operation::reduce_scatter
                          ? bounds_of(call.counts)
                          : even_bounds(call.count, element, size());
  const bool mine_exposed = line(index_).flags & is_exposed;
  const bool direct = call.operation == Operation::all_reduce && direct_allowed_ &&
                      call.bytes() < limits_.staged_from;
  if (direct && !mine_exposed) {
    begin_direct(call);
  } else {
    if (!mine_exposed) fill_slot(call, bounds, 0);
    signal();
  }
  wait_for_all();
  check_posts({});

  std::uint32_t common = in_registered | out_registered | is_exposed, any_exposed = 0;
  std::uint32_t roots_out = 0;
  for (int k = 0; k < size(); ++k) {
    common &= line(k).flags;
    any_exposed |= line(k).flags & is_exposed;
    if (k == call.root) roots_out = line(k).flags & out_registered;
  }
  const bool written =
      call.operation == Operation::reduce_scatter ||
      (call.operation == Operation::reduce ? roots_out != 0 : (common & out_registered) != 0);
  if ((common & in_registered) && written) return reduce_registered(call, bounds);
  // Registered inputs count as exposed, but here the outputs are read too.
  if (exposure_ && (common & is_exposed) && call.operation != Operation::reduce)
    return reduce_exposed(call, bounds);
  if (direct) return all_reduce_direct(call, !mine_exposed);
  if (any_exposed) {  // those fill their slots now, and everybody waits for it
    if (mine_exposed) fill_slot(call, bounds, 0);
    barrier();
  }
  return reduce_staged(call, bounds);
}

std::uint64_t SharedGroup::reduce_registered(const Call& call,
                                             std::span<const std::size_t> bounds) {
  const std::size_t element = size_of(call.type), begin = bounds[std::size_t(index_)] * element,
                    end = bounds[std::size_t(index_) + 1] * element;
  const bool scatter = call.operation == Operation::reduce_scatter;
  inputs_.resize(members_.size());
  auto& ins = ins_;
  auto& outs = outs_;
  ins.clear();
  outs.clear();
  for (int k = 0; k < size(); ++k) {
    ins.push_back(look(k, false, begin, end - begin, nullptr));
    if (!scatter && k != index_ && (call.operation == Operation::all_reduce || k == call.root))
      outs.push_back(registered_out(k, begin, end - begin));
  }
  std::byte* own = scatter ? call.out : call.out + begin;
  if (call.operation == Operation::reduce && index_ != call.root) {
    own = outs.front();
    outs.clear();
  }
  for (std::size_t at = 0; at < end - begin; at += cache_block) {
    const std::size_t now = std::min(cache_block, end - begin - at);
    for (std::size_t k = 0; k < ins.size(); ++k) inputs_[k] = ins[k] + at;
    echelon::reduce(call.type, call.op, own + at, inputs_.data(), size(), now / element, size());
    for (std::byte* out : outs) std::memcpy(out + at, own + at, now);
  }
  barrier();
  const std::uint64_t mine = end - begin, others = members_.size() - 1;
  if (scatter) return others * mine;
  if (call.operation == Operation::reduce) return others * mine + (index_ == call.root ? 0 : mine);
  return 2 * others * mine;
}

std::uint64_t SharedGroup::reduce_exposed(const Call& call, std::span<const std::size_t> bounds) {
  const std::size_t element = size_of(call.type), begin = bounds[std::size_t(index_)] * element,
                    end = bounds[std::size_t(index_) + 1] * element;
  const bool scatter = call.operation == Operation::reduce_scatter;
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
  barrier();
  const std::uint64_t read = (members_.size() - 1) * (end - begin);
  if (scatter) return read;
  for (int step = 1; step < size(); ++step) {
    const int k = (index_ + step) % size();
    const std::size_t from = bounds[std::size_t(k)] * element,
                      bytes = bounds[std::size_t(k) + 1] * element - from;
    if (bytes) copy_bytes(call.out + from, look(k, true, from, bytes, call.out + from), bytes);
  }
  barrier();
  return read + bounds.back() * element - (end - begin);
}

// The elements of a slice that are in a staged piece.
std::pair<std::size_t, std::size_t> SharedGroup::part(std::span<const std::size_t> bounds,
                                                      std::size_t piece, std::size_t slice,
                                                      std::size_t element) {
  const std::size_t per = slice_bytes / element;
  const std::size_t begin = std::min(bounds[slice] + piece * per, bounds[slice + 1]);
  return {begin, std::min(begin + per, bounds[slice + 1])};
}

// Copies a piece of the input, a part of every other rank's slice, to the slot that comes next.
void SharedGroup::fill_slot(const Call& call, std::span<const std::size_t> bounds,
                            std::size_t piece) {
  const std::size_t element = size_of(call.type);
  std::byte* to = slot(index_, piece_ + 1);
  for (std::size_t k = 0; k < members_.size(); ++k) {
    if (k == std::size_t(index_)) continue;  // nobody else reads that
    const auto [begin, end] = part(bounds, piece, k, element);
    copy_past_cache(to + k * slice_bytes, call.in + begin * element, (end - begin) * element);
  }
}

std::uint64_t SharedGroup::reduce_staged(const Call& call, std::span<const std::size_t> bounds) {
  const std::size_t element = size_of(call.type), per = slice_bytes / element;
  const bool scatter = call.operation == Operation::reduce_scatter;
  std::size_t longest = 0;
  for (std::size_t k = 0; k < members_.size(); ++k)
    longest = std::max(longest, bounds[k + 1] - bounds[k]);
  const std::size_t pieces = (longest + per - 1) / per;
  inputs_.resize(members_.size());
  const bool keeps = !scatter && (call.operation == Operation::all_reduce || index_ == call.root);
  std::uint64_t moved = 0;
  for (std::size_t i = 0; i < pieces; ++i) {
    ++piece_;
    if (i + 1 < pieces) fill_slot(call, bounds, i + 1);
    const auto [begin, end] = part(bounds, i, std::size_t(index_), element);
    for (int k = 0; k < size(); ++k)
      inputs_[std::size_t(k)] = k == index_ ? call.in + begin * element
                                            : slot(k, piece_) + std::size_t(index_) * slice_bytes;
    const std::size_t bytes = (end - begin) * element;
    std::byte* to = scatter ? call.out + (begin - bounds[std::size_t(index_)]) * element
                    : keeps ? call.out + begin * element
                            : result_slot(index_);
    echelon::reduce(call.type, call.op, to, inputs_.data(), size(), end - begin, size());
    if (keeps && call.operation == Operation::all_reduce)
      copy_past_cache(result_slot(index_), to, bytes);
    moved += (members_.size() - 1) * bytes;
    if (!scatter || i + 1 < pieces) barrier();
    if (!keeps) continue;
    for (int k = 0; k < size(); ++k) {
      if (k == index_) continue;
      const auto [from, until] = part(bounds, i, std::size_t(k), element);
      copy_bytes(call.out + from * element, result_slot(k), (until - from) * element);
      moved += (until - from) * element;
    }
  }
  return moved;
}

// ---- Moves ----

std::uint64_t SharedGroup::move(const Call& call, std::size_t input_bytes,
                                const std::function<std::vector<Transfer>()>& plan,
                                const std::function<std::size_t(int)>& expected_bytes) {
  const std::size_t piece = members_.size() * slice_bytes;
  const bool mine_exposed = line(index_).flags & is_exposed;
  const auto fill = [&](std::size_t i) {
    const std::size_t from = std::min(i * piece, input_bytes);
    copy_past_cache(slot(index_, piece_), call.in + from, std::min(piece, input_bytes - from));
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
    for (const auto& transfer : transfers) {
      const std::size_t bytes = transfer.end - transfer.begin;
      if (transfer.from == index_ || bytes == 0) continue;
      std::byte* to = call.out + transfer.to;
      copy_bytes(to, look(transfer.from, false, transfer.begin, bytes, to), bytes);
    }
    barrier();
    return moved;
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
                  slot(transfer.from, piece_) + (begin - i * piece), end - begin);
    }
  }
  return moved;
}

// all_to_all: what each rank has for each is laid open in a table, so that both sides can compare,
// and so that we know where our piece begins.
std::vector<SharedGroup::Transfer> SharedGroup::all_to_all_transfers(const Call& call) const {
  const std::size_t element = size_of(call.type);
  const auto bounds = bounds_of(call.back);
  std::vector<Transfer> transfers;
  for (int k = 0; k < size(); ++k) {
    // Read once: the other rank could still write to it.
    const std::vector<std::uint64_t> theirs(table(k), table(k) + size());
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

std::uint64_t* SharedGroup::table(int member) const {
  const Layout layout(members_.size(), sizeof(Block));
  return reinterpret_cast<std::uint64_t*>(base(member) + layout.tables) +
         number_ % 2 * members_.size();
}

SharedGroup::Result SharedGroup::run(const Call& call, Algorithm algorithm, bool spin) {
  went_direct_ = false;
  const std::uint64_t bytes = run_posted(call, algorithm, spin);
  // The next operation's post goes to the other line, which the others have read.
  claim(reinterpret_cast<const std::byte*>(&blocks_[std::size_t(index_)]->lines[(number_ + 1) % 2]),
        sizeof(Line));
  return {bytes, went_direct_ ? Algorithm::shared_direct : Algorithm::shared};
}

std::uint64_t SharedGroup::run_posted(const Call& call, Algorithm algorithm, bool spin) {
  const std::function<std::string()> what = [&] { return describe(call, algorithm); };
  Waiting waiting(endpoint_.health(), members_, call.deadline, Waiting::memory(spin), what);
  waiting_ = &waiting;
  ++number_;
  const std::size_t element = size_of(call.type);
  const std::uint64_t signed_as = signature(call, algorithm);
  const std::size_t all_pieces = total(call.counts) * element;
  const auto exposed = [&](std::size_t bytes) {
    return exposure_ && bytes >= limits_.exposed_from;
  };
  std::vector<Transfer> transfers;
  switch (call.operation) {
    case Operation::barrier:
      post(call, signed_as, 0, false);
      barrier();
      check_posts({});
      return 0;
    case Operation::all_reduce:
      if (algorithm == Algorithm::shared_direct ||
          (algorithm == Algorithm::automatic && call.bytes() < limits_.registered_from)) {
        post(call, signed_as, call.bytes(), false);
        begin_direct(call);
        wait_for_all();
        check_posts({});
        return all_reduce_direct(call, true);
      }
      direct_allowed_ = algorithm == Algorithm::automatic;
      [[fallthrough]];
    case Operation::reduce:
      post(call, signed_as, call.bytes(), exposed(call.bytes()));
      return reduce(call);
    case Operation::reduce_scatter:
      post(call, signed_as, all_pieces, exposed(all_pieces));
      return reduce(call);
    case Operation::all_gather:
    case Operation::gather: {
      const std::size_t mine = call.counts[std::size_t(index_)] * element;
      const auto bounds = bounds_of(call.counts);
      if (call.operation == Operation::all_gather || index_ == call.root)
        for (int k = 0; k < size(); ++k)
          transfers.push_back(
              {k, 0, call.counts[std::size_t(k)] * element, bounds[std::size_t(k)] * element});
      post(call, signed_as, mine, exposed(mine));
      return move(
          call, mine, [&] { return transfers; },
          [&](int k) { return call.counts[std::size_t(k)] * element; });
    }
    case Operation::broadcast: {
      const std::size_t mine = index_ == call.root ? call.bytes() : 0;
      transfers.push_back({call.root, 0, call.bytes(), 0});
      post(call, signed_as, mine, exposed(mine));
      return move(
          call, mine, [&] { return transfers; },
          [&](int k) { return k == call.root ? call.bytes() : 0; });
    }
    case Operation::scatter: {
      const auto bounds = bounds_of(call.counts);
      const std::size_t mine = index_ == call.root ? bounds.back() * element : 0;
      transfers.push_back({call.root, bounds[std::size_t(index_)] * element,
                           bounds[std::size_t(index_) + 1] * element, 0});
      post(call, signed_as, mine, exposed(mine));
      return move(
          call, mine, [&] { return transfers; },
          [&](int k) { return k == call.root ? bounds.back() * element : 0; });
    }
    case Operation::all_to_all: {
      std::copy(call.counts.begin(), call.counts.end(), table(index_));
      post(call, signed_as, all_pieces, exposed(all_pieces));
      return move(
          call, all_pieces, [&] { return all_to_all_transfers(call); },
          [](int) { return any_size; });
    }
    case Operation::send:
    case Operation::receive:
      break;
  }
  throw InvalidArgument(fmt::format("{} is no operation of a group", name(call.operation)));
}

}  // namespace echelon
