// The bytes that every rank counts, against closed forms that are derived here from the description
// of each algorithm: what a rank hands to a link, or in shared memory reads and writes of its
// peers.
#include "echelon/collective/ledger.h"

#include <nlohmann/json.hpp>

#include "tests/collective/elements.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

using Counts = std::vector<std::uint64_t>;  // bytes by rank

constexpr std::uint64_t element = 4;  // fp32

// The ledgers of all ranks after `body`, in bytes.
struct Ledgers {
  Counts all, shared, tcp;
  explicit Ledgers(std::size_t world) : all(world), shared(world), tcp(world) {}
  void take(Group& group) {
    const auto rank = std::size_t(group.rank());
    all[rank] = group.ledger().bytes();
    shared[rank] = group.ledger().bytes(LinkKind::shared);
    tcp[rank] = group.ledger().bytes(LinkKind::tcp);
    group.ledger().clear();
  }
};

std::uint64_t sum(const Counts& counts) {
  std::uint64_t all = 0;
  for (const auto one : counts) all += one;
  return all;
}

// Elements of part i when `count` are cut into `parts`, the first ones an element longer.
std::uint64_t part(std::uint64_t count, std::uint64_t parts, std::uint64_t i) {
  return count / parts + (i < count % parts ? 1 : 0);
}

std::uint64_t power_below(std::uint64_t p) {
  std::uint64_t power = 1;
  while (2 * power <= p) power *= 2;
  return power;
}

std::uint64_t lg(std::uint64_t power) { return power == 1 ? 0 : 1 + lg(power / 2); }

// Elements that rank r sends. Ring: the vector twice, less the part it never sends in the first
// round (its right neighbour's) and the one it never sends in the second (that neighbour's next).
std::uint64_t ring_sends(std::uint64_t count, int p, int r, int direction = 1) {
  const auto chunk = [&](int i) {
    return part(count, std::uint64_t(p), std::uint64_t(((i % p) + p) % p));
  };
  return 2 * count - chunk(r + direction) - chunk(r + 2 * direction);
}

// With p not a power of two: of the first 2(p-q) ranks the even ones send their vector once, and
// the odd ones send the result back; the q left run the algorithm.
struct Fold {
  std::uint64_t left;
  bool out, gives_back;
  std::uint64_t number;  // among those left
  Fold(int p, int r) : left(power_below(std::uint64_t(p))) {
    const auto extra = std::uint64_t(p) - left, rank = std::uint64_t(r);
    out = rank < 2 * extra && rank % 2 == 0;
    gives_back = rank < 2 * extra && rank % 2 == 1;
    number = rank < 2 * extra ? rank / 2 : rank - extra;
  }
};

std::uint64_t doubling_sends(std::uint64_t count, int p, int r) {
  const Fold fold(p, r);
  if (fold.out) return count;
  return count * lg(fold.left) + (fold.gives_back ? count : 0);
}

// Halving: a rank gives away, in lg q steps, everything but its own part. Doubling: it sends all
// that it has so far, which ends with everything but what the last partner's half was.
std::uint64_t rabenseifner_sends(std::uint64_t count, int p, int r) {
  const Fold fold(p, r);
  if (fold.out) return count;
  std::uint64_t sent = count - part(count, fold.left, fold.number);  // halving
  for (std::uint64_t size = 1; size < fold.left; size *= 2) {        // doubling
    const std::uint64_t first = fold.number / size * size;
    for (std::uint64_t i = first; i < first + size; ++i) sent += part(count, fold.left, i);
  }
  return sent + (fold.gives_back ? count : 0);
}

// Shared memory: slices of whole cache lines; a rank reads its slice of every peer and either
// writes it to every peer (registered) or reads theirs.
std::uint64_t shared_slice(std::uint64_t count, int p, int r) {
  const std::uint64_t line = 64 / element;
  const std::uint64_t even = (count + std::uint64_t(p) - 1) / std::uint64_t(p);
  const std::uint64_t per = (even + line - 1) / line * line;
  const std::uint64_t begin = std::min(count, per * std::uint64_t(r));
  return std::min(count, begin + per) - begin;
}

