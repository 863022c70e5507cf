#include "echelon/collective/messenger.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "echelon/base/error.h"
#include "echelon/collective/reduce.h"
#include "echelon/collective/waiting.h"

namespace echelon {
namespace {

constexpr std::uint32_t magic = 0x31484345;  // "ECH1"
constexpr std::size_t chunk = 128 << 10;

struct Header {
  std::uint32_t mark;
  std::uint32_t step;
  std::uint64_t number;
  std::uint64_t signature;
  std::uint64_t bytes;
};
static_assert(sizeof(Header) == 32);

bool hands_partial_sums_on(const Call& call, Algorithm algorithm) {
  return algorithm != Algorithm::direct &&
         (call.operation == Operation::all_reduce || call.operation == Operation::reduce_scatter ||
          call.operation == Operation::reduce);
}

}  // namespace

// Progress of a lane: the step it sends with the bytes of that message already sent, and the same
// for the step it receives.
struct Messenger::Lane {
  int number;
  const std::vector<Step>& steps;
  std::vector<int>
      depends;  // the latest earlier step that receives into what this step sends; -1: none
  std::byte* chunk_memory;
  std::size_t send_step = 0, sent = 0;
  std::size_t receive_step = 0, received = 0,
              stored = 0;  // of the payload, `stored` is in its place
  Header outgoing = {}, incoming = {};

  bool done() const { return send_step == steps.size() && receive_step == steps.size(); }
};

class Messenger::Run {
 public:
  Run(Messenger& messenger, const Call& call, Algorithm algorithm, std::uint64_t number,
      const Schedule& schedule)
      : m_(messenger),
        call_(call),
        element_(size_of(call.type)),
        number_(number),
        signature_(signature(call, algorithm)) {
    for (std::size_t i = 0; i < schedule.lanes.size(); ++i) {
      lanes_.push_back({int(i), schedule.lanes[i], {}, m_.chunks_.get() + i * chunk});
      auto& lane = lanes_.back();
      for (std::size_t s = 0; s < lane.steps.size(); ++s) {
        int latest = -1;
        for (std::size_t t = 0; t < s; ++t)
          if (lane.steps[t].from >= 0 && lane.steps[t].receive.overlaps(lane.steps[s].send))
            latest = int(t);
        lane.depends.push_back(latest);
      }
    }
  }

  Sent go(Waiting& waiting) {
    for (std::uint64_t round = 0, turn = 1;; ++round, ++turn) {
      bool moved = false, done = true;
      for (auto& lane : lanes_) {
        moved |= send(lane);
        moved |= receive(lane);
        done &= lane.done();
      }
      if (done) return sent_;
      waiting.busy(turn, [&](bool all) { return missing(all); });
      if (moved)
        round = 0;
      else
        waiting.idle(
            round, [&](bool all) { return missing(all); },
            [&](std::chrono::microseconds time) { sleep(time); });
    }
  }

 private:
  std::byte* at(const Piece& piece) const {
    std::byte* base = piece.buffer == Buffer::in    ? const_cast<std::byte*>(call_.in)
                      : piece.buffer == Buffer::out ? call_.out
                                                    : m_.scratch_.get();
    return base + piece.begin * element_;
  }

  Link* link(int member, const Lane& lane) { return m_.link_(member, lane.number, call_.deadline); }

  // Bytes of a step's payload that may be sent now.
  std::size_t ready(const Lane& lane) const {
    const Step& step = lane.steps[lane.send_step];
    const std::size_t bytes = step.send.count * element_;
    const int on = lane.depends[lane.send_step];
    if (on < 0 || int(lane.receive_step) > on) return bytes;
    const Piece& source = lane.steps[std::size_t(on)].receive;
    if (int(lane.receive_step) < on || source.begin != step.send.begin) return 0;
    return std::min(bytes, lane.stored);
  }

  static bool worth_a_call(std::size_t limit, std::size_t gone, std::size_t bytes) {
    return limit == bytes || limit >= gone + chunk;
  }

