#include "echelon/data/corpus/ordered_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <string>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

struct Item {
  int number = 0, square = 0;
};

class OrderedWorkTest : public testing::TestWithParam<int> {};

TEST_P(OrderedWorkTest, GivesItemsInTheirOrder) {
  int made = 0;
  OrderedWork<Item> work(
      GetParam(), [&](Item& item) { return (item.number = made++) < 1000; },
      [](Item& item) {
        if (item.number % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
        item.square = item.number * item.number;
      });
  for (int i = 0; i < 1000; ++i) {
    const Item* item = work.next();
    ASSERT_NE(item, nullptr);
    ASSERT_EQ(item->number, i);
    ASSERT_EQ(item->square, i * i);
  }
  EXPECT_EQ(work.next(), nullptr);
  EXPECT_EQ(work.next(), nullptr);
}

TEST_P(OrderedWorkTest, HasFewItemsUnderWay) {
  int made = 0, taken = 0, most = 0;
  std::set<const Item*> items;
  OrderedWork<Item> work(
      GetParam(),
      [&](Item&) {
        most = std::max(most, ++made - taken);
        return made <= 500;
      },
      [](Item&) {});
  for (; const Item* item = work.next(); ++taken) items.insert(item);
  EXPECT_LE(most, 4 * GetParam() + 1);
  EXPECT_LE(int(items.size()), 4 * GetParam() + 1) << "they are used again";
}

TEST_P(OrderedWorkTest, ThrowsWhereTheItemThatFailedWouldCome) {
  int made = 0;
  OrderedWork<Item> work(
      GetParam(), [&](Item& item) { return item.number = made++, true; },
      [](Item& item) {
        if (item.number >= 20) throw Error("no " + std::to_string(item.number));
      });
  for (int i = 0; i < 20; ++i) ASSERT_EQ(work.next()->number, i);
  EXPECT_EQ(thrown<Error>([&] { work.next(); }), "no 20");
}

TEST_P(OrderedWorkTest, GivesWhatWasMadeBeforeMakingFailed) {
  int made = 0;
  OrderedWork<Item> work(
      GetParam(),
      [&](Item& item) {
        if (made == 5) throw Error("the source is broken");
        return item.number = made++, true;
      },
      [](Item&) {});
  for (int i = 0; i < 5; ++i) ASSERT_EQ(work.next()->number, i);
  EXPECT_EQ(thrown<Error>([&] { work.next(); }), "the source is broken");
}

TEST_P(OrderedWorkTest, EndsWithItemsUnderWay) {
  std::atomic<int> worked = 0;
  {
    OrderedWork<Item> work(
        GetParam(), [](Item&) { return true; }, [&](Item&) { ++worked; });
    work.next();
  }
  EXPECT_GE(worked, 1);
}

INSTANTIATE_TEST_SUITE_P(Threads, OrderedWorkTest, testing::Values(1, 2, 5));

}  // namespace
}  // namespace echelon
