// What every backend must do, written once against the interface. Each rank creates the inputs of
// all ranks and computes the expected result with plain torch.
//
//   for (const auto& failure : CommSuite(communicator, at::kCPU).run()) …
//
// Values are small integers, so sums and products are exact in every type.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sched.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/comm/communicator.h"

namespace echelon {

class CommSuite {
 public:
  struct Scope {
    // NCCL has neither tags nor receives from any rank, and ranks that share a device must issue
    // operations on several communicators in one order.
    bool free_order = true;
  };

  CommSuite(std::shared_ptr<Communicator> world, at::Device device, Scope scope)
      : world_(std::move(world)), comm_(*world_), device_(device), scope_(scope) {}
  CommSuite(std::shared_ptr<Communicator> world, at::Device device)
      : CommSuite(std::move(world), device, Scope{}) {}

  // The failures, as sentences. A check that throws ends the run, because the other ranks would
  // wait for it.
  std::vector<std::string> run() {
    const std::pair<const char*, void (CommSuite::*)()> checks[] = {
        {"reductions", &CommSuite::reductions}, {"uneven", &CommSuite::uneven},
        {"moves", &CommSuite::moves},           {"random", &CommSuite::random_values},
        {"strided", &CommSuite::strided},       {"in place", &CommSuite::in_place},
        {"order", &CommSuite::order},           {"many", &CommSuite::many_at_once},
        {"dropped", &CommSuite::dropped},       {"messages", &CommSuite::messages},
        {"groups", &CommSuite::groups},         {"allocate", &CommSuite::allocated},
        {"ledger", &CommSuite::ledger},         {"misuse", &CommSuite::misuse}};
    for (const auto& [name, check] : checks) {
      check_ = name;
      try {
        (this->*check)();
      } catch (const std::exception& error) {
        fail(fmt::format("threw {}", error.what()));
        break;
      }
    }
    return failures_;
  }

 private:
  static constexpr at::ScalarType types[] = {at::kDouble,   at::kFloat, at::kHalf,
                                             at::kBFloat16, at::kLong,  at::kInt,
                                             at::kChar,     at::kByte,  at::kBool};
  static constexpr ReduceOp ops[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                                     ReduceOp::product};
  static constexpr std::int64_t lengths[] = {0, 1, 7, 1003};

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  std::size_t at_rank(int rank) const { return std::size_t(rank); }

  void fail(const std::string& what) {
    if (failures_.size() < 20)
      failures_.push_back(fmt::format("{}: rank {} of {}, {}", check_, rank(), size(), what));
  }
  void expect(bool good, const std::string& what) {
    if (!good) fail(what);
  }

  // On the CPU; input() moves this rank's values to the backend's device.
  static at::Tensor values(int rank, std::int64_t n, at::ScalarType type, int seed) {
    const auto i = at::arange(n, at::kLong);
    const auto mixed = (i * 31 + rank * 1009 + seed * 57 + 11) * 40503 % 65521;
    return type == at::kBool ? (mixed % 3).ne(0) : (mixed % 7 - 3).to(type);
  }
  at::Tensor input(std::int64_t n, at::ScalarType type, int seed) const {
    return values(rank(), n, type, seed).to(device_);
  }
  at::Tensor empty(std::int64_t n, at::ScalarType type) const {
    return at::full({n}, 1, at::TensorOptions().dtype(type).device(device_));
  }
  std::vector<at::Tensor> everyone(std::int64_t n, at::ScalarType type, int seed) const {
    std::vector<at::Tensor> all;
    for (int r = 0; r < size(); ++r) all.push_back(values(r, n, type, seed));
    return all;
  }

  static at::Tensor combined(const std::vector<at::Tensor>& all, ReduceOp op) {
    const auto type = all[0].scalar_type();
    const auto stack = at::stack(all);
    if (type == at::kBool)
      return op == ReduceOp::sum || op == ReduceOp::max ? stack.any(0) : stack.all(0);
    const auto wide = stack.to(at::isFloatingType(type) ? at::kDouble : at::kLong);
    switch (op) {
      case ReduceOp::sum:
        return wide.sum(0).to(type);
      case ReduceOp::average:
        return wide.mean(0).to(type);
      case ReduceOp::min:
        return wide.amin(0).to(type);
      case ReduceOp::max:
        return wide.amax(0).to(type);
      case ReduceOp::product:
        return wide.prod(0).to(type);
    }
    return {};
  }

