#include "echelon/collective/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/log.h"
#include "echelon/collective/group.h"
#include "echelon/collective/reduce.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t large = 1 << 20;
constexpr auto keep_for = std::chrono::hours(24);

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A quantile of several runs, in seconds.
template <class Work>
double time_of(int runs, double quantile, Work work) {
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    work();
    times.push_back(since(start));
  }
  std::sort(times.begin(), times.end());
  return times[std::size_t(double(runs) * quantile)];
}

double measure_gamma() {
  std::vector<float> a(large / 4, 1), b(large / 4, 2);
  const void* in[2] = {a.data(), b.data()};
  return time_of(9, 0.3, [&] { reduce(DataType::f32, ReduceOp::sum, a.data(), in, 2, a.size()); }) /
         double(large);
}

// alpha is a barrier of all ranks of the host, beta what a direct all-reduce of private memory
// costs for each byte that goes from one core to another. Both are averages over runs of calls
// (with more ranks than cores, the last to arrive does not wait at all), and of those a fast one:
// noise only ever adds.
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

// A large all-reduce of private memory both ways, the best of several: what disturbs one only adds
// to it. Reading in place must clearly win: it needs the kernel for every piece, which is cheap on
// one machine and dear on another.
bool measure_single_copy(Group& host) {
  if (!host.can_single_copy() || host.options().algorithm != "auto") return false;
  std::vector<float> values(large / sizeof(float), 1.f);
  double best[2] = {1e9, 1e9};
  for (int round = 0; round < 12; ++round) {  // in turns
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

// Between rank 0 and the first rank on another host, the others waiting: half of a round trip, and
// what each byte of a large message adds.
LinkFigures measure_tcp(Group& group, int other) {
  std::vector<std::byte> buffer(2 * large);
  const auto pass = [&](std::size_t bytes) {
    const auto send = [&](int to) {
      group.wait(group.send(buffer.data(), bytes, to, 0, {.tag = "measure"}, false));
    };
    const auto receive = [&](int from) {
      group.wait(group.receive(buffer.data(), bytes, from, 0, {.tag = "measure"}, false));
    };
    if (group.rank() == 0) {
      send(other);
      receive(other);
    } else {
      receive(0);
      send(0);
    }
  };
  for (int i = 0; i < 5; ++i) pass(8);
  LinkFigures figures;
  figures.alpha = time_of(51, 0.3, [&] { pass(8); }) / 2;
  // As large a message as a slow link can take in a moment; rank 0 says whether it is enough.
  constexpr double a_moment = 0.02;
  std::size_t bytes = 64 << 10;
  for (;; bytes *= 2) {
    const double once = time_of(1, 0, [&] { pass(bytes); });
    buffer[0] = std::byte(once > a_moment || 2 * bytes > buffer.size());
    pass(1);
    if (buffer[0] != std::byte(0)) break;
  }
  figures.beta =
      std::max((time_of(5, 0.4, [&] { pass(bytes); }) / 2 - figures.alpha) / double(bytes), 1e-12);
  return figures;
}

std::optional<fs::path> cache_folder() {
  const auto variable = [](const char* name) -> std::optional<fs::path> {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') return {};
    return fs::path(value);
  };
  if (const auto folder = variable("ECHELON_CACHE")) return folder;
  if (const auto folder = variable("XDG_CACHE_HOME")) return *folder / "echelon";
  if (const auto folder = variable("HOME")) return *folder / ".cache" / "echelon";
  return {};
}

// What the figures depend on: which machines, how many ranks on each, and how they are connected.
std::string topology_key(Group& group) {
  const NetOptions& net = group.endpoint().options();
  std::string text = fmt::format("{} {} {} {}", group.endpoint().cores(group.members()),
                                 net.interface, net.tls, net.connections);
  std::map<std::string, std::pair<std::string, int>> hosts;
  for (const int rank : group.members()) {
    auto& host = hosts[group.endpoint().card(rank).host];
    host.first = group.endpoint().card(rank).machine;
    ++host.second;
  }
  for (const auto& [id, host] : hosts) text += fmt::format(" {}:{}", host.first, host.second);
  return fmt::format("links-{:016x}.json", checksum(std::as_bytes(std::span(text))));
}

std::optional<Figures> read_cache(const fs::path& file) {
  std::error_code none;
  const auto written = fs::last_write_time(file, none);
  if (none || fs::file_time_type::clock::now() - written > keep_for) return {};
  try {
    return Figures::parse(read_file(file), file.string());
  } catch (const Error& error) {
    log::debug(fmt::format("measured again: {}", error.what()));
    return {};
  }
}

void write_cache(const fs::path& file, const Figures& figures) {
  try {
    fs::create_directories(file.parent_path());
    write_file(file, figures.json() + "\n");
  } catch (const std::exception& error) {  // a read-only home: measured again next time
    log::debug(fmt::format("figures of the links are not kept: {}", error.what()));
  }
}

}  // namespace

Figures measure_figures(Group& group, Measure when) {
  if (group.size() == 1) return {};
  const auto before = group.ledger().entries();
  const auto folder = cache_folder();
  const fs::path file = folder ? *folder / topology_key(group) : fs::path();
  std::array<double, 7> numbers = {};
  const auto share = [&] {
    group.broadcast(DataType::f64, numbers.data(), numbers.size(), 0, {.tag = "measure"});
  };
  const auto pack = [&](const Figures& f) {
    numbers = {1,          f.shared.alpha, f.shared.beta,        f.tcp.alpha,
               f.tcp.beta, f.gamma,        double(f.single_copy)};
  };
  const auto unpack = [&] {
    return Figures{{numbers[1], numbers[2]}, {numbers[3], numbers[4]}, numbers[5], numbers[6] != 0};
  };
  // What is forced says nothing about the links, and must not be kept for jobs that force nothing.
  // On one host measuring takes milliseconds, and depends on what else runs: it is done every time.
  const bool usual = group.shape().hosts > 1 && group.options().algorithm == "auto" &&
                     group.options().single_copy == "auto";
  if (group.rank() == 0 && folder && usual && when == Measure::once)
    if (const auto cached = read_cache(file)) pack(*cached);
  share();
  if (numbers[0] != 0) {
    group.ledger().restore(before);
    return unpack();
  }
  Figures figures;
  figures.gamma = measure_gamma();
  int other = -1, colour = 0;
  std::map<std::string, int> hosts;
  for (int i = 0; i < group.size(); ++i) {
    const auto& host = group.endpoint().card(group.members()[std::size_t(i)]).host;
    hosts.try_emplace(host, i);
    if (i == group.rank()) colour = hosts[host];
    if (other < 0 && !host.empty() && host != group.endpoint().card(group.members()[0]).host)
      other = i;
  }
  if (const auto host = group.split(colour, group.rank()); host->size() > 1) {
    figures.shared = measure_shared(*host, figures.gamma);
    figures.single_copy = measure_single_copy(*host);
  }
  if (other > 0 && (group.rank() == 0 || group.rank() == other))
    figures.tcp = measure_tcp(group, other);
  if (group.rank() == 0) {
    pack(figures);
    if (folder && usual) write_cache(file, figures);
  }
  share();
  group.ledger().restore(before);
  return unpack();
}

}  // namespace echelon
