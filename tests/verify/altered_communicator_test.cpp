// A communicator that forwards every call, except for what an alteration changes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "echelon/verify/altered_communicator.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

using Sent = std::map<std::string, std::uint64_t>;  // bytes by tag
Sent sent_by(Ledger& ledger) {
  Sent sent;
  for (const auto& entry : ledger.entries()) sent[entry.tag] += entry.bytes;
  return sent;
}

// Runs on two ranks, each with the alteration.
void on_two(const Alteration& alteration, const std::function<void(Communicator&)>& body) {
  run_ranks_well({.world = 2}, [&](Group& group) {
    body(*altered(native_communicator(group.shared_from_this()), alteration));
  });
}

const Alteration none = [](Transfer&) { return Change{}; };
Alteration so_often(int times) {
  return [=](Transfer&) { return Change{.times = times}; };
}

at::Tensor numbers(std::initializer_list<double> values) {
  return at::tensor(std::vector<double>(values), at::kDouble);
}

// Makes every exchange once, with values r + 1 on rank r; returns the results and the bytes by tag.
struct Exchanged {
  std::map<std::string, at::Tensor> results;
  Sent sent;
};
Exchanged exchange_all(Communicator& ranks) {
  const int rank = ranks.rank(), other = 1 - rank;
  const auto mine = [&](std::int64_t n) { return at::full({n}, rank + 1.0, at::kDouble); };
  Exchanged seen;
  auto& all = seen.results;
  ranks.ledger().clear();
  all["sum"] = mine(2);
  ranks.all_reduce(all["sum"], ReduceOp::sum, {.tag = "sum"}).wait();
  all["part"] = at::zeros({1}, at::kDouble);
  ranks.reduce_scatter(all["part"], mine(2), ReduceOp::sum, {.tag = "part"}).wait();
  all["gathered"] = at::zeros({2}, at::kDouble);
  ranks.all_gather(all["gathered"], mine(1), {.tag = "gathered"}).wait();
  all["first's"] = mine(1);
  ranks.broadcast(all["first's"], 0, {.tag = "first's"}).wait();
  all["message"] = at::zeros({1}, at::kDouble);
  const Work come = ranks.receive(all["message"], other, 7, {.tag = "message"});
  ranks.send(mine(1), other, 7, {.tag = "message"}).wait();
  come.wait();
  all["of a group"] = mine(1);
  const auto group = ranks.split(0, rank);
  group->all_reduce(all["of a group"], ReduceOp::sum, {.tag = "of a group"}).wait();
  seen.sent = sent_by(ranks.ledger());
  seen.sent.erase("split");  // how a group is made is not altered
  return seen;
}

void expect_result(const Exchanged& seen, const std::string& name, const at::Tensor& expected) {
  const at::Tensor& result = seen.results.at(name);
  EXPECT_TRUE(at::equal(result, expected)) << name << ": " << result << " is not " << expected;
}

TEST(AlteredCommunicator, ForwardsWhatIsNotAltered) {
  std::vector<Sent> plain(2), passed(2);
  run_ranks_well({.world = 2}, [&](Group& group) {
    plain[std::size_t(group.rank())] =
        exchange_all(*native_communicator(group.shared_from_this())).sent;
  });
  on_two(none, [&](Communicator& ranks) {
    const Exchanged seen = exchange_all(ranks);
    passed[std::size_t(ranks.rank())] = seen.sent;
    expect_result(seen, "sum", numbers({3, 3}));
    expect_result(seen, "part", numbers({3}));
    expect_result(seen, "gathered", numbers({1, 2}));
    expect_result(seen, "first's", numbers({1}));
    expect_result(seen, "message", numbers({ranks.rank() == 0 ? 2.0 : 1.0}));
    expect_result(seen, "of a group", numbers({3}));
  });
  EXPECT_EQ(passed, plain);
}

TEST(AlteredCommunicator, ASkippedExchangeGivesARankItsOwn) {
  on_two(so_often(0), [](Communicator& ranks) {
    const Exchanged seen = exchange_all(ranks);
    const double own = ranks.rank() + 1;
    expect_result(seen, "sum", numbers({own, own}));
    expect_result(seen, "part", numbers({own}));
    expect_result(seen, "gathered", ranks.rank() == 0 ? numbers({own, 0}) : numbers({0, own}));
    expect_result(seen, "first's", numbers({own}));
    expect_result(seen, "message", numbers({0}));
    expect_result(seen, "of a group", numbers({own}));
    for (const auto& [tag, bytes] : seen.sent) EXPECT_EQ(bytes, 0u) << tag;
  });
}

TEST(AlteredCommunicator, ARepeatedExchangeSendsTwiceAndGivesTheSame) {
  std::vector<Exchanged> once(2);
  on_two(none, [&](Communicator& ranks) { once[std::size_t(ranks.rank())] = exchange_all(ranks); });
  on_two(so_often(2), [&](Communicator& ranks) {
    const Exchanged seen = exchange_all(ranks);
    for (const auto& [name, result] : once[std::size_t(ranks.rank())].results)
      expect_result(seen, name, result);
    for (const auto& [tag, bytes] : once[std::size_t(ranks.rank())].sent)
      EXPECT_EQ(seen.sent.at(tag), 2 * bytes) << tag;
  });
}

TEST(AlteredCommunicator, AResultIsChangedOnce) {
  on_two(
      [](Transfer& one) {
        return Change{.after = [sum = one.output] { at::Tensor(sum).mul_(10); }};
      },
      [](Communicator& ranks) {
        const at::Tensor sum = numbers({1});
        const Work work = ranks.all_reduce(sum, ReduceOp::sum);
        while (!work.done()) {
        }
        work.wait();
        work.follow();
        EXPECT_EQ(sum.item<double>(), 20);
      });
}

TEST(AlteredCommunicator, APeerAndATensorCanBeReplaced) {
  on_two(
      [](Transfer& one) {
        if (one.kind == Transfer::Kind::broadcast) one.peer = 1;
        if (one.kind == Transfer::Kind::send) one.input = one.input + 40;
        return Change{};
      },
      [](Communicator& ranks) {
        const Exchanged seen = exchange_all(ranks);
        expect_result(seen, "first's", numbers({2}));
        expect_result(seen, "message", numbers({ranks.rank() == 0 ? 42.0 : 41.0}));
      });
}

}  // namespace
}  // namespace echelon
