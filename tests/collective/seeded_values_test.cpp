#include "echelon/collective/seeded_values.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstring>

#include "echelon/base/error.h"
#include "echelon/collective/benchmark.h"
#include "tests/base/thrown.h"
#include "tests/collective/elements.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

const std::string nothing = "(nothing was thrown)";
constexpr std::size_t count = 10000;  // more than the table has entries

std::vector<Bytes> vectors(const SeededValues& values, DataType type, int ranks) {
  std::vector<Bytes> all;
  for (int r = 0; r < ranks; ++r) {
    all.emplace_back(count * size_of(type));
    values.fill(r, 0, all.back().data(), count);
  }
  return all;
}

Bytes sum_of(const std::vector<Bytes>& all, DataType type) {
  std::vector<const void*> in;
  for (const auto& one : all) in.push_back(one.data());
  Bytes out(all[0].size());
  reduce(type, ReduceOp::sum, out.data(), in.data(), int(in.size()), count);
  return out;
}

TEST(SeededValues, FitTheirOwnVectorsAndSumsOfEveryType) {
  for (const auto type : all_types)
    for (const int ranks : {2, 5, 64}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", name(type), ranks));
      const SeededValues values(type, ranks, 7);
      const auto all = vectors(values, type, ranks);
      const Bytes sum = sum_of(all, type);
      EXPECT_EQ(thrown<Error>([&] {
                  for (int r = 0; r < ranks; ++r)
                    values.check(r, 0, all[std::size_t(r)].data(), count, "x");
                  values.check_sum(0, sum.data(), count, "x");
                  const std::size_t first = 4321;
                  values.check_sum(first, sum.data() + first * size_of(type), count - first, "x");
                }),
                nothing);
    }
}

TEST(SeededValues, TellOneElementThatIsWrong) {
  const SeededValues values(DataType::f32, 3, 7);
  Bytes sum = sum_of(vectors(values, DataType::f32, 3), DataType::f32);
  store(DataType::f32, 100, sum.data() + 5000 * sizeof(float));
  const std::string error =
      thrown<Error>([&] { values.check_sum(0, sum.data(), count, "all_reduce of 1 KiB"); });
  EXPECT_EQ(error.find("all_reduce of 1 KiB gave a wrong value: element 5000 is 0x42c80000 and "
                       "should be 0x"),
            0u)
      << error;
}

TEST(SeededValues, TellAMissingADoubledAndAMisplacedPart) {
  constexpr auto type = DataType::f32;
  const SeededValues values(type, 4, 7);
  const auto all = vectors(values, type, 4);
  const auto refused = [&](const std::vector<Bytes>& parts) {
    const Bytes sum = sum_of(parts, type);
    return thrown<Error>([&] { values.check_sum(0, sum.data(), count, "x"); }) != nothing;
  };
  EXPECT_FALSE(refused(all));
  EXPECT_TRUE(refused({all[0], all[1], all[2]}));
  EXPECT_TRUE(refused({all[0], all[1], all[2], all[2]}));
  for (const std::size_t shift : {1u, 64u, 1024u, 4096u}) {
    Bytes moved(all[0].begin() + std::ptrdiff_t(shift * sizeof(float)), all[0].end());
    moved.resize(all[0].size());
    EXPECT_TRUE(refused({moved, all[1], all[2], all[3]})) << shift;
  }
}

// Every operation, over shared memory and over messages between hosts.
TEST(Benchmark, ChecksWhatEveryOperationGives) {
  for (const int hosts : {1, 2})
    run_ranks_well({.world = 4, .hosts = hosts}, [&](Group& group) {
      for (int op = 0; op <= int(Operation::send); ++op) {
        BenchmarkOptions options;
        options.operation = Operation(op);
        options.type = op % 2 ? DataType::bf16 : DataType::f32;
        options.sizes = {40000};
        options.registered = op % 2;
        options.seconds = 1e-6;
        run_benchmark(group, options);
      }
    });
}

// What the ranks say where rank 0's part is dropped from call `first` of the operation on.
std::string said_without_rank_zero(Operation operation, int first) {
  BenchmarkOptions options;
  options.operation = operation;
  options.sizes = {40000};
  options.seconds = 1e-6;
  std::string all;
  for (const Outcome& one : run_outcomes({.world = 4}, [&](Group& group) {
         int calls = 0;
         run_benchmark(group, options, [&](std::byte* in, std::byte* out, std::size_t bytes) {
           if (++calls >= first && group.rank() == 0) std::memset(in, 0, bytes);
           const std::size_t elements = bytes / sizeof(float);
           const std::vector<std::size_t> even(4, elements / 4);
           constexpr auto type = DataType::f32;
           constexpr auto sum = ReduceOp::sum;
           switch (operation) {
             case Operation::all_reduce:
               return group.all_reduce(type, sum, in, in, elements);
             case Operation::reduce_scatter:
               return group.reduce_scatter(type, sum, in, out, even);
             case Operation::all_gather:
               return group.all_gather(type, in, out, even);
             case Operation::broadcast:
               return group.broadcast(type, in, elements, 0);
             default:
               return group.all_to_all(type, in, out, even, even);
           }
         });
       }))
    all += one.message + "\n";
  return all;
}

TEST(Benchmark, RefusesAnOperationThatDropsARanksPart) {
  for (const auto operation :
       {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather,
        Operation::broadcast, Operation::all_to_all}) {
    SCOPED_TRACE(name(operation));
    const std::string wrong = "gave a wrong value";
    EXPECT_NE(said_without_rank_zero(operation, 1).find(wrong), std::string::npos);
    // 1 checks, 5 warm up, 10 or more are timed, the last checks again.
    EXPECT_NE(said_without_rank_zero(operation, 10).find(wrong), std::string::npos);
    EXPECT_EQ(said_without_rank_zero(operation, 1 << 30).find(wrong), std::string::npos);
  }
}

}  // namespace
}  // namespace echelon
