// What an exchange records of a step, for traces.
#include "echelon/step/exchange.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "echelon/collective/group.h"
#include "echelon/comm/communicator.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

// "all_reduce of gradients 1, 24 bytes".
std::vector<std::string> in_words(const std::vector<Exchanged>& records) {
  std::vector<std::string> words;
  for (const auto& one : records)
    words.push_back(fmt::format("{} of {} {}, {} bytes{}", name(one.operation),
                                to_string(one.purpose), one.part, one.bytes,
                                one.here ? ", here" : ""));
  return words;
}

// The tags of a ledger, each once.
std::set<std::string> tags_of(const Ledger& ledger) {
  std::set<std::string> tags;
  for (const auto& entry : ledger.entries()) tags.insert(entry.tag);
  return tags;
}

// One step of two ranks, which sends each kind of slice.
struct Step {
  std::shared_ptr<Exchange> exchange = plain_exchange();
  at::Tensor three = at::ones({3}, at::kDouble), five = at::ones({5}, at::kDouble),
             both = at::ones({8}, at::kFloat), own = at::zeros({4}, at::kFloat),
             loss = at::ones({}, at::kDouble);
  std::vector<Work> works;

  void run(Communicator& ranks) {
    exchange->begin_step();
    const auto begun = [&](const Work& work) { works.push_back(work); };
    begun(exchange->gather(ranks, both, own, {.purpose = Purpose::parameters, .part = 7}));
    begun(exchange->sum(ranks, three, {.purpose = Purpose::gradients, .part = 0}));
    begun(exchange->sum(ranks, five, {.purpose = Purpose::gradients, .part = 1}));
    begun(exchange->sum_to_owners(ranks, own, both, {.purpose = Purpose::gradients, .part = 2}));
    const int other = 1 - ranks.rank();
    begun(exchange->receive(ranks, five, other, 1, {.purpose = Purpose::activations, .part = 3}));
    begun(exchange->send(ranks, three.repeat({2}).narrow(0, 0, 5), other, 1,
                         {.purpose = Purpose::activations, .part = 3}));
    begun(exchange->sum(ranks, loss, {.purpose = Purpose::loss, .blocking = true}));
  }
  void wait() {
    for (const auto& work : works) exchange->wait(work, at::kCPU);
  }
};

const std::vector<std::string>& everything() {
  static const std::vector<std::string> words = {
      "all_gather of parameters 7, 32 bytes", "all_reduce of gradients 0, 24 bytes",
      "all_reduce of gradients 1, 40 bytes",  "reduce_scatter of gradients 2, 32 bytes",
      "receive of activations 3, 40 bytes",   "send of activations 3, 40 bytes",
      "all_reduce of loss -1, 8 bytes"};
  return words;
}

void on_two_ranks(const std::function<void(Communicator&)>& body) {
  run_ranks_well({.world = 2},
                 [&](Group& group) { body(*native_communicator(group.shared_from_this())); });
}

TEST(ExchangeRecords, ListASlicesPurposeOperationAndBytesInOrder) {
  on_two_ranks([](Communicator& ranks) {
    Step step;
    step.exchange->record(true);
    step.run(ranks);
    EXPECT_EQ(in_words(step.exchange->recorded()), everything()) << "while they run";
    step.wait();
    EXPECT_EQ(in_words(step.exchange->recorded()), everything()) << "when they are done";
    EXPECT_EQ(step.loss.item<double>(), 2);
    EXPECT_EQ(step.three[0].item<double>(), 2) << "what is recorded is sent";
  });
}

TEST(ExchangeRecords, AreOfOneStep) {
  on_two_ranks([](Communicator& ranks) {
    Step first, second;
    second.exchange = first.exchange;
    first.exchange->record(true);
    first.run(ranks);
    first.wait();
    second.run(ranks);
    second.wait();
    EXPECT_EQ(in_words(first.exchange->recorded()), everything());
    first.exchange->begin_step();
    EXPECT_EQ(in_words(first.exchange->recorded()), std::vector<std::string>{});
  });
}

TEST(ExchangeRecords, AreEmptyUnlessTheyAreWanted) {
  on_two_ranks([](Communicator& ranks) {
    Step step;
    step.run(ranks);
    step.wait();
    EXPECT_EQ(in_words(step.exchange->recorded()), std::vector<std::string>{});
    EXPECT_EQ(tags_of(ranks.ledger()),
              (std::set<std::string>{"activations", "gradients", "loss", "parameters"}));

    Step again;
    again.exchange->record(true);
    again.exchange->record(false);
    again.run(ranks);
    again.wait();
    again.exchange->push(again.three, {.purpose = Purpose::push}, [](const at::Tensor&) {});
    again.exchange->pull(again.three, {.purpose = Purpose::pull}, [](const at::Tensor&) {});
    EXPECT_EQ(in_words(again.exchange->recorded()), std::vector<std::string>{});
  });
}