std::uint64_t sends(Algorithm algorithm, std::uint64_t count, int p, int r, bool registered) {
  const auto others = std::uint64_t(p - 1);
  switch (algorithm) {
    case Algorithm::ring:
      return ring_sends(count, p, r);
    case Algorithm::bidirectional_ring:
      return ring_sends((count + 1) / 2, p, r) + ring_sends(count / 2, p, r, -1);
    case Algorithm::recursive_doubling:
      return doubling_sends(count, p, r);
    case Algorithm::rabenseifner:
      return rabenseifner_sends(count, p, r);
    case Algorithm::shared: {
      const auto mine = shared_slice(count, p, r);
      return registered ? 2 * others * mine : others * mine + count - mine;
    }
    case Algorithm::server: {  // a part to each of the others, and one's own to all of them
      const auto mine = part(count, std::uint64_t(p), std::uint64_t(r));
      return count - mine + others * mine;
    }
    default:  // direct, shared_direct: everybody's whole vector
      return others * count;
  }
}

TEST(Ledger, CountsAllReduceToTheByte) {
  for (const bool shared : {true, false})
    for (int world = 2; world <= 8; ++world) {
      auto algorithms = message_algorithms(Operation::all_reduce);
      algorithms.push_back(Algorithm::server);
      if (shared) {
        algorithms.push_back(Algorithm::shared);
        algorithms.push_back(Algorithm::shared_direct);
      }
      const std::vector<std::size_t> lengths = {0, 1, 5, 16, 1003, 40007};
      // By case, filled by all ranks.
      std::vector<Ledgers> ledgers(algorithms.size() * lengths.size() * 2,
                                   Ledgers(std::size_t(world)));
      run_ranks_well({.world = world, .shared_memory = shared}, [&](Group& group) {
        std::size_t at = 0;
        EXPECT_EQ(group.ledger().bytes(), 0u) << "measuring is not the caller's traffic";
        for (const auto algorithm : algorithms)
          for (const auto count : lengths)
            for (const auto where : {Where::own, Where::registered}) {
              const Storage data(group, count * element, where);
              group.all_reduce(DataType::i32, ReduceOp::max, data.data(), data.data(), count,
                               {.tag = "grad", .algorithm = algorithm});
              const auto entries = group.ledger().entries();
              ASSERT_EQ(entries.size(), 1u);
              EXPECT_EQ(entries[0].tag, "grad");
              EXPECT_EQ(entries[0].calls, 1u);
              EXPECT_EQ(entries[0].algorithm, algorithm);
              ledgers[at++].take(group);
            }
      });
      std::size_t at = 0;
      for (const auto algorithm : algorithms)
        for (const auto count : lengths)
          for (const bool registered : {false, true}) {
            const Ledgers& seen = ledgers[at++];
            Counts expected;
            for (int r = 0; r < world; ++r)
              expected.push_back(element * sends(algorithm, count, world, r, registered));
            EXPECT_EQ(seen.all, expected) << name(algorithm) << " count " << count << " world "
                                          << world << " registered " << registered;
            EXPECT_EQ(sum(shared ? seen.tcp : seen.shared), 0u) << name(algorithm);
            const bool frugal = algorithm == Algorithm::ring ||
                                algorithm == Algorithm::bidirectional_ring ||
                                algorithm == Algorithm::server || algorithm == Algorithm::shared ||
                                (algorithm == Algorithm::rabenseifner &&
                                 power_below(std::uint64_t(world)) == std::uint64_t(world));
            if (frugal) {
              EXPECT_EQ(sum(seen.all), 2 * std::uint64_t(world - 1) * count * element)
                  << name(algorithm) << " count " << count << " world " << world;
            }
          }
    }
}

// The other operations: for one call of each, by rank.
struct Expected {
  const char* what;
  std::function<void(Group&)> call;
  std::function<std::uint64_t(int rank)> bytes;
};

