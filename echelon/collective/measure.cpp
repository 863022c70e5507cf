#include "echelon/collective/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "echelon/base/bytes.h"
#include "echelon/base/log.h"
#include "echelon/collective/group.h"
#include "echelon/collective/link_watch.h"
#include "echelon/collective/reduce.h"
#include "echelon/net/interface.h"

namespace echelon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t large = 1 << 20;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The times of several runs, in seconds.
struct Times {
  std::vector<double> sorted;

  double at(double quantile) const {
    return sorted[std::min(sorted.size() - 1, std::size_t(double(sorted.size()) * quantile))];
  }
  double spread() const { return at(0.8) / std::max(at(0.2), 1e-9); }
};

template <class Work>
Times times_of(int runs, Work work) {
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    work();
    times.push_back(since(start));
  }
  std::sort(times.begin(), times.end());
  return {std::move(times)};
}

template <class Work>
double time_of(int runs, double quantile, Work work) {
  return times_of(runs, work).at(quantile);
}

double measure_gamma() {
  std::vector<float> a(large / 4, 1), b(large / 4, 2);
  const void* in[2] = {a.data(), b.data()};
  return time_of(9, 0.3, [&] { reduce(DataType::f32, ReduceOp::sum, a.data(), in, 2, a.size()); }) /
         double(large);
}

// alpha is the time of a barrier of all ranks of the host. beta is the cost of a direct all-reduce
// of private memory per byte that goes from one core to another. Both are averages over runs of
// calls, because with more ranks than cores the last rank to arrive does not wait at all. Of these
// averages the fast ones count, because noise only adds time.
LinkFigures measure_shared(Group& host, double gamma) {
  constexpr std::size_t bytes = 8 << 10;
  constexpr int calls = 20;
  std::vector<float> values(bytes / sizeof(float), 1.f);
  for (int i = 0; i < 20; ++i) host.barrier();
  LinkFigures figures;
  const auto average = [&](auto work) {
    return time_of(15, 0.3,
                   [&] {
                     for (int i = 0; i < calls; ++i) work();
                   }) /
           calls;
  };
  figures.alpha = average([&] { host.barrier(); });
  const double time = average([&] {
    host.all_reduce(DataType::f32, ReduceOp::max, values.data(), values.data(), values.size(),
                    {.algorithm = Algorithm::shared_direct});
  });
  const double p = host.size();
  figures.beta = std::max((time - figures.alpha - (p - 1) * bytes * gamma) / (p * bytes), 1e-12);
  return figures;
}

// A large all-reduce of private memory in both ways, the best of several tries, because noise only
// adds time. Reading in place must win clearly: it calls the kernel for every piece, which is cheap
// on some machines and expensive on others.
bool measure_single_copy(Group& host) {
  if (!host.can_single_copy() || host.options().algorithm != Algorithm::automatic) return false;
  std::vector<float> values(large / sizeof(float), 1.f);
  double best[2] = {1e9, 1e9};
  for (int round = 0; round < 12; ++round) {  // alternating
    for (const bool single : {false, true}) {
      host.set_single_copy(single);
      host.barrier();
      const auto start = Clock::now();
      host.all_reduce(DataType::f32, ReduceOp::max, values.data(), values.data(), values.size());
      best[single] = std::min(best[single], since(start));
    }
  }
  return best[true] < 0.85 * best[false];
}

// Sends a message to the other rank and one back, between rank 0 and `other`.
class Pair {
 public:
  static constexpr std::size_t longest = 2 * large;

  Pair(Group& group, int other) : group_(group), other_(other), buffer_(longest) {}

  void pass(std::size_t bytes) {
    if (first()) {
      send(bytes, other_);
      receive(bytes, other_);
    } else {
      receive(bytes, 0);
      send(bytes, 0);
    }
  }
  bool first() const { return group_.rank() == 0; }
  // Rank 0 decides; the other rank receives the decision.
  bool agree(bool yes) {
    buffer_[0] = std::byte(yes);
    pass(1);
    return buffer_[0] != std::byte(0);
  }

 private:
  void send(std::size_t bytes, int to) {
    group_.wait(group_.send(buffer_.data(), bytes, to, 0, {.tag = "measure"}, false));
  }
  void receive(std::size_t bytes, int from) {
    group_.wait(group_.receive(buffer_.data(), bytes, from, 0, {.tag = "measure"}, false));
  }

  Group& group_;
  int other_;
  std::vector<std::byte> buffer_;
};

// alpha is half a round trip. beta is the time per byte of a large message, from two sizes, because
// the first bytes may pass faster than the rest (a shaper's burst, buffers on the way). The spread
// of the large messages shows whether something else used the link.
void measure_tcp(Pair pair, Figures& figures) {
  for (int i = 0; i < 5; ++i) pair.pass(8);
  figures.tcp.alpha = time_of(51, 0.3, [&] { pair.pass(8); }) / 2;
  // The largest message that a slow link can send in a moment.
  constexpr double a_moment = 0.02;
  std::size_t bytes = 64 << 10;
  for (;; bytes *= 2) {
    const double once = time_of(1, 0, [&] { pair.pass(bytes); });
    if (pair.agree(once > a_moment || 4 * bytes > Pair::longest)) break;
  }
  const Times half = times_of(7, [&] { pair.pass(bytes); });
  const Times whole = times_of(9, [&] { pair.pass(2 * bytes); });
  const double n = double(bytes), a_byte = (whole.at(0.3) - half.at(0.3)) / 2 / n,
               on_average = (whole.at(0.3) / 2 - figures.tcp.alpha) / (2 * n);
  figures.tcp.beta = std::max({a_byte, on_average, 1e-12});
  figures.spread = whole.spread();
}

