// Every operation, on every kind of layout, over types, reductions, lengths, algorithms and kinds
// of memory. Not the whole product: a counter walks through the lists, so that each world meets
// other combinations and all of them together meet most.
#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <random>

#include "tests/collective/elements.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

const std::vector<std::size_t> lengths = {0, 1, 3, 17, 1000, 4099, 70001};

std::vector<Algorithm> algorithms_for(const Group& group, Operation operation) {
  auto all = message_algorithms(operation);
  if (group.shape().hosts == 1) {
    all.push_back(Algorithm::shared);
    if (operation == Operation::all_reduce) all.push_back(Algorithm::shared_direct);
  } else if (operation == Operation::all_reduce && group.shape().local > 1) {
    all.push_back(Algorithm::hierarchical);
  }
  if (operation == Operation::all_reduce) all.push_back(Algorithm::server);
  all.push_back(Algorithm::automatic);
  return all;
}

// What one call is made with; the same on all ranks.
struct Case {
  DataType type;
  ReduceOp op;
  Where where;
  bool in_place;
  int root;
  int salt;
  CallOptions options;
  std::string text(const Group& group, std::size_t count) const {
    return std::string(name(type)) + " " + name(op) + " count " + std::to_string(count) + " by " +
           name(options.algorithm) + " where " + std::to_string(int(where)) + " in_place " +
           std::to_string(in_place) + " root " + std::to_string(root) + ", rank " +
           std::to_string(group.rank()) + " of " + std::to_string(group.size()) + " on " +
           std::to_string(group.shape().hosts) + " hosts";
  }
};

class Walk {
 public:
  Walk(Group& group, int start) : group_(group), turn_(start) {}
  Case next(Algorithm algorithm) {
    ++turn_;
    Case one{.type = all_types[std::size_t(turn_) % 9],
             .op = all_ops[std::size_t(turn_ / 9 + turn_) % 5],
             .where = Where(turn_ % 3),
             .in_place = turn_ / 2 % 2 == 1,
             .root = turn_ % group_.size(),
             .salt = turn_ % 17,
             .options = {.tag = "test", .algorithm = algorithm}};
    if (one.op == ReduceOp::average && !is_floating(one.type)) one.op = ReduceOp::sum;
    return one;
  }

 private:
  Group& group_;
  int turn_;
};

std::vector<std::size_t> pieces(const Group& group, std::size_t count, int kind) {
  std::vector<std::size_t> counts;
  for (std::size_t r = 0; r < std::size_t(group.size()); ++r) {
    if (kind == 0) counts.push_back(count);
    if (kind == 1) counts.push_back(r % 2 ? 0 : count);        // some have nothing
    if (kind == 2) counts.push_back(count / (r + 1) + r % 3);  // all differ
  }
  return counts;
}

std::size_t before(const std::vector<std::size_t>& counts, int rank) {
  std::size_t sum = 0;
  for (int r = 0; r < rank; ++r) sum += counts[std::size_t(r)];
  return sum;
}

Bytes part(const Bytes& all, std::size_t begin, std::size_t count, DataType type) {
  const auto from = all.begin() + std::ptrdiff_t(begin * size_of(type));
  return Bytes(from, from + std::ptrdiff_t(count * size_of(type)));
}

