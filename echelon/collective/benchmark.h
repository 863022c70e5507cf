// Measures the collectives of a group, for `echelon bench collectives`.
//
// Each repetition begins with a barrier; its time is from there to the end of the operation on rank
// 0. Before and after the timed repetitions, every rank checks the result for known values
// (seeded_values.h).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "echelon/collective/call.h"

namespace echelon {

class Group;

struct BenchmarkOptions {
  Operation operation = Operation::all_reduce;
  DataType type = DataType::f32;
  std::vector<std::size_t> sizes = {64, 4096, 65536, 1 << 20, 1 << 24, 1 << 26};  // bytes
  bool registered = false;  // buffers from Group::allocate
  Algorithm algorithm = Algorithm::automatic;
  double seconds = 1;  // for each size
};

struct BenchmarkResult {
  std::size_t bytes;
  Algorithm algorithm;
  double median, p99;  // seconds
  // Bus bandwidth: bytes that each rank must send or receive, divided by the time: 2((p-1)/p) n for
  // all_reduce, ((p-1)/p) n for reduce_scatter, all_gather and all_to_all, n for the rest.
  double bus_bandwidth;
  double predicted;  // seconds by the cost model
  // For all_reduce on one host: seconds in which all ranks concurrently copy a vector each, the
  // fastest of several. This reads and writes as many bytes as an all_reduce, without an exchange.
  double floor;
};

// The measured operation, on buffers of `bytes` each; if it works in place, `in` holds the result.
// Tests pass a wrong one.
using BenchmarkCall = std::function<void(std::byte* in, std::byte* out, std::size_t bytes)>;

// Collective; the result is meaningful on rank 0. Throws Error if an operation returns a wrong
// value. Without `call` it measures options.operation of the group.
std::vector<BenchmarkResult> run_benchmark(Group& group, const BenchmarkOptions& options,
                                           const BenchmarkCall& call = {});

}  // namespace echelon