TEST(Ledger, CountsTheOtherOperationsToTheByte) {
  for (const bool shared : {true, false})
    for (const int world : {2, 3, 4, 5, 8}) {
      const auto p = std::uint64_t(world);
      std::vector<std::size_t> counts;  // uneven, with an empty one
      for (int r = 0; r < world; ++r) counts.push_back(r == 1 ? 0 : std::size_t(10 * r + 3));
      std::uint64_t total = 0;
      for (const auto one : counts) total += one;
      const auto of = [&](int r) {
        return std::uint64_t(counts[std::size_t((r + world) % world)]);
      };
      constexpr std::size_t count = 1003;
      const int root = world - 1;
      const auto from_root = [&](int r) { return std::uint64_t((r - root + world) % world); };
      const auto low_bit = [](std::uint64_t v) { return v & (~v + 1); };
      // In a binomial tree, v has a child v + 2^i for every 2^i below its lowest bit.
      const auto children = [&](std::uint64_t v) {
        std::uint64_t number = 0;
        for (std::uint64_t i = 1; i < p && (v == 0 || i < low_bit(v)); i *= 2) number += v + i < p;
        return number;
      };
      const auto moving = shared ? Algorithm::shared : Algorithm::direct;
      const auto place = [](Group& group, std::size_t elements) {
        return Storage(group, elements * element, Where::own);
      };
      const std::vector<Expected> all = {
          {"reduce_scatter by ring",
           [&](Group& g) {
             const auto in = place(g, total), out = place(g, 1000);
             g.reduce_scatter(DataType::i32, ReduceOp::sum, in.data(), out.data(), counts,
                              {.algorithm = Algorithm::ring});
           },
           [&](int r) { return total - of(r); }},  // all parts but its own pass through it
          {"reduce_scatter by direct",
           [&](Group& g) {
             const auto in = place(g, total), out = place(g, 1000);
             g.reduce_scatter(DataType::i32, ReduceOp::sum, in.data(), out.data(), counts,
                              {.algorithm = Algorithm::direct});
           },
           [&](int r) { return total - of(r); }},
          {"all_gather by ring",
           [&](Group& g) {
             const auto in = place(g, 1000), out = place(g, total);
             g.all_gather(DataType::i32, in.data(), out.data(), counts,
                          {.algorithm = Algorithm::ring});
           },
           [&](int r) { return total - of(r + 1); }},  // not what its right neighbour brought
          {"all_gather by direct",
           [&](Group& g) {
             const auto in = place(g, 1000), out = place(g, total);
             g.all_gather(DataType::i32, in.data(), out.data(), counts,
                          {.algorithm = Algorithm::direct});
           },
           [&](int r) { return (p - 1) * of(r); }},
          {"broadcast by tree",
           [&](Group& g) {
             const auto data = place(g, count);
             g.broadcast(DataType::i32, data.data(), count, root, {.algorithm = Algorithm::tree});
           },
           [&](int r) { return children(from_root(r)) * count; }},
          {"broadcast by scatter and all-gather",
           [&](Group& g) {
             const auto data = place(g, count);
             g.broadcast(DataType::i32, data.data(), count, root,
                         {.algorithm = Algorithm::scatter_all_gather});
           },
           [&](int r) {
             const std::uint64_t ring = count - part(count, p, std::uint64_t((r + 1) % world));
             return ring + (r == root ? count - part(count, p, std::uint64_t(root)) : 0);
           }},
          {"reduce by tree",
           [&](Group& g) {
             const auto in = place(g, count), out = place(g, count);
             g.reduce(DataType::i32, ReduceOp::sum, in.data(), out.data(), count, root,
                      {.algorithm = Algorithm::tree});
           },
           [&](int r) { return r == root ? 0 : count; }},  // every other rank once
          {"gather",
           [&](Group& g) {
             const auto in = place(g, 1000), out = place(g, total);
             g.gather(DataType::i32, in.data(), out.data(), counts, root, {.algorithm = moving});
           },
           [&](int r) {  // in shared memory the root reads, over links the others send
             if (shared) return r == root ? total - of(root) : 0;
             return r == root ? 0 : of(r);
           }},
          {"scatter",
           [&](Group& g) {
             const auto in = place(g, total), out = place(g, 1000);
             g.scatter(DataType::i32, in.data(), out.data(), counts, root, {.algorithm = moving});
           },
           [&](int r) {
             if (shared) return r == root ? 0 : of(r);
             return r == root ? total - of(root) : 0;
           }},
          {"all_to_all",
           [&](Group& g) {
             const auto in = place(g, 7 * p), out = place(g, 7 * p);
             const std::vector<std::size_t> seven(p, 7);
             g.all_to_all(DataType::i32, in.data(), out.data(), seven, seven,
                          {.algorithm = moving});
           },
           [&](int) { return 7 * (p - 1); }},
          {"send to the next rank",
           [&](Group& g) {
             const auto out = place(g, 100), in = place(g, 100);
             const auto to = g.send(out.data(), 400, (g.rank() + 1) % world, 1);
             g.wait(g.receive(in.data(), 400, (g.rank() + world - 1) % world, 1));
             g.wait(to);
           },
           [&](int) { return 100u; }},
      };
      std::vector<Ledgers> ledgers(all.size(), Ledgers(std::size_t(world)));
      run_ranks_well({.world = world, .shared_memory = shared}, [&](Group& group) {
        for (std::size_t i = 0; i < all.size(); ++i) {
          all[i].call(group);
          ledgers[i].take(group);
        }
      });
      for (std::size_t i = 0; i < all.size(); ++i) {
        Counts expected;
        for (int r = 0; r < world; ++r) expected.push_back(element * all[i].bytes(r));
        EXPECT_EQ(ledgers[i].all, expected)
            << all[i].what << ", world " << world << " shared " << shared;
        EXPECT_EQ(sum(shared ? ledgers[i].tcp : ledgers[i].shared), 0u) << all[i].what;
      }
    }
}

