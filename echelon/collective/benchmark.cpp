#include "echelon/collective/benchmark.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/collective/group.h"
#include "echelon/collective/seeded_values.h"

namespace echelon {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Buffers of the requested kind.
class Buffers {
 public:
  Buffers(Group& group, std::size_t bytes, bool registered) : bytes_(bytes + 1) {
    for (auto& buffer : memory_) {
      if (registered)
        buffer = group.allocate(bytes_);
      else
        buffer = plain(bytes_);
    }
    clear();
  }
  // Sets values that stay finite however often they are summed.
  void clear() {
    for (auto& buffer : memory_) std::memset(buffer.get(), 0, bytes_);
  }
  std::byte* in() { return memory_[0].get(); }
  std::byte* out() { return memory_[1].get(); }

 private:
  static std::shared_ptr<std::byte> plain(std::size_t bytes) {
    try {
      return {new std::byte[bytes], std::default_delete<std::byte[]>()};
    } catch (const std::bad_alloc&) {
      throw Error(fmt::format("no memory for two buffers of {} a rank; give smaller --sizes",
                              human_bytes(bytes)));
    }
  }

  std::size_t bytes_;
  std::shared_ptr<std::byte> memory_[2];
};

void run_once(Group& group, const BenchmarkOptions& options, std::byte* in, std::byte* out,
              std::size_t bytes, const std::vector<std::size_t>& even) {
  const std::size_t count = bytes / size_of(options.type);
  const CallOptions call{.tag = "bench", .algorithm = options.algorithm};
  switch (options.operation) {
    case Operation::all_reduce:
      return group.all_reduce(options.type, ReduceOp::sum, in, in, count, call);
    case Operation::reduce_scatter:
      return group.reduce_scatter(options.type, ReduceOp::sum, in, out, even, call);
    case Operation::all_gather:
      return group.all_gather(options.type, in, out, even, call);
    case Operation::broadcast:
      return group.broadcast(options.type, in, count, 0, call);
    case Operation::reduce:
      return group.reduce(options.type, ReduceOp::sum, in, out, count, 0, call);
    case Operation::gather:
      return group.gather(options.type, in, out, even, 0, call);
    case Operation::scatter:
      return group.scatter(options.type, in, out, even, 0, call);
    case Operation::all_to_all:
      return group.all_to_all(options.type, in, out, even, even, call);
    case Operation::barrier:
      return group.barrier(call);
    case Operation::send:
    case Operation::receive: {
      if (group.rank() == 0) group.wait(group.send(in, bytes, 1, 0, call, false));
      if (group.rank() == 1) group.wait(group.receive(in, bytes, 0, 0, call, false));
      return;
    }
  }
}

// Calls the operation once on known values and checks this rank's result.
void check_values(Group& group, const BenchmarkOptions& options, const BenchmarkCall& call,
                  Buffers& buffers, std::size_t bytes, std::uint64_t seed) {
  const auto [operation, type] = std::pair(options.operation, options.type);
  const int rank = group.rank(), size = group.size();
  if (operation == Operation::barrier) return;
  const SeededValues values(type, size, seed);
  const std::size_t count = bytes / size_of(type), part = count / std::size_t(size),
                    part_bytes = part * size_of(type);
  values.fill(rank, 0, buffers.in(), count);
  call(buffers.in(), buffers.out(), bytes);
  const std::string what =
      fmt::format("{} of {} on rank {}", name(operation), human_bytes(bytes), rank);
  const auto first = std::size_t(rank) * part;
  switch (operation) {
    case Operation::all_reduce:
      values.check_sum(0, buffers.in(), count, what);
      break;
    case Operation::reduce:
      if (rank == 0) values.check_sum(0, buffers.out(), count, what);
      break;
    case Operation::reduce_scatter:
      values.check_sum(first, buffers.out(), part, what);
      break;
    case Operation::gather:
      if (rank != 0) break;
      [[fallthrough]];
    case Operation::all_gather:
      for (int r = 0; r < size; ++r)
        values.check(r, 0, buffers.out() + std::size_t(r) * part_bytes, part, what);
      break;
    case Operation::all_to_all:
      for (int r = 0; r < size; ++r)
        values.check(r, first, buffers.out() + std::size_t(r) * part_bytes, part, what);
      break;
    case Operation::scatter:
      values.check(0, first, buffers.out(), part, what);
      break;
    case Operation::broadcast:
      values.check(0, 0, buffers.in(), count, what);
      break;
    case Operation::send:
    case Operation::receive:
      if (rank <= 1) values.check(0, 0, buffers.in(), count, what);
      break;
    case Operation::barrier:
      break;
  }
  buffers.clear();
}

// The time this rank takes to copy a vector while all others do the same; the fastest of several
// tries. Collective.
double copy_seconds(Group& group, Buffers& buffers, std::size_t bytes) {
  const int repeats = bytes > (1 << 20) ? 10 : 100;
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    group.barrier();
    const auto start = Clock::now();
    std::memcpy(buffers.out(), buffers.in(), bytes);
    best = std::min(best, since(start));
  }
  return best;
}