// Vectors of all ranks, `counts[r]` elements from rank r, one after another.
Bytes gathered(const Case& one, const std::vector<std::size_t>& counts) {
  Bytes all;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const auto mine = vector_of(one.type, ReduceOp::sum, int(r), counts[r], one.salt);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

void check_all_reduce(Group& group, const Case& one, std::size_t count) {
  const Bytes mine = vector_of(one.type, one.op, group.rank(), count, one.salt);
  const Storage in(group, mine, one.where), other(group, mine.size(), one.where);
  const Storage& out = one.in_place ? in : other;
  group.all_reduce(one.type, one.op, in.data(), out.data(), count, one.options);
  EXPECT_EQ(
      difference(one.type, out.bytes(), reduced(one.type, one.op, group.size(), count, one.salt)),
      "")
      << "all_reduce " << one.text(group, count);
  if (!one.in_place) {
    EXPECT_EQ(difference(one.type, in.bytes(), mine), "") << "input " << one.text(group, count);
  }
}

void check_reduce(Group& group, const Case& one, std::size_t count) {
  const Bytes mine = vector_of(one.type, one.op, group.rank(), count, one.salt);
  const bool root = group.rank() == one.root;
  const Storage in(group, mine, one.where), other(group, mine.size(), one.where);
  const Storage& out = one.in_place && root ? in : other;
  const Bytes untouched = other.bytes();
  group.reduce(one.type, one.op, in.data(), out.data(), count, one.root, one.options);
  EXPECT_EQ(difference(one.type, out.bytes(),
                       root ? reduced(one.type, one.op, group.size(), count, one.salt) : untouched),
            "")
      << "reduce " << one.text(group, count);
}

void check_reduce_scatter(Group& group, const Case& one, const std::vector<std::size_t>& counts) {
  const std::size_t all = before(counts, group.size()), own = counts[std::size_t(group.rank())],
                    begin = before(counts, group.rank());
  const Storage in(group, vector_of(one.type, one.op, group.rank(), all, one.salt), one.where);
  const Storage other(group, own * size_of(one.type), one.where);
  std::byte* out = one.in_place ? in.data() + begin * size_of(one.type) : other.data();
  group.reduce_scatter(one.type, one.op, in.data(), out, counts, one.options);
  EXPECT_EQ(difference(
                one.type, Bytes(out, out + own * size_of(one.type)),
                part(reduced(one.type, one.op, group.size(), all, one.salt), begin, own, one.type)),
            "")
      << "reduce_scatter " << one.text(group, all);
}

void check_all_gather(Group& group, const Case& one, const std::vector<std::size_t>& counts) {
  const Bytes expected = gathered(one, counts);
  const std::size_t own = counts[std::size_t(group.rank())], begin = before(counts, group.rank());
  const Bytes mine = part(expected, begin, own, one.type);
  const Storage in(group, mine, one.where), out(group, expected.size(), one.where);
  const std::byte* from = in.data();
  if (one.in_place) {
    from = out.data() + begin * size_of(one.type);
    std::copy(mine.begin(), mine.end(), out.data() + begin * size_of(one.type));
  }
  group.all_gather(one.type, from, out.data(), counts, one.options);
  EXPECT_EQ(difference(one.type, out.bytes(), expected), "")
      << "all_gather " << one.text(group, own);
}

void check_gather(Group& group, const Case& one, const std::vector<std::size_t>& counts) {
  const Bytes expected = gathered(one, counts);
  const std::size_t own = counts[std::size_t(group.rank())], begin = before(counts, group.rank());
  const bool root = group.rank() == one.root;
  const Storage in(group, part(expected, begin, own, one.type), one.where);
  const Storage out(group, root ? expected.size() : 0, one.where);
  group.gather(one.type, in.data(), root ? out.data() : nullptr, counts, one.root, one.options);
  if (root) {
    EXPECT_EQ(difference(one.type, out.bytes(), expected), "") << "gather " << one.text(group, own);
  }
}

void check_scatter(Group& group, const Case& one, const std::vector<std::size_t>& counts) {
  const Bytes all = gathered(one, counts);
  const std::size_t own = counts[std::size_t(group.rank())], begin = before(counts, group.rank());
  const bool root = group.rank() == one.root;
  const Storage in(group, root ? all : Bytes(), one.where);
  const Storage out(group, own * size_of(one.type), one.where);
  group.scatter(one.type, root ? in.data() : nullptr, out.data(), counts, one.root, one.options);
  EXPECT_EQ(difference(one.type, out.bytes(), part(all, begin, own, one.type)), "")
      << "scatter " << one.text(group, own);
}

void check_broadcast(Group& group, const Case& one, std::size_t count) {
  const Bytes expected = vector_of(one.type, ReduceOp::sum, one.root, count, one.salt);
  const Storage data(group, group.rank() == one.root ? expected : Bytes(expected.size()),
                     one.where);
  group.broadcast(one.type, data.data(), count, one.root, one.options);
  EXPECT_EQ(difference(one.type, data.bytes(), expected), "")
      << "broadcast " << one.text(group, count);
}

// From r to k go r's elements beginning at 100 k, as many as the two agree on.
void check_all_to_all(Group& group, const Case& one, std::size_t count, bool even) {
  const int world = group.size(), rank = group.rank();
  const auto between = [&](int from, int to) {
    if (even) return count;
    return (from + to) % 3 == 0 ? std::size_t(0) : count / std::size_t(from + 2 * to + 1) + 1;
  };
  Bytes sent, expected;
  std::vector<std::size_t> there, back;
  for (int k = 0; k < world; ++k) {
    const auto add = [&](Bytes& to, std::vector<std::size_t>& counts, int from, int target) {
      counts.push_back(between(from, target));
      const auto whole = vector_of(one.type, ReduceOp::sum, from,
                                   100 * std::size_t(target) + counts.back(), one.salt);
      const auto piece = part(whole, 100 * std::size_t(target), counts.back(), one.type);
      to.insert(to.end(), piece.begin(), piece.end());
    };
    add(sent, there, rank, k);
    add(expected, back, k, rank);
  }
  const Storage in(group, sent, one.where), out(group, expected.size(), one.where);
  group.all_to_all(one.type, in.data(), out.data(), there, back, one.options);
  EXPECT_EQ(difference(one.type, out.bytes(), expected), "")
      << "all_to_all " << one.text(group, count);
}

void check_everything(Group& group, int start, std::size_t longest) {
  Walk walk(group, start);
  for (std::size_t count : lengths) {
    if (count > longest) continue;
    const auto each = [&](Operation operation, auto check) {
      for (const auto algorithm : algorithms_for(group, operation)) check(walk.next(algorithm));
    };
    // Pieces of 70001 elements for each of eight ranks are more than this needs.
    const std::size_t piece = count > 5000 ? count / std::size_t(group.size()) : count;
    each(Operation::all_reduce, [&](const Case& one) { check_all_reduce(group, one, count); });
    each(Operation::reduce, [&](const Case& one) { check_reduce(group, one, count); });
    each(Operation::broadcast, [&](const Case& one) { check_broadcast(group, one, count); });
    for (int kind = 0; kind < 3; ++kind) {
      const auto counts = pieces(group, piece, kind);
      each(Operation::reduce_scatter,
           [&](const Case& one) { check_reduce_scatter(group, one, counts); });
      each(Operation::all_gather, [&](const Case& one) { check_all_gather(group, one, counts); });
      check_gather(group, walk.next(Algorithm::automatic), counts);
      check_scatter(group, walk.next(Algorithm::automatic), counts);
    }
    check_all_to_all(group, walk.next(Algorithm::automatic), piece, true);
    check_all_to_all(group, walk.next(Algorithm::automatic), piece, false);
    group.barrier();
  }
}

TEST(Operations, GiveTheExactResultOnOneHost) {
  for (int world = 1; world <= 8; ++world)
    run_ranks_well({.world = world}, [&](Group& group) {
      check_everything(group, 31 * world, world % 3 ? 4099 : 70001);
    });
}

TEST(Operations, GiveTheExactResultWhereNeighboursCannotBeRead) {
  for (const int world : {2, 3, 7}) {
    Layout layout{.world = world};
    layout.comm.single_copy = Switch::off;
    run_ranks_well(layout, [&](Group& group) { check_everything(group, 37 * world, 70001); });
  }
}

TEST(Operations, GiveTheExactResultOverTcp) {
  for (int world = 2; world <= 8; ++world)
    run_ranks_well({.world = world, .shared_memory = false}, [&](Group& group) {
      check_everything(group, 41 * world, world == 3 ? 70001 : 4099);
    });
}

TEST(Operations, GiveTheExactResultOnSeveralHosts) {
  for (const auto& [world, hosts] : {std::pair{3, 2}, {4, 2}, {5, 2}, {6, 3}, {8, 2}})
    run_ranks_well({.world = world, .hosts = hosts}, [&](Group& group) {
      check_everything(group, 43 * world, world == 5 ? 70001 : 4099);
    });
}

TEST(Operations, GiveTheExactResultOnMegabytesInEveryKindOfMemory) {
  // Beyond the sizes at which private buffers are read in place and staging takes several pieces.
  for (const Switch single_copy : {Switch::on, Switch::off}) {
    Layout layout{.world = 3};
    layout.comm.single_copy = single_copy;
    run_ranks_well(layout, [&](Group& group) {
      for (int turn = 0; turn < 6; ++turn) {
        Case one{.type = turn % 2 ? DataType::f32 : DataType::f64,
                 .op = ReduceOp::sum,
                 .where = Where(turn % 3),
                 .in_place = turn % 2 == 0,
                 .root = turn % 3,
                 .salt = turn,
                 .options = {}};
        const std::size_t count = (5 << 18) / size_of(one.type) + 77;
        for (const auto algorithm :
             {Algorithm::shared, Algorithm::shared_direct, Algorithm::ring}) {
          one.options.algorithm = algorithm;
          check_all_reduce(group, one, count);
        }
        one.options.algorithm = Algorithm::shared;
        check_reduce(group, one, count);
        check_broadcast(group, one, count);
        check_reduce_scatter(group, one, {count, 5, count / 2});
        check_all_gather(group, one, {1, count, 0});
        check_gather(group, one, {1, count, count / 3});
        check_scatter(group, one, {1, 0, count});
        check_all_to_all(group, one, count / 2, turn % 2 == 0);
      }
    });
  }
}

TEST(Operations, LetNobodyOutOfABarrierBeforeAllHaveCome) {
  for (const auto& layout :
       {Layout{.world = 4}, Layout{.world = 4, .shared_memory = false},
        Layout{.world = 7, .shared_memory = false}, Layout{.world = 5, .hosts = 2}}) {
    std::atomic<int> arrived = 0;
    run_ranks_well(layout, [&](Group& group) {
      for (int turn = 0; turn < 2 * group.size(); ++turn) {
        if (turn % group.size() == group.rank())
          std::this_thread::sleep_for(std::chrono::milliseconds(3));
        ++arrived;
        group.barrier();
        EXPECT_GE(arrived.load(), (turn + 1) * group.size())
            << "rank " << group.rank() << " on " << group.shape().hosts << " hosts";
        group.barrier();
      }
    });
  }
}

TEST(Operations, WorkOnManyRanks) {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;  // a pair of sockets for each pair of ranks
  setrlimit(RLIMIT_NOFILE, &files);
  const auto body = [](Group& group) {
    Walk walk(group, 5);
    for (const std::size_t count : {std::size_t(1), std::size_t(4099)})
      for (const auto algorithm : {Algorithm::shared, Algorithm::shared_direct}) {
        check_all_reduce(group, walk.next(algorithm), count);
        check_all_gather(group, walk.next(Algorithm::automatic), pieces(group, 5, 2));
        check_broadcast(group, walk.next(Algorithm::automatic), count);
        check_all_to_all(group, walk.next(Algorithm::automatic), 3, false);
      }
  };
  run_ranks_well({.world = 16}, body);
  run_ranks_well({.world = 64}, body);
}

TEST(Operations, WorkInGroupsThatWereSplitOff) {
  for (const bool shared : {true, false})
    run_ranks_well({.world = 5, .shared_memory = shared}, [](Group& group) {
      // Memory that was used and freed before may become a group's own.
      std::vector<std::shared_ptr<std::byte>> used;
      for (int i = 0; i < 300; ++i) {
        used.push_back(group.allocate(64));
        std::memset(used.back().get(), 0xff, 64);
      }
      used.clear();
      const auto odd = group.split(group.rank() % 2, -group.rank());
      ASSERT_TRUE(odd);
      EXPECT_EQ(odd->rank(), odd->size() - 1 - group.rank() / 2);
      check_everything(*odd, 3, 1000);
      const auto none = group.split(group.rank() == 0 ? -1 : 7, 0);
      EXPECT_EQ(none == nullptr, group.rank() == 0);
      if (none) check_everything(*none, 4, 1000);
      check_everything(group, 5, 1000);
    });
}

// ---- Bits
// ----------------------------------------------------------------------------------------

Bytes random_vector(DataType type, int rank, std::size_t count, unsigned seed) {
  std::mt19937 engine(seed * 1000 + unsigned(rank));
  std::uniform_real_distribution<double> value(-1000, 1000);
  Bytes bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i)
    store(type, value(engine) * std::exp2(double(i % 9) - 4), bytes.data() + i * size_of(type));
  return bytes;
}