  void same(const at::Tensor& got, const at::Tensor& want, const std::string& what,
            bool exact = true) {
    const auto here = got.cpu();
    const double tolerance = want.scalar_type() == at::kDouble  ? 1e-12
                             : want.scalar_type() == at::kFloat ? 1e-6
                             : want.scalar_type() == at::kHalf  ? 2e-3
                                                                : 1.6e-2;
    const bool good =
        here.sizes() == want.sizes() && here.scalar_type() == want.scalar_type() &&
        (exact ? at::equal(here, want)
               : at::allclose(here.to(at::kDouble), want.to(at::kDouble), tolerance, tolerance));
    if (good) return;
    std::string difference;
    if (here.sizes() == want.sizes() && here.numel()) {
      const auto apart = (here.to(at::kDouble) - want.to(at::kDouble)).abs();
      const auto where = apart.flatten().argmax().item<std::int64_t>();
      difference =
          fmt::format(": at {} of {} got {}, wanted {}", where, here.numel(),
                      here.flatten()[where].item<double>(), want.flatten()[where].item<double>());
    }
    fail(fmt::format("{} of {}{}", what, at::toString(want.scalar_type()), difference));
  }

  // Only an average over 3 ranks is rounded.
  static bool exact(ReduceOp op) { return op != ReduceOp::average; }

  template <class Body>
  void every(Body body) {
    int seed = 0;
    for (const auto type : types)
      for (const auto n : lengths) body(type, n, ++seed);
  }

  std::int64_t total(const std::vector<std::size_t>& counts) const {
    std::int64_t sum = 0;
    for (const auto count : counts) sum += std::int64_t(count);
    return sum;
  }
  std::int64_t before(const std::vector<std::size_t>& counts, int rank) const {
    return total({counts.begin(), counts.begin() + rank});
  }

  void reductions() {
    every([&](at::ScalarType type, std::int64_t n, int seed) {
      for (const auto op : ops) {
        if (op == ReduceOp::average && !at::isFloatingType(type)) continue;
        const auto what = fmt::format("{} of {}", name(op), n);
        const CommCall call{.tag = what, .timeout = {}, .blocking = seed % 2 == 0};
        const auto want = combined(everyone(n, type, seed), op);
        auto sum = input(n, type, seed);
        comm_.all_reduce(sum, op, call).wait();
        same(sum, want, "all_reduce " + what, exact(op));

        const int root = seed % size();
        auto rooted = input(n, type, seed);
        comm_.reduce(rooted, op, root, call).wait();
        same(rooted, rank() == root ? want : values(rank(), n, type, seed), "reduce " + what,
             exact(op));

        const auto whole = combined(everyone(n * size(), type, seed), op);
        auto piece = empty(n, type);
        comm_.reduce_scatter(piece, input(n * size(), type, seed), op, call).wait();
        same(piece, whole.narrow(0, n * rank(), n), "reduce_scatter " + what, exact(op));
      }
    });
  }