TEST(ExchangeRecords, HaveTheLedgerCountPartsSeparately) {
  on_two_ranks([](Communicator& ranks) {
    Step step;
    step.exchange->record(true);
    step.run(ranks);
    step.wait();
    EXPECT_EQ(tags_of(ranks.ledger()),
              (std::set<std::string>{"activations 3", "gradients 0", "gradients 1", "gradients 2",
                                     "loss", "parameters 7"}));
  });
}

// Works whose times are made up here, on a communicator that is never asked.
class Planned final : public Exchange {
 public:
  // The next sum runs for that long, and waiting for it blocks until it has ended.
  struct Plan {
    double begin = 0, end = 0;  // milliseconds after now
  };
  std::vector<Plan> plans;
  const WorkClock::Clock::time_point now = WorkClock::Clock::now();

 protected:
  Work begin_sum(Communicator&, const at::Tensor&, const Parcel&) override {
    class Sleeping final : public Operand {
     public:
      explicit Sleeping(WorkSpan span) : span_(span) {}
      bool done() override { return WorkClock::Clock::now() >= span_.end; }
      void wait() override { std::this_thread::sleep_until(span_.end); }
      std::optional<WorkSpan> span() override { return span_; }

     private:
      WorkSpan span_;
    };
    const Plan plan = plans.at(next_++);
    return Work(std::make_shared<Sleeping>(WorkSpan{at(plan.begin), at(plan.end)}));
  }
  Work begin_sum_to_owners(Communicator&, const at::Tensor&, const at::Tensor&,
                           const Parcel&) override {
    return {};
  }
  Work begin_gather(Communicator&, const at::Tensor&, const at::Tensor&, const Parcel&) override {
    return {};
  }
  Work begin_send(Communicator&, const at::Tensor&, int, std::uint64_t, const Parcel&) override {
    return {};
  }
  Work begin_receive(Communicator&, const at::Tensor&, int, std::uint64_t, const Parcel&) override {
    return {};
  }
  void encode_push(const at::Tensor&, const Parcel&,
                   const std::function<void(const at::Tensor&)>&) override {}

 private:
  WorkClock::Clock::time_point at(double ms) const {
    return now + std::chrono::duration_cast<WorkClock::Clock::duration>(
                     std::chrono::duration<double, std::milli>(ms));
  }
  std::size_t next_ = 0;
};

// A step computes for 100 ms and then waits for both:
//
//   gradients 0   0 ├──────────────────────┤ 200     half of it is waited for
//   gradients 1              150 ├───────────────────┤ 250   all of it is
TEST(ExchangeRecords, CountWaitingForAnotherSliceAsWaiting) {
  on_two_ranks([](Communicator& ranks) {
    Planned exchange;
    exchange.plans = {{0, 200}, {150, 250}, {300, 300}};
    exchange.record(true);
    exchange.begin_step();
    const at::Tensor slice = at::ones({3});
    std::vector<Work> works;
    for (int i = 0; i < 3; ++i)
      works.push_back(exchange.sum(ranks, slice, {.purpose = Purpose::gradients, .part = i}));
    std::this_thread::sleep_until(exchange.now + std::chrono::milliseconds(100));
    exchange.wait(works[0], at::kCPU);
    exchange.wait(works[1], at::kCPU);
    const auto all = exchange.recorded();
    EXPECT_NEAR(all[0].waited, 0.1, 0.02);
    EXPECT_NEAR(all[1].waited, 0.1, 0.02) << "also while the step waits for the first";
    EXPECT_LE(all[1].waited, 0.1 + 1e-9) << "no moment counts twice";
    EXPECT_EQ(all[2].waited, 0) << "nobody has waited for it yet";
    exchange.begin_step();
    EXPECT_EQ(exchange.recorded().size(), 0u);
  });
}

// Ranks validate between steps, and gather parameters for it.
TEST(ExchangeRecords, HaveTheBytesOfAStepAndNotThoseBetweenSteps) {
  on_two_ranks([](Communicator& ranks) {
    const auto exchange = plain_exchange();
    exchange->set_ledger(&ranks.ledger());
    exchange->record(true);
    at::Tensor slice = at::ones({1000}, at::kDouble);
    const auto sum = [&] {
      exchange->wait(exchange->sum(ranks, slice, {.purpose = Purpose::gradients, .part = 0}),
                     at::kCPU);
    };
    const auto bytes = [&] {
      std::uint64_t all = 0;
      for (const auto& entry : exchange->sent()) all += entry.bytes;
      return all;
    };
    exchange->begin_step();
    EXPECT_EQ(bytes(), 0u);
    sum();
    const auto one = bytes();
    EXPECT_GT(one, 0u);
    sum();  // not of the next step
    exchange->begin_step();
    sum();
    EXPECT_EQ(bytes(), one);
    exchange->record(false);
    EXPECT_EQ(bytes(), 0u);
  });
}