TEST(Operations, GiveTheSameBitsOnEveryRankAndEveryTime) {
  for (const auto& layout :
       {Layout{.world = 5}, Layout{.world = 6, .shared_memory = false},
        Layout{.world = 6, .hosts = 2}, Layout{.world = 8}, Layout{.world = 7, .hosts = 3}}) {
    std::mutex mutex;
    std::map<std::string, Bytes> seen;  // by case
    run_ranks_well(layout, [&](Group& group) {
      for (int turn = 0; turn < 2; ++turn)
        for (const auto type : {DataType::f32, DataType::f64, DataType::f16, DataType::bf16})
          for (const auto algorithm : algorithms_for(group, Operation::all_reduce))
            for (const std::size_t count : {std::size_t(33), std::size_t(2777)})
              for (const auto op : {ReduceOp::sum, ReduceOp::average}) {
                const Storage data(group, random_vector(type, group.rank(), count, unsigned(count)),
                                   turn ? Where::mixed : Where::own);
                group.all_reduce(type, op, data.data(), data.data(), count,
                                 {.algorithm = algorithm});
                const std::string key = std::string(name(type)) + " " + name(op) + " by " +
                                        name(algorithm) + " count " + std::to_string(count);
                const std::lock_guard lock(mutex);
                const auto [first, added] = seen.try_emplace(key, data.bytes());
                EXPECT_EQ(difference(type, data.bytes(), first->second), "")
                    << key << ", rank " << group.rank() << " of " << group.size() << " on "
                    << group.shape().hosts << " hosts, turn " << turn;
              }
    });
  }
}