// Whether a message takes the time that an earlier job's figures predict, to a factor of
// LinkWatch::far. The closest of three tries counts.
bool still_hold(Pair pair, const Figures& figures) {
  constexpr double short_time = 2e-3;
  const auto bytes = std::size_t(std::clamp(short_time / figures.tcp.beta, 64e3, 256e3));
  const double predicted = 2 * (figures.tcp.alpha + double(bytes) * figures.tcp.beta);
  pair.pass(8);
  double seconds = 0;
  for (int i = 0; i < 3; ++i) {
    seconds = time_of(1, 0, [&] { pair.pass(bytes); });
    const bool near = seconds < LinkWatch::far * predicted && seconds > predicted / LinkWatch::far;
    if (pair.agree(near)) return true;
  }
  if (!pair.first()) return false;
  log::warn(
      fmt::format("the links are not what they were when an earlier job measured them ({} ago): {} "
                  "and back take {} where {} were predicted; they are measured again",
                  human_age(figures.age()), human_bytes(bytes), human_seconds(seconds),
                  human_seconds(predicted)));
  return false;
}

// How each rank is reached: its address and the interface behind it. Collective.
std::vector<std::string> ways_in(Group& group) {
  constexpr std::size_t length = 96;
  const std::string address = group.endpoint().peer_info(group.endpoint().rank()).address.host;
  std::string mine = fmt::format("{} ({})", address, describe_interface(address));
  mine.resize(length, '\0');
  const auto ranks = std::size_t(group.size());
  std::string all(length * ranks, '\0');
  const std::vector<std::size_t> counts(ranks, length);
  group.all_gather(DataType::u8, mine.data(), all.data(), counts, {.tag = "measure"});
  std::vector<std::string> ways;
  for (std::size_t i = 0; i < ranks; ++i) ways.emplace_back(all.substr(i * length, length).c_str());
  return ways;
}

// What the figures depend on: the machines, the number of ranks on each, and how they are
// connected.
std::string describe_links(Group& group) {
  const auto ways = ways_in(group);
  const NetOptions& net = group.endpoint().options();
  std::vector<std::pair<std::string, int>> hosts;  // in the order of their first ranks
  std::map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const auto& peer = group.endpoint().peer_info(group.members()[i]);
    const auto [at, first] = known.try_emplace(peer.host, hosts.size());
    if (first) hosts.emplace_back(fmt::format("{} at {}", peer.machine, ways[i]), 0);
    ++hosts[at->second].second;
  }
  std::string text = fmt::format("{} cores, net.tls={}, net.connections={}",
                                 group.endpoint().cores(group.members()), net.tls, net.connections);
  for (const auto& [host, ranks] : hosts) text += fmt::format("; {} x {}", ranks, host);
  return text;
}

}  // namespace

Measured measure_figures(Group& group, Measure when) {
  if (group.size() == 1) return {{}, LinkCache({})};
  const auto before = group.ledger().entries();
  // Figures measured with forced options say nothing about the links and must not be cached for
  // jobs that force nothing. On one host, measuring takes milliseconds and depends on what else
  // runs, so it is done every time.
  const bool usual = group.shape().hosts > 1 && group.options().algorithm == Algorithm::automatic &&
                     group.options().single_copy == Switch::automatic;
  const LinkCache cache(usual ? describe_links(group) : "");
  std::array<double, 9> numbers = {};
  const auto share = [&] {
    group.broadcast(DataType::f64, numbers.data(), numbers.size(), 0, {.tag = "measure"});
  };
  const auto pack = [&](const Figures& f) {
    numbers = {f.shared.alpha, f.shared.beta,         f.tcp.alpha,        f.tcp.beta,      f.gamma,
               f.spread,       double(f.single_copy), double(f.measured), double(f.reused)};
  };
  const auto unpack = [&] {
    Figures f;
    f.shared = {numbers[0], numbers[1]};
    f.tcp = {numbers[2], numbers[3]};
    f.gamma = numbers[4];
    f.spread = numbers[5];
    f.single_copy = numbers[6] != 0;
    f.measured = std::int64_t(numbers[7]);
    f.reused = numbers[8] != 0;
    return f;
  };
  int other = -1, colour = 0;  // other: the first rank that is not on rank 0's host
  std::map<std::string, int> hosts;
  for (int i = 0; i < group.size(); ++i) {
    const auto& host = group.endpoint().peer_info(group.members()[std::size_t(i)]).host;
    hosts.try_emplace(host, i);
    if (i == group.rank()) colour = hosts[host];
    if (other < 0 && host != group.endpoint().peer_info(group.members()[0]).host) other = i;
  }
  const bool in_pair = other > 0 && (group.rank() == 0 || group.rank() == other);
  if (group.rank() == 0 && usual && when == Measure::once &&
      group.options().measure == MeasureLinks::automatic)
    if (const auto kept = cache.read()) pack(*kept);
  share();
  if (numbers[7] != 0) {  // the other ranks wait in share() for the result of the two
    const Figures kept = unpack();
    if (in_pair && !still_hold({group, other}, kept)) numbers[7] = 0;
    share();
    if (numbers[7] != 0) {
      group.ledger().restore(before);
      return {kept, cache};
    }
  }
  Figures figures;
  figures.measured = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  figures.gamma = measure_gamma();
  if (const auto host = group.split(colour, group.rank()); host->size() > 1) {
    figures.shared = measure_shared(*host, figures.gamma);
    figures.single_copy = measure_single_copy(*host);
  }
  if (in_pair) measure_tcp({group, other}, figures);
  if (group.rank() == 0) {
    pack(figures);
    if (usual) cache.write(figures);
  }
  share();
  group.ledger().restore(before);
  return {unpack(), cache};
}

}  // namespace echelon