  void uneven() {
    for (const auto type : types) {
      for (int seed = 0; seed < 3; ++seed) {
        std::vector<std::size_t> counts;
        for (int r = 0; r < size(); ++r) counts.push_back(std::size_t((r * 37 + seed * 5) % 101));
        const auto mine = std::int64_t(counts[at_rank(rank())]), all = total(counts);

        auto piece = empty(mine, type);
        comm_.reduce_scatter(piece, input(all, type, seed), ReduceOp::sum, {}, counts).wait();
        same(piece,
             combined(everyone(all, type, seed), ReduceOp::sum)
                 .narrow(0, before(counts, rank()), mine),
             "uneven reduce_scatter");

        auto gathered = empty(all, type);
        comm_.all_gather(gathered, input(mine, type, seed), {}, counts).wait();
        std::vector<at::Tensor> pieces;
        for (int r = 0; r < size(); ++r)
          pieces.push_back(values(r, std::int64_t(counts[at_rank(r)]), type, seed));
        same(gathered, at::cat(pieces), "uneven all_gather");

        // Rank a has (a + 2b + seed) mod 5 elements for rank b.
        const auto from_to = [&](int a, int b) { return std::size_t((a + 2 * b + seed) % 5); };
        const auto out_of = [&](int a) {
          std::vector<std::size_t> there;
          for (int b = 0; b < size(); ++b) there.push_back(from_to(a, b));
          return there;
        };
        std::vector<std::size_t> back;
        std::vector<at::Tensor> arrived;
        for (int r = 0; r < size(); ++r) {
          back.push_back(from_to(r, rank()));
          const auto theirs = out_of(r);
          arrived.push_back(values(r, total(theirs), type, seed)
                                .narrow(0, before(theirs, rank()), std::int64_t(back.back())));
        }
        const auto there = out_of(rank());
        auto swapped = empty(total(back), type);
        comm_.all_to_all(swapped, input(total(there), type, seed), {}, there, back).wait();
        same(swapped, at::cat(arrived), "uneven all_to_all");
      }
    }
  }

  void moves() {
    every([&](at::ScalarType type, std::int64_t n, int seed) {
      const auto what = fmt::format("{}", n);
      const auto all = everyone(n, type, seed);
      auto gathered = empty(n * size(), type);
      comm_.all_gather(gathered, input(n, type, seed)).wait();
      same(gathered, at::cat(all), "all_gather of " + what);

      auto swapped = empty(n * size(), type);
      comm_.all_to_all(swapped, input(n * size(), type, seed)).wait();
      std::vector<at::Tensor> arrived;
      for (const auto& theirs : everyone(n * size(), type, seed))
        arrived.push_back(theirs.narrow(0, n * rank(), n));
      same(swapped, at::cat(arrived), "all_to_all of " + what);

      for (int root = 0; root < size(); ++root) {
        auto told = input(n, type, seed);
        comm_.broadcast(told, root).wait();
        same(told, all[at_rank(root)], "broadcast of " + what);

        auto collected = rank() == root ? empty(n * size(), type) : at::Tensor();
        comm_.gather(collected, input(n, type, seed), root).wait();
        if (rank() == root) same(collected, at::cat(all), "gather of " + what);

        auto dealt = empty(n, type);
        comm_.scatter(dealt, rank() == root ? input(n * size(), type, seed) : at::Tensor(), root)
            .wait();
        same(dealt, values(root, n * size(), type, seed).narrow(0, n * rank(), n),
             "scatter of " + what);
      }
      comm_.barrier().wait();
    });
  }

  void random_values() {
    for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
      std::vector<at::Tensor> all;
      for (int r = 0; r < size(); ++r)
        all.push_back(at::sin(at::arange(30011, at::kDouble) * (r + 1.7)).add(1.5).to(type));
      auto mean = all[at_rank(rank())].to(device_).clone();
      comm_.all_reduce(mean, ReduceOp::average).wait();
      same(mean, combined(all, ReduceOp::average), "average of sines", false);
    }
  }

  // Every second column of a matrix: neither dense nor in order.
  static at::Tensor strided_copy(const at::Tensor& dense) {
    auto wide = at::zeros({dense.numel() * 2}, dense.options());
    auto view = wide.slice(0, 0, dense.numel() * 2, 2);
    view.copy_(dense);
    return view;
  }