TEST(Operations, SumHalfPrecisionInFp32WithOneRounding) {
  constexpr int world = 5;
  constexpr std::size_t count = 3001;
  for (const auto type : {DataType::f16, DataType::bf16}) {
    // The scalar reference: in the order of the ranks, in fp32, rounded once.
    Bytes expected(count * size_of(type)), rounded_often(expected.size());
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int rank = 0; rank < world; ++rank) {
        const auto one = float(load(type, random_vector(type, rank, i + 1, 9).data() + i * 2));
        sum = rank == 0 ? one : sum + one;
      }
      store(type, sum, expected.data() + i * 2);
    }
    const auto run = [&](const Layout& layout, Algorithm algorithm, const Bytes& compare,
                         bool equal) {
      run_ranks_well(layout, [&](Group& group) {
        const Storage data(group, random_vector(type, group.rank(), count, 9), Where::own);
        group.all_reduce(type, ReduceOp::sum, data.data(), data.data(), count,
                         {.algorithm = algorithm});
        EXPECT_EQ(difference(type, data.bytes(), compare) == "", equal)
            << name(type) << " by " << name(algorithm) << " wire " << layout.comm.wire << ": "
            << difference(type, data.bytes(), compare);
      });
    };
    run({.world = world}, Algorithm::shared, expected, true);
    run({.world = world}, Algorithm::shared_direct, expected, true);
    Layout tcp{.world = world, .shared_memory = false};
    run(tcp, Algorithm::direct, expected, true);
    run(tcp, Algorithm::ring, expected, false);  // one rounding a step
    // As fp32 on the way: the ring's own order of ranks, and one rounding at the end.
    tcp.comm.wire = Wire::fp32;
    run_ranks_well(tcp, [&](Group& group) {
      const Storage data(group, random_vector(type, group.rank(), count, 9), Where::own);
      group.all_reduce(type, ReduceOp::sum, data.data(), data.data(), count,
                       {.algorithm = Algorithm::ring});
      std::vector<float> wide(count);
      const Bytes mine = random_vector(type, group.rank(), count, 9);
      convert(type, mine.data(), DataType::f32, wide.data(), count);
      group.all_reduce(DataType::f32, ReduceOp::sum, wide.data(), wide.data(), count,
                       {.algorithm = Algorithm::ring});
      Bytes narrow(count * 2);
      convert(DataType::f32, wide.data(), type, narrow.data(), count);
      EXPECT_EQ(difference(type, data.bytes(), narrow), "") << name(type);
      // The other operations that hand partial sums on; what is no root's stays as it was.
      for (const auto wide_type : {type}) {
        Case one{.type = wide_type,
                 .op = ReduceOp::average,
                 .where = Where::own,
                 .in_place = false,
                 .root = 1,
                 .salt = 3,
                 .options = {}};
        check_reduce(group, one, 100);
        one.options.algorithm = Algorithm::ring;
        check_reduce_scatter(group, one, {7, 0, 100, 3, 1});
      }
    });
  }
}