  bool can_send(const Lane& lane) const {
    if (lane.send_step == lane.steps.size() || lane.steps[lane.send_step].to < 0) return false;
    const std::size_t gone = lane.sent < sizeof(Header) ? 0 : lane.sent - sizeof(Header);
    return worth_a_call(ready(lane), gone, lane.steps[lane.send_step].send.count * element_);
  }

  bool send(Lane& lane) {
    bool moved = false;
    for (; lane.send_step < lane.steps.size(); ++lane.send_step, lane.sent = 0) {
      const Step& step = lane.steps[lane.send_step];
      const std::size_t bytes = step.send.count * element_;
      if (step.to < 0) continue;
      const std::size_t limit = ready(lane);
      const std::size_t gone = lane.sent < sizeof(Header) ? 0 : lane.sent - sizeof(Header);
      if (!worth_a_call(limit, gone, bytes)) return moved;
      if (lane.sent == 0)
        lane.outgoing = {magic, std::uint32_t(lane.send_step), number_, signature_, bytes};
      const std::size_t head = lane.sent < sizeof(Header) ? sizeof(Header) - lane.sent : 0;
      const std::array<iovec, 2> parts = {
          iovec{reinterpret_cast<std::byte*>(&lane.outgoing) + (sizeof(Header) - head), head},
          iovec{at(step.send) + gone, limit - gone}};
      Link* to = link(step.to, lane);
      if (to == nullptr) return moved;
      const std::size_t taken = to->try_send(parts);
      const std::size_t payload = taken > head ? taken - head : 0;
      (to->kind() == LinkKind::shared ? sent_.shared : sent_.tcp) += payload;
      lane.sent += taken;
      moved |= taken > 0;
      if (lane.sent < sizeof(Header) + bytes) return moved;
    }
    return moved;
  }

  bool receive(Lane& lane) {
    bool moved = false;
    for (; lane.receive_step < lane.steps.size();) {
      const Step& step = lane.steps[lane.receive_step];
      const std::size_t bytes = step.receive.count * element_;
      if (step.from < 0) {
        next(lane);
        continue;
      }
      const std::size_t head = lane.received < sizeof(Header) ? sizeof(Header) - lane.received : 0;
      const std::size_t in = lane.received < sizeof(Header) ? 0 : lane.received - sizeof(Header);
      const std::size_t room =
          step.combine ? std::min(chunk, bytes - lane.stored) - (in - lane.stored) : bytes - in;
      if (room > 0 || head > 0) {
        std::byte* to =
            step.combine ? lane.chunk_memory + (in - lane.stored) : at(step.receive) + in;
        const std::array<iovec, 2> parts = {
            iovec{reinterpret_cast<std::byte*>(&lane.incoming) + (sizeof(Header) - head), head},
            iovec{to, room}};
        Link* from = link(step.from, lane);
        if (from == nullptr) return moved;
        const std::size_t taken = from->try_receive(parts);
        lane.received += taken;
        moved |= taken > 0;
        if (head > 0 && taken >= head) check(lane, step, bytes);
        if (taken == 0 || taken < head) return moved;
      }
      const std::size_t now = lane.received - sizeof(Header);
      if (step.combine) {
        const bool full = now - lane.stored == std::min(chunk, bytes - lane.stored);
        if (!full) return moved;
        if (!free_to_write(lane, step, now)) return moved;
        combine(lane, step, now - lane.stored);
      }
      lane.stored = now;
      if (lane.stored == bytes)
        next(lane);
      else if (!step.combine)
        return moved;
      moved = true;
    }
    return moved;
  }

  void next(Lane& lane) {
    ++lane.receive_step;
    lane.received = lane.stored = 0;
  }

  // Must not overwrite what this step or an earlier one still has to send.
  bool free_to_write(const Lane& lane, const Step& step, std::size_t until) const {
    for (std::size_t s = lane.send_step; s <= lane.receive_step && s < lane.steps.size(); ++s) {
      const Step& sending = lane.steps[s];
      if (sending.to < 0 || !sending.send.overlaps(step.receive)) continue;
      if (s != lane.send_step || sending.send.begin != step.receive.begin) return false;
      if (lane.sent < sizeof(Header) + until) return false;
    }
    return true;
  }