// A Work knows when it ran; a wait that is recorded is one that the step's clock counts.
TEST(ExchangeRecords, TellWhenASliceRanAndHowLongTheStepWaited) {
  on_two_ranks([](Communicator& ranks) {
    const auto exchange = plain_exchange();
    exchange->record(true);
    exchange->begin_step();
    std::vector<at::Tensor> slices(4);
    std::vector<Work> works;
    for (int i = 0; i < 4; ++i) {
      slices[std::size_t(i)] = at::ones({1000}, at::kDouble);
      works.push_back(
          exchange->sum(ranks, slices[std::size_t(i)], {.purpose = Purpose::gradients, .part = i}));
    }
    for (std::size_t i = 0; i < works.size(); ++i) {
      exchange->wait(works[i], at::kCPU);
      const auto record = exchange->recorded()[i];
      ASSERT_TRUE(works[i].span());
      EXPECT_EQ(record.span.begin, works[i].span()->begin) << i;
      EXPECT_EQ(record.span.end, works[i].span()->end) << i;
      EXPECT_LE(record.asked, record.span.begin) << "it is asked for before it runs";
      EXPECT_GE(record.waited, 0) << i;
      EXPECT_LE(record.waited,
                std::chrono::duration<double>(record.span.end - record.span.begin).count())
          << i;
    }
    const auto before = exchange->recorded();
    exchange->wait(Work(), at::kCPU);  // of no slice
    for (std::size_t i = 0; i < works.size(); ++i)
      EXPECT_EQ(exchange->recorded()[i].waited, before[i].waited) << i;
  });
}

TEST(ExchangeRecords, CountABlockingSliceAsWaitedFor) {
  on_two_ranks([](Communicator& ranks) {
    const auto exchange = plain_exchange();
    exchange->record(true);
    at::Tensor slice = at::ones({1000}, at::kDouble);
    exchange->sum(ranks, slice, {.purpose = Purpose::tied_gradients, .blocking = true});
    const auto records = exchange->recorded();
    ASSERT_EQ(records.size(), 1u);
    EXPECT_GT(records[0].waited, 0);
    EXPECT_LE(records[0].waited, exchange->clock().waited());
  });
}

TEST(ExchangeRecords, ListPushesAndPullsAndWhereTheirServerIs) {
  const auto exchange = plain_exchange();
  exchange->record(true);
  const at::Tensor grads = at::full({3}, 2, at::kDouble), values = at::zeros({5}, at::kDouble);
  at::Tensor sent;
  exchange->pull(values, {.purpose = Purpose::pull, .part = 1, .here = true},
                 [](const at::Tensor& slice) { at::Tensor(slice).fill_(4); });
  exchange->push(grads, {.purpose = Purpose::push, .part = 0},
                 [&](const at::Tensor& slice) { sent = slice.clone(); });
  EXPECT_EQ(
      in_words(exchange->recorded()),
      (std::vector<std::string>{"receive of pull 1, 40 bytes, here", "send of push 0, 24 bytes"}));
  EXPECT_EQ(values.sum().item<double>(), 20);
  EXPECT_EQ(sent.sum().item<double>(), 6);
  for (const auto& one : exchange->recorded()) {
    EXPECT_EQ(one.asked, one.span.begin) << "it is done before the call returns";
    EXPECT_EQ(one.waited, std::chrono::duration<double>(one.span.end - one.span.begin).count());
  }
}

// A worker pushes to each server in a thread of its own.
TEST(ExchangeRecords, AreCompleteWhenSeveralThreadsPush) {
  const auto exchange = plain_exchange();
  exchange->record(true);
  std::vector<std::thread> threads;
  for (int server = 0; server < 8; ++server)
    threads.emplace_back([&, server] {
      for (int i = 0; i < 50; ++i)
        exchange->push(at::ones({server + 1}, at::kDouble),
                       {.purpose = Purpose::push, .part = server}, [](const at::Tensor&) {});
    });
  for (auto& thread : threads) thread.join();
  std::vector<int> pushes(8);
  for (const auto& one : exchange->recorded()) {
    EXPECT_EQ(one.bytes, std::size_t(one.part + 1) * sizeof(double));
    ++pushes[std::size_t(one.part)];
  }
  EXPECT_EQ(pushes, std::vector<int>(8, 50));
}

TEST(ExchangeRecords, LeaveOutAPushThatFailed) {
  const auto exchange = plain_exchange();
  exchange->record(true);
  EXPECT_THROW(exchange->push(at::ones({3}), {.purpose = Purpose::push},
                              [](const at::Tensor&) { throw Error("the server is gone"); }),
               Error);
  EXPECT_EQ(in_words(exchange->recorded()), std::vector<std::string>{});
}

TEST(Exchange, TagsWithAndWithoutTheirPart) {
  EXPECT_EQ(tag_of({.purpose = Purpose::tied_gradients, .part = 12}), "tied gradients");
  EXPECT_EQ(tag_of({.purpose = Purpose::tied_gradients, .part = 12, .told_apart = true}),
            "tied gradients 12");
  for (const char* tag : {"tied gradients", "tied gradients 0", "tied gradients 12"})
    EXPECT_EQ(without_part(tag), "tied gradients") << tag;
  for (const char* tag : {"", "12", "fp32", "fp32 sum"}) EXPECT_EQ(without_part(tag), tag);
}

}  // namespace
}  // namespace echelon