// ---- Messages
// ------------------------------------------------------------------------------------

const std::vector<Layout> pairs = {Layout{.world = 2}, Layout{.world = 2, .shared_memory = false}};

Bytes message(std::size_t bytes, int seed) {
  return vector_of(DataType::u8, ReduceOp::sum, seed, bytes, seed);
}

TEST(Messages, ArriveInOrderAndByTag) {
  for (const auto& layout : pairs)
    run_ranks_well(layout, [](Group& group) {
      const int other = 1 - group.rank();
      std::vector<Group::Ticket> sends;
      std::vector<Bytes> outgoing, incoming;
      for (int i = 0; i < 20; ++i) outgoing.push_back(message(std::size_t(i) * 1000, i));
      for (int i = 0; i < 20; ++i)
        sends.push_back(group.send(outgoing[std::size_t(i)].data(), outgoing[std::size_t(i)].size(),
                                   other, std::uint64_t(i % 4)));
      // The last tag first; within a tag, in the order of sending.
      for (int tag = 3; tag >= 0; --tag)
        for (int i = tag; i < 20; i += 4) {
          Bytes got(std::size_t(i) * 1000);
          group.wait(
              group.receive(got.data(), got.size(), other, std::uint64_t(tag), {}, i % 2 == 0));
          EXPECT_EQ(difference(DataType::u8, got, outgoing[std::size_t(i)]), "") << "message " << i;
        }
      for (const auto& send : sends) group.wait(send);
    });
}