double bus_bytes(Operation operation, double bytes, double ranks) {
  const double share = (ranks - 1) / ranks;
  switch (operation) {
    case Operation::all_reduce:
      return 2 * share * bytes;
    case Operation::reduce_scatter:
    case Operation::all_gather:
    case Operation::all_to_all:
      return share * bytes;
    default:
      return bytes;
  }
}

}  // namespace

std::vector<BenchmarkResult> run_benchmark(Group& group, const BenchmarkOptions& options,
                                           const BenchmarkCall& given) {
  if (group.size() < 2)
    throw InvalidArgument("a benchmark of collectives needs at least two ranks: --world 2");
  std::vector<BenchmarkResult> results;
  for (const std::size_t size : options.sizes) {
    const std::size_t unit =
        size_of(options.type) *
        std::size_t(options.operation == Operation::all_reduce ? 1 : group.size());
    const bool nothing = options.operation == Operation::barrier;
    const std::size_t bytes = nothing ? 0 : std::max(size / unit, std::size_t{1}) * unit;
    Buffers buffers(group, bytes, options.registered);
    const std::vector<std::size_t> even(std::size_t(group.size()),
                                        bytes / size_of(options.type) / std::size_t(group.size()));
    const BenchmarkCall own = [&](std::byte* in, std::byte* out, std::size_t) {
      run_once(group, options, in, out, bytes, even);
    };
    const BenchmarkCall& call = given ? given : own;
    check_values(group, options, call, buffers, bytes, bytes);
    group.ledger().clear();
    const auto timed = [&] {
      group.barrier();
      const auto start = Clock::now();
      call(buffers.in(), buffers.out(), bytes);
      return since(start);
    };
    double first = 0;
    for (int i = 0; i < 5; ++i) first = timed();
    // All ranks repeat as often as rank 0 decides.
    std::int64_t repeats =
        std::clamp<std::int64_t>(std::int64_t(options.seconds / std::max(first, 1e-7)), 10, 20000);
    group.broadcast(DataType::i64, &repeats, 1, 0);
    std::vector<double> times;
    for (std::int64_t i = 0; i < repeats; ++i) times.push_back(timed());
    std::sort(times.begin(), times.end());
    const auto at = [&](double share) {
      return times[std::min(times.size() - 1, std::size_t(share * double(times.size())))];
    };
    // The ledger knows which algorithm was used.
    Algorithm algorithm = Algorithm::direct;
    for (const auto& entry : group.ledger().entries())
      if (entry.tag == "bench") algorithm = entry.algorithm;
    BenchmarkResult result{bytes, algorithm, at(0.5), at(0.99), 0, 0, 0};
    result.bus_bandwidth =
        bus_bytes(options.operation, double(bytes), group.size()) / result.median;
    if (options.operation < Operation::send)
      result.predicted = cost(options.operation, algorithm, bytes, group.shape(), group.figures(),
                              options.registered ? BufferKind::registered : BufferKind::any);
    if (options.operation == Operation::all_reduce && group.shape().hosts == 1)
      result.floor = copy_seconds(group, buffers, bytes);
    check_values(group, options, call, buffers, bytes, bytes + 1);
    results.push_back(result);
    if (nothing) break;  // no sizes
  }
  return results;
}

}  // namespace echelon