  void combine(Lane& lane, const Step& step, std::size_t bytes) {
    std::byte* to = at(step.receive) + lane.stored;
    const std::byte* own = at(step.with) + lane.stored;
    const void* inputs[2] = {own, lane.chunk_memory};
    if (step.received_first) std::swap(inputs[0], inputs[1]);
    const bool average = call_.op == ReduceOp::average;
    const ReduceOp op = average && !step.finish ? ReduceOp::sum : call_.op;
    reduce(call_.type, op, to, inputs, 2, bytes / element_, int(m_.members_.size()));
  }

  void check(const Lane& lane, const Step& step, std::size_t bytes) const {
    const Header& header = lane.incoming;
    const std::string& who = m_.endpoint_.health().name(m_.members_[std::size_t(step.from)]);
    if (header.mark != magic)
      throw Corrupt(
          fmt::format("{} sent a message that is none (at step {})", who, lane.receive_step));
    if (header.number == number_ && header.signature == signature_ && header.bytes == bytes) return;
    const std::string place =
        header.number == number_
            ? ""
            : fmt::format(" as its operation {} (here: {})", header.number, number_);
    throw InvalidArgument(fmt::format("ranks disagree: {} called {}{}, this rank (rank {}) {}", who,
                                      describe_header(header), place, m_.endpoint_.rank(),
                                      describe(signature_, call_.count)) +
                          (header.signature == signature_
                               ? fmt::format("; a message of {} bytes came where {} were expected",
                                             header.bytes, bytes)
                               : ""));
  }

  static std::string describe_header(const Header& header) {
    std::string text = describe(header.signature, 0);
    // The header holds only the size of this message, not the sender's total count.
    if (const auto of = text.find(" of 0 "); of != std::string::npos) text.replace(of, 6, " of ");
    return text;
  }

  std::vector<int> missing(bool all) {
    std::vector<int> ranks;
    for (const auto& lane : lanes_) {
      if (lane.receive_step < lane.steps.size())
        add(ranks, lane.steps[lane.receive_step].from, lane, all);
      else if (lane.send_step < lane.steps.size())
        add(ranks, lane.steps[lane.send_step].to, lane, all);
    }
    return ranks;
  }

  // A rank that has left is missed at once if memory is shared or it never connected. Over TCP its
  // goodbye may overtake earlier messages, so the end of the stream decides.
  void add(std::vector<int>& ranks, int member, const Lane& lane, bool all) {
    if (member < 0) return;
    if (const Link* way = all ? nullptr : link(member, lane); way && way->kind() == LinkKind::tcp)
      return;
    const int rank = m_.members_[std::size_t(member)];
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  }

  // Sleeps until one of the links may progress. A ring in shared memory, or a link that does not
  // exist yet, cannot be polled, so it is checked often.
  void sleep(std::chrono::microseconds time) {
    std::vector<pollfd> ready_links;
    bool often = false;
    const auto add_poll = [&](const pollfd& poll) {
      if (poll.fd < 0)
        often = true;
      else
        ready_links.push_back(poll);
    };
    const pollfd none = {-1, 0, 0};
    for (auto& lane : lanes_) {
      if (lane.receive_step < lane.steps.size() && lane.steps[lane.receive_step].from >= 0) {
        const Link* from = link(lane.steps[lane.receive_step].from, lane);
        add_poll(from ? from->receive_poll() : none);
      }
      if (can_send(lane)) {
        const Link* to = link(lane.steps[lane.send_step].to, lane);
        add_poll(to ? to->send_poll() : none);
      }
    }
    if (often || ready_links.empty())
      return sleep_for(std::min(time, std::chrono::microseconds(200)));
    const timespec limit = {0, 10'000'000};
    ppoll(ready_links.data(), ready_links.size(), &limit, nullptr);
  }