TEST(Messages, MayBeAskedForWhileTheyComeInUnasked) {
  for (const auto& layout : pairs)
    run_ranks_well(layout, [](Group& group) {
      const Bytes large = message(30 << 20, 1), small = message(10, 2);
      if (group.rank() == 0) {
        const auto first = group.send(large.data(), large.size(), 1, 1);
        const auto second = group.send(small.data(), small.size(), 1, 2);
        group.wait(first);
        group.wait(second);
      } else {
        Bytes got_large(large.size()), got_small(small.size());
        const auto second = group.receive(got_small.data(), got_small.size(), 0, 2);
        std::this_thread::sleep_for(std::chrono::milliseconds(3));  // the large one is on its way
        const auto first = group.receive(got_large.data(), got_large.size(), 0, 1,
                                         {.timeout = std::chrono::seconds(60)});
        group.wait(second);
        group.wait(first);
        EXPECT_EQ(got_large == large, true);
        EXPECT_EQ(difference(DataType::u8, got_small, small), "");
      }
      group.barrier();
    });
}

TEST(Messages, BothWaysAtOnceDoNotLockUp) {
  for (const auto& layout : pairs)
    run_ranks_well(layout, [](Group& group) {
      const int other = 1 - group.rank();
      const Bytes mine = message(9 << 20, group.rank()), theirs = message(9 << 20, other);
      Bytes got(theirs.size());
      // Without the mailbox's thread: who waits drives both ways.
      const auto sent = group.send(mine.data(), mine.size(), other, 7, {}, false);
      const auto received = group.receive(got.data(), got.size(), other, 7, {}, false);
      group.wait(sent);
      group.wait(received);
      EXPECT_TRUE(got == theirs);
      group.barrier();
    });
}