  void strided() {
    const std::int64_t n = 24;
    for (const auto type : {at::kFloat, at::kBFloat16, at::kBool}) {
      const auto all = everyone(n, type, 5);
      const auto sum = combined(all, ReduceOp::sum);
      auto turned = input(n, type, 5).view({4, 6}).t();
      comm_.all_reduce(turned, ReduceOp::sum).wait();
      same(turned.t().contiguous().view({n}), sum, "all_reduce of a transposed matrix");

      auto told = strided_copy(input(n, type, 5));
      comm_.broadcast(told, size() - 1).wait();
      same(told, all.back(), "broadcast of every second element");

      auto gathered = strided_copy(empty(n * size(), type));
      comm_.all_gather(gathered, strided_copy(input(n, type, 5))).wait();
      same(gathered, at::cat(all), "all_gather of every second element");

      auto piece = strided_copy(empty(n, type));
      comm_.reduce_scatter(piece, strided_copy(input(n * size(), type, 5)), ReduceOp::max).wait();
      same(piece, combined(everyone(n * size(), type, 5), ReduceOp::max).narrow(0, n * rank(), n),
           "reduce_scatter of every second element");

      if (size() == 1) continue;  // no rank sends to itself
      auto received = strided_copy(empty(n, type));
      const auto sent = comm_.send(strided_copy(input(n, type, 5)), (rank() + 1) % size(), 3);
      const int previous = (rank() + size() - 1) % size();
      comm_.receive(received, previous, 3).wait();
      sent.wait();
      same(received, all[at_rank(previous)], "a message of every second element");
    }
  }

  void in_place() {
    const std::int64_t n = 1003;
    auto whole = empty(n * size(), at::kFloat);
    auto mine = whole.narrow(0, n * rank(), n);
    mine.copy_(input(n, at::kFloat, 1));
    comm_.all_gather(whole, mine).wait();
    same(whole, at::cat(everyone(n, at::kFloat, 1)), "all_gather of a piece of the output");
  }

  // Waits only for the last operation: the earlier ones are then over, too.
  void order() {
    const int rounds = 12;
    auto count = at::ones({5}, at::TensorOptions().dtype(at::kLong).device(device_));
    auto other = input(5, at::kLong, 2);
    std::int64_t want = 1;
    for (int i = 0; i < rounds; ++i, want *= size()) comm_.all_reduce(count, ReduceOp::sum);
    comm_.all_reduce(other, ReduceOp::max);
    comm_.barrier().wait();
    same(count, at::full({5}, want, at::kLong), "sums of one tensor, one after another");
    same(other, combined(everyone(5, at::kLong, 2), ReduceOp::max), "the one before a barrier");
  }