  Messenger& m_;
  const Call& call_;
  std::size_t element_;
  std::uint64_t number_, signature_;
  std::vector<Lane> lanes_;
  Sent sent_;
};

Messenger::Messenger(Endpoint& endpoint, std::vector<int> members, int index, LinkOf link)
    : endpoint_(endpoint),
      members_(std::move(members)),
      index_(index),
      link_(std::move(link)),
      chunks_(std::make_unique<std::byte[]>(lanes * chunk)) {}

std::byte* Messenger::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

// Sends fp16 or bf16 as fp32: the same algorithm on a wider copy.
Messenger::Sent Messenger::run_wide(const Call& call, Algorithm algorithm, std::uint64_t number,
                                    bool spin) {
  const bool scatter = call.operation == Operation::reduce_scatter;
  const std::size_t in_count = scatter ? total(call.counts) : call.count;
  const std::size_t out_count = scatter ? call.counts[std::size_t(index_)] : call.count;
  const auto in = std::make_unique_for_overwrite<float[]>(in_count);
  const auto out = std::make_unique_for_overwrite<float[]>(out_count);
  convert(call.type, call.in, DataType::f32, in.get(), in_count);
  Call wider = call;
  wider.type = DataType::f32;
  wider.in = reinterpret_cast<const std::byte*>(in.get());
  wider.out = reinterpret_cast<std::byte*>(out.get());
  const Sent sent = run(wider, algorithm, number, spin, false);
  if (call.operation != Operation::reduce || index_ == call.root)
    convert(DataType::f32, out.get(), call.type, call.out, out_count);
  return sent;
}

Messenger::Sent Messenger::run(const Call& given, Algorithm algorithm, std::uint64_t number,
                               bool spin, bool wide) {
  if (wide && (given.type == DataType::f16 || given.type == DataType::bf16) &&
      hands_partial_sums_on(given, algorithm))
    return run_wide(given, algorithm, number, spin);
  Call call = given;
  const int size = int(members_.size());
  const std::size_t element = size_of(call.type);
  const Schedule schedule = make_schedule(call, algorithm, index_, size);
  scratch(schedule.scratch * element);
  std::unique_ptr<std::byte[]> own_out;
  // Needs memory for partial sums.
  if (call.operation == Operation::reduce && index_ != call.root) {
    own_out = std::make_unique_for_overwrite<std::byte[]>(call.bytes());
    call.out = own_out.get();
  }
  const auto copy_in = [&](std::size_t to, std::size_t from, std::size_t count) {
    if (count && call.out + to * element != call.in + from * element)
      std::memmove(call.out + to * element, call.in + from * element, count * element);
  };
  const auto before = [&](std::span<const std::size_t> counts) {
    return total(counts.first(std::size_t(index_)));
  };
  if (schedule.starts_in_out) copy_in(0, 0, call.count);
  switch (call.operation) {
    case Operation::all_gather:
      copy_in(before(call.counts), 0, call.counts[std::size_t(index_)]);
      break;
    case Operation::broadcast:
      if (index_ == call.root) copy_in(0, 0, call.count);
      break;
    case Operation::gather:
      if (index_ == call.root) copy_in(before(call.counts), 0, call.counts[std::size_t(index_)]);
      break;
    case Operation::scatter:
      if (index_ == call.root) copy_in(0, before(call.counts), call.counts[std::size_t(index_)]);
      break;
    case Operation::all_to_all:
      copy_in(before(call.back), before(call.counts), call.counts[std::size_t(index_)]);
      break;
    default:
      break;
  }

  const std::function<std::string()> what = [&] { return describe(call, algorithm); };
  Waiting waiting(endpoint_, members_, call.deadline, call.place, Waiting::sockets(spin), what);
  Sent sent;
  try {
    sent = Run(*this, call, algorithm, number, schedule).go(waiting);
  } catch (const PeerLost&) {
    // The broken connection shows that a rank is gone. Its control connection soon tells why.
    for (int i = 0; i < 50; ++i) {
      endpoint_.health().check_present(members_, call.place.wait.group);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    throw;
  }

  if (schedule.sum_scratch) {
    std::vector<const void*> inputs;
    for (int k = 0; k < size; ++k)
      inputs.push_back(k == index_
                           ? call.in + schedule.own.begin * element
                           : scratch_.get() + std::size_t(k) * schedule.own.count * element);
    reduce(call.type, call.op, call.out, inputs.data(), size, schedule.own.count, size);
  }
  if (schedule.finish_here && call.op == ReduceOp::average)
    scale(call.type, call.out, call.count, size);
  return sent;
}

}  // namespace echelon
