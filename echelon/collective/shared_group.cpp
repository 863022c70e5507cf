#include "echelon/collective/shared_group.h"

#include <fmt/format.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"

namespace echelon {
SharedGroup::SharedGroup(Endpoint& endpoint, std::shared_ptr<BlockStore> store,
                         std::vector<int> members, const std::vector<std::size_t>& blocks)
    : endpoint_(endpoint), store_(std::move(store)), members_(std::move(members)) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] == endpoint.rank()) {
      index_ = int(i);
      own_block_ = blocks[i];
    }
    std::byte* block = endpoint.heap(members_[i]).at(blocks[i], SharedBlock::bytes(size()));
    if (block == nullptr || blocks[i] % alignof(Line) != 0)
      throw Corrupt(
          fmt::format("{} named a block outside its heap", endpoint.health().name(members_[i])));
    blocks_.emplace_back(block, size());
  }
}

SharedGroup::~SharedGroup() {
  for (int k = 0; k < size(); ++k)
    if (k != index_)
      blocks_[std::size_t(k)].standing().gone.fetch_add(1, std::memory_order_release);
  store_->retire(own_block_, size());
}

std::unique_ptr<Link> SharedGroup::link(int member, int ring) {
  return std::make_unique<SharedLink>(blocks_[std::size_t(index_)].ring(member, ring),
                                      blocks_[std::size_t(member)].ring(index_, ring),
                                      endpoint_.health().name(members_[std::size_t(member)]));
}

bool SharedGroup::probe_exposure() {
  // Only the permission matters, so any address will do: EFAULT means allowed.
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

// ---- Meeting ----

SharedGroup::Result SharedGroup::run(const Call& call, Algorithm algorithm, bool spin) {
  const std::function<std::string()> what = [&] { return describe(call, algorithm); };
  Waiting waiting(endpoint_, members_, call.deadline, call.place, Waiting::memory(spin), what);
  waiting_ = &waiting;
  ++number_;
  try {
    return run_posted(call, algorithm);
  } catch (...) {
    // An atomic exchange, which later writes of the caller cannot overtake: whoever reads those
    // writes also sees that this rank has withdrawn.
    blocks_[std::size_t(index_)].standing().withdrawn.exchange(1);
    throw;
  }
}

SharedGroup::Result SharedGroup::run_posted(const Call& call, Algorithm algorithm) {
  switch (call.operation) {
    case Operation::barrier:
      post(call, algorithm, 0, false);
      barrier();
      check_posts();
      return {0};
    case Operation::all_reduce:
      return all_reduce(call, algorithm);
    case Operation::reduce:
      post(call, algorithm, call.bytes(), true);
      return reduce(call, false);
    case Operation::reduce_scatter:
      post(call, algorithm, total(call.counts) * size_of(call.type), true);
      return reduce(call, false);
    case Operation::all_gather:
    case Operation::gather:
      return gather(call, algorithm);
    case Operation::broadcast:
      return broadcast(call, algorithm);
    case Operation::scatter:
      return scatter(call, algorithm);
    case Operation::all_to_all:
      return all_to_all(call, algorithm);
    case Operation::send:
    case Operation::receive:
      break;
  }
  throw InvalidArgument(fmt::format("{} is no operation of a group", name(call.operation)));
}

void SharedGroup::post(const Call& call, Algorithm algorithm, std::size_t input_bytes,
                       bool may_expose) {
  std::uint32_t flags = 0;
  const auto place = [&](const std::byte* buffer, std::size_t bytes, std::uint32_t flag) {
    if (const auto offset = endpoint_.heap().offset(buffer, bytes); offset && buffer) {
      flags |= flag;
      return std::uint64_t(*offset);
    }
    return std::uint64_t(reinterpret_cast<std::uintptr_t>(buffer));
  };
  const std::uint64_t in = place(call.in, input_bytes, in_registered);
  const std::uint64_t out = place(call.out, call.bytes(), out_registered);
  const bool exposed = may_expose && exposure_ && input_bytes >= limits_.exposed_from;
  if (exposed || (flags & in_registered)) flags |= is_exposed;
  const std::uint64_t counts =
      call.operation == Operation::all_to_all ? 0 : checksum(std::as_bytes(call.counts));
  // Written at once: other ranks poll this cache line and would take it away between two stores.
  Line& mine = line(index_);
  mine.flags = flags;
  mine.signature = signature(call, algorithm);
  mine.bytes = input_bytes;
  mine.counts = counts;
  mine.in = in;
  mine.out = out;
}

void SharedGroup::signal() {
  Line& mine = line(index_);
  mine.sequence.store(++sequence_, std::memory_order_release);
  wake(mine.sequence, mine.sleepers);
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
    const bool same_size = other.bytes == expected;
    if (other.signature == mine.signature && same_size && other.counts == mine.counts) continue;
    const std::size_t element = size_of(DataType(mine.signature >> 16 & 0xff));
    const std::string& who = endpoint_.health().name(members_[std::size_t(k)]);
    throw InvalidArgument(disagreement(who, other.signature, other.bytes, endpoint_.rank(),
                                       mine.signature, mine.bytes) +
                          (other.signature != mine.signature ? ""
                           : same_size                       ? ", with another table of counts"
                           : expected != mine.bytes
                               ? fmt::format(" and expected {} from it", expected / element)
                               : ""));
  }
}

// A rank that withdrew has told all ranks why. That message is on its way and ends the wait.
void SharedGroup::require_present(int member) {
  const auto& withdrawn = blocks_[std::size_t(member)].standing().withdrawn;
  if (withdrawn.load(std::memory_order_acquire) == 0) return;
  waiting_->until([] { return false; },
                  [&](bool) { return std::vector<int>{members_[std::size_t(member)]}; }, sleep_for);
}

void SharedGroup::last_barrier() {
  barrier();
#if !defined(__SANITIZE_THREAD__)  // which does not support fences
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  require_all_present();
}

void SharedGroup::require_all_present() {
  for (int k = 0; k < size(); ++k)
    if (k != index_) require_present(k);
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
    waiting_->check();
    if (error == ESRCH) throw PeerLost(why);
    throw Error(why);
  }
}

void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;  // the pointer may be null
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

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes) std::memcpy(to, from, bytes);
}

}  // namespace echelon