TEST(Ledger, CountsNothingInAWorldOfOne) {
  run_ranks_well({.world = 1}, [](Group& group) {
    float data = 1;
    group.all_reduce(DataType::f32, ReduceOp::sum, &data, &data, 1);
    EXPECT_EQ(group.ledger().bytes(), 0u);
  });
}

TEST(Ledger, CountsWhatLeavesAHost) {
  constexpr std::size_t count = 40000;  // divides by everything below
  constexpr std::uint64_t n = count * element;
  Ledgers hierarchical(4), ring(4);
  run_ranks_well({.world = 4, .hosts = 2}, [&](Group& group) {
    const Storage data(group, n, Where::own);
    group.all_reduce(DataType::i32, ReduceOp::max, data.data(), data.data(), count,
                     {.algorithm = Algorithm::hierarchical});
    hierarchical.take(group);
    group.all_reduce(DataType::i32, ReduceOp::max, data.data(), data.data(), count,
                     {.algorithm = Algorithm::ring});
    ring.take(group);
  });
  // Two hosts: 2((m-1)/m) n = n out of each, half of it by each of the two ranks.
  EXPECT_EQ(hierarchical.tcp, Counts({n / 2, n / 2, n / 2, n / 2}));
  EXPECT_EQ(hierarchical.shared, Counts({n, n, n, n}));  // 2((g-1)/g) n
  // The ring leaves a host from its last rank: 1.5 n, and inside as much.
  EXPECT_EQ(ring.tcp, Counts({0, n / 2 * 3, 0, n / 2 * 3}));
  EXPECT_EQ(ring.shared, Counts({n / 2 * 3, 0, n / 2 * 3, 0}));
}

TEST(Ledger, DoublesTheBytesOfHalvesThatTravelAsFp32) {
  for (const Wire wire : {Wire::same, Wire::fp32}) {
    Layout layout{.world = 4, .shared_memory = false};
    layout.comm.wire = wire;
    Ledgers ledgers(4);
    run_ranks_well(layout, [&](Group& group) {
      const Storage data(group, Bytes(800), Where::own);
      group.all_reduce(DataType::bf16, ReduceOp::sum, data.data(), data.data(), 400,
                       {.algorithm = Algorithm::ring});
      ledgers.take(group);
    });
    EXPECT_EQ(ledgers.all, Counts(4, wire == Wire::same ? 1200 : 2400)) << wire;
  }
}

TEST(Ledger, AddsUpByWhatItWasForAndTellsItAsJson) {
  Ledger ledger;
  ledger.add(Operation::all_reduce, "a", Algorithm::ring, LinkKind::tcp, 10);
  ledger.add(Operation::all_reduce, "a", Algorithm::ring, LinkKind::tcp, 5);
  ledger.add(Operation::all_reduce, "b", Algorithm::ring, LinkKind::tcp, 1);
  ledger.add(Operation::send, "a", Algorithm::direct, LinkKind::shared, 7, 3);
  const auto json = nlohmann::json::parse(ledger.json(2));
  EXPECT_EQ(json.at("rank"), 2);
  EXPECT_EQ(json.at("bytes"), 23);
  ASSERT_EQ(json.at("entries").size(), 3u);
  EXPECT_EQ(json["entries"][0]["calls"], 2);
  EXPECT_EQ(json["entries"][0]["bytes"], 15);
  EXPECT_EQ(json["entries"][2]["link"], "shared");
  EXPECT_EQ(ledger.bytes(LinkKind::tcp), 16u);
}

}  // namespace
}  // namespace echelon