  void many_at_once() {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 40; ++i) {
      const std::int64_t n = i * 211 % 3001;
      tensors.push_back(input(n, at::kFloat, i));
      works.push_back(i % 3 ? comm_.all_reduce(tensors.back(), ReduceOp::sum)
                            : comm_.broadcast(tensors.back(), i % size()));
    }
    for (int step = 0; step < 40; ++step) {
      const int i = (step * 17 + rank() * 5) % 40;
      const auto at = std::size_t(i);
      works[at].wait();
      expect(works[at].done(), "a work that was waited for is not done");
      works[at].wait();
      const auto all = everyone(tensors[at].numel(), at::kFloat, i);
      same(tensors[at], i % 3 ? combined(all, ReduceOp::sum) : all[at_rank(i % size())],
           fmt::format("work {} of many", i));
    }
    auto polled = input(7, at::kFloat, 1);
    const auto work = comm_.all_reduce(polled, ReduceOp::sum);
    while (!work.done()) sched_yield();
    work.wait();
    same(polled, combined(everyone(7, at::kFloat, 1), ReduceOp::sum), "a work that was polled");
  }

  // Dropped work continues and keeps its tensors alive.
  void dropped() {
    for (int i = 0; i < 5; ++i) comm_.all_reduce(input(100000, at::kFloat, i), ReduceOp::sum);
    auto last = input(7, at::kFloat, 1);
    comm_.all_reduce(last, ReduceOp::sum).wait();
    same(last, combined(everyone(7, at::kFloat, 1), ReduceOp::sum), "what follows dropped works");
  }

  void messages() {
    if (size() == 1) return;
    const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{300000}}) {
      const auto first = input(n, at::kFloat, 1), second = input(n, at::kFloat, 2);
      auto one = empty(n, at::kFloat), two = empty(n, at::kFloat);
      const auto sent = comm_.send(first, next, 7), also = comm_.send(second, next, 8);
      if (scope_.free_order) {
        // Received in the opposite order: tags tell them apart.
        const auto late = comm_.receive(two, previous, 8), early = comm_.receive(one, previous, 7);
        late.wait();
        early.wait();
        expect(early.source() == previous, "a receive does not say whom it came from");
      } else {
        const auto early = comm_.receive(one, previous, 7), late = comm_.receive(two, previous, 8);
        late.wait();
        early.wait();
      }
      sent.wait();
      also.wait();
      same(one, values(previous, n, at::kFloat, 1), fmt::format("a message of {}", n));
      same(two, values(previous, n, at::kFloat, 2), fmt::format("a second message of {}", n));
    }
    if (scope_.free_order) from_anyone();

    // Concurrently with a collective that another rank has not joined yet.
    auto sum = input(7, at::kLong, 1), told = empty(7, at::kLong);
    if (rank() == 0) {
      const auto work = comm_.all_reduce(sum, ReduceOp::sum);
      comm_.send(input(7, at::kLong, 2), 1, 5).wait();
      work.wait();
    } else {
      if (rank() == 1) {
        comm_.receive(told, 0, 5).wait();
        same(told, values(0, 7, at::kLong, 2), "a message that overtakes a sum");
      }
      comm_.all_reduce(sum, ReduceOp::sum).wait();
    }
    same(sum, combined(everyone(7, at::kLong, 1), ReduceOp::sum), "a sum beside a message");
  }

  void from_anyone() {
    if (rank() != 0) {
      comm_.send(input(9, at::kInt, 3), 0, 9).wait();
      return;
    }
    std::vector<bool> seen(at_rank(size()));
    for (int i = 1; i < size(); ++i) {
      auto from = empty(9, at::kInt);
      const auto work = comm_.receive(from, Communicator::anyone, 9);
      work.wait();
      const int who = work.source();
      expect(who > 0 && who < size() && !seen[at_rank(who)],
             fmt::format("a receive from anyone came from {}", who));
      if (who <= 0 || who >= size()) continue;
      seen[at_rank(who)] = true;
      same(from, values(who, 9, at::kInt, 3), "a message from anyone");
    }
  }

  void groups() {
    const auto half = comm_.split(rank() % 2, -rank());  // the last rank comes first
    const auto again = comm_.split(0, rank());
    const auto some = comm_.split(rank() == 0 ? -1 : 4, 0);
    const int members = (size() + 1 - rank() % 2) / 2;
    expect(half->size() == members && half->rank() == members - 1 - rank() / 2,
           fmt::format("split gave rank {} of {}", half->rank(), half->size()));
    expect(again->size() == size() && again->rank() == rank(), "split changed the whole");
    expect((rank() == 0) == !some, "split with a negative colour gave a communicator");
    if (some) expect(some->size() == size() - 1, "split counted who took no part");
    expect(&half->ledger() == &comm_.ledger(), "split began a ledger of its own");

    std::vector<at::Tensor> part;
    for (int r = rank() % 2; r < size(); r += 2) part.push_back(values(r, 501, at::kFloat, 1));
    const auto all = everyone(501, at::kFloat, 1);
    for (int round = 0; round < 5; ++round) {
      auto a = input(501, at::kFloat, 1), b = a.clone(), c = a.clone();
      Work first, second, third;
      const bool turned = scope_.free_order && rank() % 3 == 1;
      if (!turned) first = comm_.all_reduce(a, ReduceOp::sum);
      second = half->all_reduce(b, ReduceOp::sum);
      third = again->all_reduce(c, ReduceOp::max);
      if (turned) first = comm_.all_reduce(a, ReduceOp::sum);
      third.wait();
      first.wait();
      second.wait();
      same(a, combined(all, ReduceOp::sum), "a sum of all beside others");
      same(b, combined(part, ReduceOp::sum), "a sum of half beside others");
      same(c, combined(all, ReduceOp::max), "a maximum of all beside others");
    }
    auto order = half->rank() == 0 ? input(5, at::kInt, rank()) : empty(5, at::kInt);
    half->broadcast(order, 0).wait();
    const int head = rank() % 2 + 2 * (members - 1);
    same(order, values(head, 5, at::kInt, head), "a broadcast by the last rank, first in the half");
    const auto quarter = half->split(0, 0);
    expect(quarter && quarter->size() == members, "a split of a split");
  }

  void allocated() {
    auto tensor = comm_.allocate({3, 5}, at::kBFloat16);
    expect(tensor.sizes() == at::IntArrayRef({3, 5}) && tensor.scalar_type() == at::kBFloat16 &&
               tensor.device().type() == device_.type(),
           "allocate gave another tensor");
    tensor.copy_(input(15, at::kBFloat16, 1).view({3, 5}));
    comm_.all_reduce(tensor, ReduceOp::sum).wait();
    same(tensor.view({15}), combined(everyone(15, at::kBFloat16, 1), ReduceOp::sum),
         "all_reduce of allocated memory");
    expect(comm_.allocate({0}, at::kFloat).numel() == 0, "allocate of nothing");
  }

  void ledger() {
    comm_.ledger().clear();
    comm_.all_reduce(input(100, at::kFloat, 1), ReduceOp::sum, {.tag = "ledger"}).wait();
    bool found = false;
    for (const auto& entry : comm_.ledger().entries())
      found |= entry.tag == "ledger" && entry.operation == Operation::all_reduce && entry.calls > 0;
    expect(found || size() == 1, "the ledger has no entry for a call");
    expect(comm_.ledger().bytes() > 0 || size() == 1, "the ledger counted no byte");
  }

  // Accepts an error from the call itself or from wait().
  void refuses(const char* what, const std::function<Work()>& call) {
    try {
      call().wait();
    } catch (const InvalidArgument&) {
      return;
    } catch (const std::exception& error) {
      return fail(fmt::format("{} gave the wrong error: {}", what, error.what()));
    }
    fail(fmt::format("{} was not refused", what));
  }

  // A mistake of one rank: no other rank notices, and the communicator keeps working.
  void misuse() {
    const auto f = [&](std::int64_t n) { return empty(n, at::kFloat); };
    const auto i = [&](std::int64_t n) { return empty(n, at::kInt); };
    refuses("an average of ints", [&] { return comm_.all_reduce(i(3), ReduceOp::average); });
    refuses("an average of bools",
            [&] { return comm_.reduce(empty(3, at::kBool), ReduceOp::average, 0); });
    refuses("a complex tensor",
            [&] { return comm_.all_reduce(f(3).to(at::kComplexFloat), ReduceOp::sum); });
    refuses("a gather of two types", [&] { return comm_.all_gather(i(2 * size()), f(2)); });
    refuses("an output that is too small",
            [&] { return comm_.all_gather(f(2 * size() + size()), f(2)); });
    refuses("a piece that is too large",
            [&] { return comm_.reduce_scatter(f(3), f(2 * size()), ReduceOp::sum); });
    refuses("counts that do not add up", [&] {
      return comm_.all_gather(f(5 * size()), f(2), {},
                              std::vector<std::size_t>(at_rank(size()), 2));
    });
    refuses("too many counts", [&] {
      return comm_.all_gather(f(2 * size()), f(2), {},
                              std::vector<std::size_t>(at_rank(size() + 1), 2));
    });
    if (size() > 1)
      refuses("what does not divide evenly",
              [&] { return comm_.reduce_scatter(f(1), f(size() + 1), ReduceOp::sum); });
    refuses("a root that is no rank", [&] { return comm_.broadcast(f(3), size()); });
    refuses("a negative root", [&] { return comm_.reduce(f(3), ReduceOp::sum, -1); });
    refuses("a send to no rank", [&] { return comm_.send(f(3), size()); });
    refuses("a receive from no rank", [&] { return comm_.receive(f(3), size()); });

    auto sum = input(7, at::kFloat, 1);
    comm_.all_reduce(sum, ReduceOp::sum).wait();
    same(sum, combined(everyone(7, at::kFloat, 1), ReduceOp::sum), "a sum after refused calls");
  }

  std::shared_ptr<Communicator> world_;
  Communicator& comm_;
  at::Device device_;
  Scope scope_;
  const char* check_ = "";
  std::vector<std::string> failures_;
};

}  // namespace echelon