TEST(Messages, FromAnyoneComeFromEveryoneBesideCollectives) {
  for (const auto& layout : {Layout{.world = 5}, Layout{.world = 5, .shared_memory = false},
                             Layout{.world = 5, .hosts = 2}})
    run_ranks_well(layout, [](Group& group) {
      constexpr int each = 25;
      std::atomic<bool> stop = false;
      if (group.rank() == 2) {
        std::vector<int> from(5, 0);
        for (int i = 0; i < 4 * each; ++i) {
          std::vector<int> got(100);
          const auto ticket = group.receive(got.data(), got.size() * sizeof(int), Group::anyone, 5);
          group.wait(ticket);
          ASSERT_EQ(ticket->peer, got[0]);
          EXPECT_EQ(got[99], from[std::size_t(got[0])]++) << "from rank " << got[0];
        }
      } else {
        std::vector<std::vector<int>> out;
        std::vector<Group::Ticket> tickets;
        for (int i = 0; i < each; ++i) {
          out.emplace_back(100, group.rank());
          out.back()[99] = i;
          tickets.push_back(group.send(out.back().data(), 100 * sizeof(int), 2, 5));
        }
        std::thread beside([&] {  // waits in another thread than the collectives
          for (const auto& ticket : tickets) group.wait(ticket);
          stop = true;
        });
        beside.join();
        EXPECT_TRUE(stop);
      }
      float one = 1;
      for (int i = 0; i < 20; ++i) group.all_reduce(DataType::f32, ReduceOp::max, &one, &one, 1);
      EXPECT_EQ(one, 1);
    });
}

TEST(Messages, MoveInTheBackgroundWhileCollectivesRun) {
  for (const auto& layout : pairs)
    run_ranks_well(layout, [](Group& group) {
      const int other = 1 - group.rank();
      const Bytes mine = message(3 << 20, group.rank()), theirs = message(3 << 20, other);
      Bytes got(theirs.size());
      const auto received = group.receive(got.data(), got.size(), other, 1);
      const auto sent = group.send(mine.data(), mine.size(), other, 1);
      std::vector<float> data(1000, 1);
      for (int i = 0; i < 5; ++i)
        group.all_reduce(DataType::f32, ReduceOp::average, data.data(), data.data(), data.size());
      while (!group.done(received) || !group.done(sent)) std::this_thread::yield();
      EXPECT_TRUE(got == theirs);
      EXPECT_EQ(data[999], 1);
    });
}

TEST(Messages, SayWhatIsWrongWithThem) {
  for (const auto& layout : pairs) {
    const auto outcomes = run_outcomes(layout, [](Group& group) {
      char byte = 0;
      EXPECT_EQ(outcome([&] { group.send(&byte, 1, group.rank(), 0); }), "InvalidArgument");
      EXPECT_EQ(outcome([&] { group.send(&byte, 1, 2, 0); }), "InvalidArgument");
      EXPECT_EQ(outcome([&] { group.send(&byte, 1, Group::anyone, 0); }), "InvalidArgument");
      Bytes data(100);
      if (group.rank() == 0) {
        const auto sent = group.send(data.data(), 100, 1, 3);
        group.barrier();
        group.wait(sent);
      } else {
        group.barrier();
        const auto wrong = outcome([&] { group.wait(group.receive(data.data(), 99, 0, 3)); });
        EXPECT_EQ(wrong, "InvalidArgument") << wrong;
        EXPECT_NE(wrong.message.find("100"), std::string::npos) << wrong;
        // Nothing that follows on a broken link is taken for something else.
        EXPECT_EQ(outcome([&] { group.wait(group.receive(data.data(), 100, 0, 3)); }),
                  "InvalidArgument");
      }
    });
    for (const auto& one : outcomes) EXPECT_EQ(one, "done") << one;
  }
}

TEST(Messages, EndAtTheirDeadlineAndBreakTheLink) {
  for (const auto& layout : pairs) {
    const auto outcomes = run_outcomes(layout, [](Group& group) {
      Bytes data(40 << 20);
      const CallOptions soon{.timeout = std::chrono::milliseconds(50)};
      const auto expect_late = [](const Outcome& late, const std::string& who) {
        EXPECT_EQ(late, "Timeout") << late;
        EXPECT_NE(late.message.find(who), std::string::npos) << late;
      };
      if (group.rank() == 0) {
        expect_late(outcome([&] { group.wait(group.receive(data.data(), 9, 1, 3, soon)); }),
                    "rank 1");
        group.barrier();
        group.barrier();
      } else {
        group.barrier();
        // Nobody takes it: it stops in the middle.
        expect_late(outcome([&] { group.wait(group.send(data.data(), data.size(), 0, 8, soon)); }),
                    "rank 0");
        // What followed would be taken for the rest of it.
        expect_late(outcome([&] { group.wait(group.send(data.data(), 9, 0, 8)); }), "rank 0");
        const auto polled = group.receive(data.data(), 9, 0, 8);
        expect_late(outcome([&] {
                      while (!group.done(polled)) {
                      }
                    }),
                    "rank 0");
        group.barrier();
      }
    });
    for (const auto& one : outcomes) EXPECT_EQ(one, "done") << one;
  }
}

TEST(Messages, ThatArePolledEndToo) {
  for (const auto& layout : pairs) {
    const auto outcomes = run_outcomes(layout, [](Group& group) {
      int value = 0;
      if (group.rank() == 1) {
        group.barrier();
        return;  // leaves without a message
      }
      const auto late = group.receive(&value, sizeof value, 1, 1,
                                      {.timeout = std::chrono::milliseconds(20)}, false);
      EXPECT_EQ(outcome([&] {
                  while (!group.done(late)) {
                  }
                }),
                "Timeout");
      group.barrier();
    });
    for (const auto& one : outcomes) EXPECT_EQ(one, "done") << one;
    const auto lost = run_outcomes(layout, [](Group& group) {
      int value = 0;
      if (group.rank() == 1) return;
      const auto never = group.receive(&value, sizeof value, 1, 1, {}, false);
      while (!group.done(never)) std::this_thread::yield();
    });
    EXPECT_EQ(lost[0], "PeerLost") << lost[0];
  }
}

TEST(Messages, FromAnyoneGoOnWhenOneRankLeaves) {
  for (const bool shared : {true, false}) {
    const auto outcomes = run_outcomes({.world = 3, .shared_memory = shared}, [](Group& group) {
      if (group.rank() == 0) return;  // leaves at once
      int value = 0;
      if (group.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        value = 77;
        group.wait(group.send(&value, sizeof value, 2, 1));
        return;
      }
      group.wait(group.receive(&value, sizeof value, Group::anyone, 1,
                               {.timeout = std::chrono::seconds(60)}));
      EXPECT_EQ(value, 77);
      // And when all are gone, that is said.
      const auto alone = outcome([&] {
        group.wait(group.receive(&value, sizeof value, Group::anyone, 1,
                                 {.timeout = std::chrono::seconds(60)}));
      });
      EXPECT_EQ(alone, "PeerLost") << alone;
    });
    for (const auto& one : outcomes) EXPECT_EQ(one, "done") << one;
  }
}

TEST(Messages, SentBeforeARankLeavesStillArrive) {
  for (int turn = 0; turn < 20; ++turn)
    for (const auto& layout : pairs)
      run_ranks_well(layout, [](Group& group) {
        std::vector<int> data(5000, 1);
        if (group.rank() == 0) {
          group.wait(group.send(data.data(), 20000, 1, 1));
          group.broadcast(DataType::i32, data.data(), data.size(), 0,
                          {.algorithm = Algorithm::tree});
        } else {
          std::vector<int> got(5000);
          group.wait(group.receive(got.data(), 20000, 0, 1));
          group.broadcast(DataType::i32, got.data(), got.size(), 0, {.algorithm = Algorithm::tree});
          EXPECT_EQ(got, data);
        }
      });
}

}  // namespace
}  // namespace echelon
