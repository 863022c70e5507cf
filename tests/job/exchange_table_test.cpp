// The table of `--trace buckets`, of steps whose times and bytes are made up here.
#include "echelon/job/exchange_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/collective/algorithm.h"

namespace echelon {
namespace {

using Clock = std::chrono::steady_clock;

// A moment, in milliseconds.
Clock::time_point at_ms(double ms) {
  return Clock::time_point(std::chrono::hours(1)) +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms));
}

// A rank that counts what is sent and knows what the cost model says, and exchanges nothing.
class Counting final : public Communicator {
 public:
  std::map<std::size_t, double> model = {};  // seconds by bytes

  const char* backend() const override { return "counting"; }
  int rank() const override { return 0; }
  int size() const override { return 2; }
  double predicted(Operation operation, Algorithm algorithm, std::size_t bytes) const override {
    EXPECT_TRUE(operation != Operation::send && operation != Operation::receive)
        << "the model is of collectives";
    EXPECT_NE(algorithm, Algorithm::automatic) << "of what was chosen";
    return model.contains(bytes) ? model.at(bytes) : 0;
  }
  Ledger& ledger() override { return ledger_; }
  // What was counted since this was called last.
  std::vector<Ledger::Entry> sent() {
    auto since = ledger_.since(seen_);
    seen_ = ledger_.entries();
    return since;
  }

  Work all_reduce(at::Tensor, ReduceOp, const CommCall&) override { return nothing(); }
  Work reduce_scatter(at::Tensor, at::Tensor, ReduceOp, const CommCall&,
                      std::vector<std::size_t>) override {
    return nothing();
  }
  Work all_gather(at::Tensor, at::Tensor, const CommCall&, std::vector<std::size_t>) override {
    return nothing();
  }
  Work broadcast(at::Tensor, int, const CommCall&) override { return nothing(); }
  Work reduce(at::Tensor, ReduceOp, int, const CommCall&) override { return nothing(); }
  Work gather(at::Tensor, at::Tensor, int, const CommCall&) override { return nothing(); }
  Work scatter(at::Tensor, at::Tensor, int, const CommCall&) override { return nothing(); }
  Work all_to_all(at::Tensor, at::Tensor, const CommCall&, std::vector<std::size_t>,
                  std::vector<std::size_t>) override {
    return nothing();
  }
  Work send(at::Tensor, int, std::uint64_t, const CommCall&) override { return nothing(); }
  Work receive(at::Tensor, int, std::uint64_t, const CommCall&) override { return nothing(); }
  Work barrier(const CommCall&) override { return nothing(); }
  std::shared_ptr<Communicator> split(int, int) override { throw Error("it has no parts"); }

 private:
  static Work nothing() { throw Error("it exchanges nothing"); }
  Ledger ledger_;
  std::vector<Ledger::Entry> seen_;
};

// An exchange that runs from `begin` to `end`, in milliseconds.
Exchanged exchanged(Purpose purpose, int part, Operation operation, std::size_t bytes, double begin,
                    double end, double waited_ms = 0) {
  return {.purpose = purpose,
          .part = part,
          .operation = operation,
          .bytes = bytes,
          .asked = at_ms(begin),
          .span = {at_ms(begin), at_ms(end)},
          .waited = waited_ms / 1e3};
}

Exchanged bucket(int part, std::size_t bytes, double begin, double end, double waited_ms = 0) {
  return exchanged(Purpose::gradients, part, Operation::all_reduce, bytes, begin, end, waited_ms);
}

class ExchangeTables : public testing::Test {
 protected:
  // What a trainer tells of a step, in its order.
  void step(std::vector<Exchanged> exchanges, StepReport report = {},
            std::vector<TracedAction> actions = {}) {
    report.step = ++steps_;
    table_.add(report);
    table_.add(ExchangeReport{.step = steps_,
                              .actions = actions,
                              .exchanges = std::move(exchanges),
                              .sent = ranks_->sent()});
  }
  void counts(Operation operation, const std::string& tag, std::uint64_t bytes,
              Algorithm algorithm = Algorithm::ring, LinkKind link = LinkKind::tcp) {
    ranks_->ledger().add(operation, tag, algorithm, link, bytes);
  }
  nlohmann::json json() const { return nlohmann::json::parse(table_.json()); }
  nlohmann::json rows() const { return json().at("exchanges"); }
  nlohmann::json row(const std::string& name) const {
    nlohmann::json found;
    for (const auto& one : rows())
      if (one.at("name") == name) found = one;
    EXPECT_FALSE(found.is_null()) << "no row " << name << " in " << rows();
    return found;
  }
  // The line of a row, as its columns; "0.21 ms" is two of them.
  std::vector<std::string> line(const std::string& name) const {
    std::istringstream text(table_.text());
    for (std::string one; std::getline(text, one);) {
      if (!one.starts_with(name + " ")) continue;
      std::istringstream words(one.substr(name.size()));
      std::vector<std::string> columns;
      for (std::string word; words >> word;) columns.push_back(word);
      return columns;
    }
    ADD_FAILURE() << "no line " << name << " in\n" << table_.text();
    return {};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& one : rows()) names.push_back(one.at("name"));
    return names;
  }

  std::shared_ptr<Counting> ranks_ = std::make_shared<Counting>();
  ExchangeTable table_{ranks_};
  std::int64_t steps_ = 0;
};

using Words = std::vector<std::string>;

TEST_F(ExchangeTables, HaveARowForEachExchangeInTheOrderOfAStep) {
  const std::vector<Exchanged> all = {
      exchanged(Purpose::parameters, 1, Operation::all_gather, 400, 0, 1),
      exchanged(Purpose::parameters, 0, Operation::all_gather, 800, 1, 2),
      exchanged(Purpose::activations, 2, Operation::receive, 16, 2, 3),
      exchanged(Purpose::activations, 2, Operation::send, 16, 3, 4),
      exchanged(Purpose::gradients, 1, Operation::reduce_scatter, 400, 4, 5),
      bucket(0, 1200, 5, 6),
      exchanged(Purpose::tied_gradients, -1, Operation::all_reduce, 64, 6, 7),
      exchanged(Purpose::pull, 0, Operation::receive, 32, 7, 8),
      exchanged(Purpose::push, 1, Operation::send, 32, 8, 9),
      exchanged(Purpose::loss, -1, Operation::all_reduce, 8, 9, 10)};
  for (int i = 0; i < 3; ++i) step(all);
  EXPECT_EQ(names(), (Words{"gather 1", "gather 0", "receive 2", "send 2", "scatter 1",
                            "gradients 0", "tied gradients", "pull 0", "push 1"}))
      << "a loss is a number and no exchange to look at";
  std::istringstream text(table_.text());
  Words begins;
  for (std::string one; std::getline(text, one);) begins.push_back(one.substr(0, 16));
  ASSERT_EQ(begins.size(), 2u + names().size()) << table_.text();
  for (std::size_t i = 0; i < names().size(); ++i)
    EXPECT_TRUE(begins[i + 2].starts_with(names()[i] + " ")) << table_.text();
  EXPECT_EQ(row("gather 0").at("bytes"), 800);
  EXPECT_EQ(row("gather 0").at("purpose"), "parameters");
  EXPECT_EQ(row("gather 0").at("operation"), "all_gather");
  EXPECT_EQ(row("gather 0").at("part"), 0);
  EXPECT_EQ(row("tied gradients").at("part"), -1);
}

TEST_F(ExchangeTables, AreMeansWithoutTheFirstStep) {
  const auto one = [](double ms) {
    return StepReport{
        .seconds = ms / 1e3,
        .times = {
            .compute = ms / 2e3, .exposed = ms / 4e3, .hidden = ms / 8e3, .update = ms / 16e3}};
  };
  step({bucket(0, 1000, 0, 900)}, one(5000));
  EXPECT_EQ(table_.steps(), 0);
  EXPECT_EQ(names(), Words{});
  step({bucket(0, 1000, 0, 4, 1)}, one(80));
  EXPECT_EQ(table_.steps(), 1);
  step({bucket(0, 1000, 0, 8, 2)}, one(160));
  EXPECT_EQ(table_.steps(), 2);
  const auto all = json();
  EXPECT_EQ(all.at("steps"), 2);
  EXPECT_DOUBLE_EQ(all.at("step_ms"), 120);
  EXPECT_DOUBLE_EQ(all.at("compute_ms"), 60);
  EXPECT_DOUBLE_EQ(all.at("waited_ms"), 30);
  EXPECT_DOUBLE_EQ(all.at("hidden_ms"), 15);
  EXPECT_DOUBLE_EQ(all.at("update_ms"), 7.5);
  EXPECT_EQ(row("gradients 0").at("times"), 2);
  EXPECT_DOUBLE_EQ(row("gradients 0").at("measured_ms"), 6);
  EXPECT_DOUBLE_EQ(row("gradients 0").at("waited_ms"), 1.5);
}

TEST_F(ExchangeTables, SayWhereTheTimeOfAStepGoes) {
  const auto head = [&] { return table_.text().substr(0, table_.text().find('\n')); };
  const StepReport report{
      .seconds = 20e-3,
      .times = {.compute = 10e-3, .exposed = 5e-3, .hidden = 4e-3, .update = 3e-3, .data = 1e-3}};
  step({}, report);
  step({}, report);
  EXPECT_EQ(head(), "mean step 20.00 ms: 10.00 computing, 5.00 waiting, 3.00 update, 2.00 other");
  StepReport slow = report;  // its parts were measured a moment longer than the step
  slow.seconds = 18e-3 - 1e-6;
  for (int i = 0; i < 1000; ++i) step({}, slow);
  EXPECT_EQ(head(), "mean step 18.00 ms: 10.00 computing, 5.00 waiting, 3.00 update, 0.00 other");
}

// A worker reports a share that it has computed before it hears that the step was applied.
TEST_F(ExchangeTables, LeaveOutTheFirstStepOfParameterServersToo) {
  for (const double ms : {5000, 80, 160}) {
    table_.add(ExchangeReport{
        .exchanges = {exchanged(Purpose::push, 1, Operation::send, 32, 0, ms / 10)}});
    table_.add(StepReport{.seconds = ms / 1e3});
  }
  EXPECT_EQ(table_.steps(), 2);
  EXPECT_DOUBLE_EQ(json().at("step_ms"), 120);
  EXPECT_EQ(row("push 1").at("times"), 2);
  EXPECT_DOUBLE_EQ(row("push 1").at("measured_ms"), 12);
}

TEST_F(ExchangeTables, AreMeansOfEachTimeWhereAStepGathersTwice) {
  const std::vector<Exchanged> twice = {
      exchanged(Purpose::parameters, 0, Operation::all_gather, 800, 0, 2),
      exchanged(Purpose::parameters, 0, Operation::all_gather, 800, 4, 10)};
  for (int i = 0; i < 4; ++i) step(twice);
  EXPECT_EQ(row("gather 0").at("times"), 6);
  EXPECT_NE(table_.text().find("\ngather 0 x2 "), std::string::npos) << table_.text();
  EXPECT_DOUBLE_EQ(row("gather 0").at("measured_ms"), 4);
}

TEST_F(ExchangeTables, SayWhatShareOfAnExchangeWasHidden) {
  const std::vector<Exchanged> all = {bucket(0, 10, 0, 4, 0), bucket(1, 10, 4, 8, 3),
                                      bucket(2, 10, 8, 12, 4),
                                      bucket(3, 10, 12, 16, 9),  // waited before it began, too
                                      bucket(4, 10, 16, 16, 0)};
  step(all);
  step(all);
  EXPECT_DOUBLE_EQ(row("gradients 0").at("hidden"), 1);
  EXPECT_DOUBLE_EQ(row("gradients 1").at("hidden"), 0.25);
  EXPECT_DOUBLE_EQ(row("gradients 2").at("hidden"), 0);
  EXPECT_DOUBLE_EQ(row("gradients 3").at("hidden"), 0) << "no share is below nothing";
  EXPECT_DOUBLE_EQ(row("gradients 4").at("hidden"), 0) << "and none of nothing";
  const auto shares = [&](const std::string& name) {
    const auto columns = line(name);
    EXPECT_EQ(columns.back(), "%");
    return columns.at(columns.size() - 2);
  };
  EXPECT_EQ(shares("gradients 0"), "100");
  EXPECT_EQ(shares("gradients 1"), "25");
  EXPECT_EQ(shares("gradients 3"), "0");
  // A step that was hidden and one that was waited for are half hidden; the longer one counts more.
  step({bucket(0, 10, 0, 12, 12)});
  EXPECT_DOUBLE_EQ(row("gradients 0").at("hidden"), 4. / 16);
}

TEST_F(ExchangeTables, CompareThePredictionWithTheMeasurement) {
  ranks_->model = {{2048, 0.5e-3}, {4096, 1.25e-3}};
  const std::vector<Exchanged> all = {bucket(0, 2048, 0, 3), bucket(1, 4096, 3, 5)};
  for (int i = 0; i < 2; ++i) {
    counts(Operation::all_reduce, "gradients 0", 100);
    counts(Operation::all_reduce, "gradients 1", 200, Algorithm::shared, LinkKind::shared);
    step(all);
  }
  EXPECT_EQ(line("gradients 0"),
            (Words{"2.0", "KiB", "ring", "tcp", "0.50", "ms", "3.00", "ms", "100", "%"}));
  EXPECT_EQ(line("gradients 1"),
            (Words{"4.0", "KiB", "shared", "shared", "1.25", "ms", "2.00", "ms", "100", "%"}));
  EXPECT_DOUBLE_EQ(row("gradients 0").at("predicted_ms"), 0.5);
  EXPECT_DOUBLE_EQ(row("gradients 0").at("measured_ms"), 3);
  EXPECT_EQ(row("gradients 0").at("algorithm"), "ring");
  EXPECT_EQ(row("gradients 0").at("link"), "tcp");
  EXPECT_EQ(row("gradients 1").at("algorithm"), "shared");
  EXPECT_EQ(row("gradients 1").at("link"), "shared");
}

TEST_F(ExchangeTables, ShowADashForWhatIsUnknown) {
  const std::vector<Exchanged> all = {
      bucket(0, 2048, 0, 3), exchanged(Purpose::activations, 0, Operation::send, 1024, 3, 4)};
  for (int i = 0; i < 2; ++i) {
    counts(Operation::send, "activations 0", 1024, Algorithm::direct);
    step(all);  // gradients went by a communicator that counts nothing
  }
  EXPECT_EQ(line("gradients 0"), (Words{"2.0", "KiB", "-", "-", "-", "3.00", "ms", "100", "%"}));
  EXPECT_EQ(row("gradients 0").at("algorithm"), "");
  EXPECT_EQ(row("gradients 0").at("link"), "");
  EXPECT_EQ(row("gradients 0").at("predicted_ms"), 0);
  EXPECT_EQ(line("send 0"), (Words{"1.0", "KiB", "direct", "tcp", "-", "1.00", "ms", "100", "%"}));
}

TEST_F(ExchangeTables, SayWhichServersAreInThisProcess) {
  std::vector<Exchanged> all;
  for (int server = 0; server < 2; ++server) {
    all.push_back(exchanged(Purpose::pull, server, Operation::receive, 2048, 0, 1, 1));
    all.push_back(exchanged(Purpose::push, server, Operation::send, 2048, 1, 3, 2));
    all[all.size() - 1].here = all[all.size() - 2].here = server == 0;
  }
  for (int i = 0; i < 2; ++i) {
    counts(Operation::send, "push 1", 2048, Algorithm::direct);
    step(all);
  }
  for (const char* name : {"pull 0", "push 0"}) {
    EXPECT_EQ(line(name)[2], "-") << name;
    EXPECT_EQ(line(name)[3], "here") << name;
    EXPECT_EQ(row(name).at("link"), "here");
    EXPECT_EQ(row(name).at("algorithm"), "");
    EXPECT_EQ(row(name).at("sent"), 0) << "nothing leaves the process";
  }
  for (const char* name : {"pull 1", "push 1"}) {
    EXPECT_EQ(line(name)[2], "direct") << name;
    EXPECT_EQ(line(name)[3], "tcp") << name;
    EXPECT_EQ(line(name)[4], "-") << "the model is of collectives";
  }
  EXPECT_EQ(row("push 1").at("sent"), 2048);
  EXPECT_EQ(row("pull 1").at("sent"), 0) << "its server counts what it sends";
}

TEST_F(ExchangeTables, CountWhatWasPushedToEachServer) {
  const std::vector<Exchanged> all = {exchanged(Purpose::push, 0, Operation::send, 3000, 0, 1),
                                      exchanged(Purpose::push, 1, Operation::send, 1000, 0, 1)};
  for (int i = 0; i < 3; ++i) {
    counts(Operation::send, "push 0", 2500, Algorithm::direct);  // some rows, and not all
    counts(Operation::send, "push 1", 1000, Algorithm::direct);
    step(all);
  }
  EXPECT_EQ(row("push 0").at("sent"), 5000);
  EXPECT_EQ(row("push 1").at("sent"), 2000);
}

TEST_F(ExchangeTables, CountWhatTheRowSentSinceTheFirstStep) {
  ExchangeTable table(ranks_);
  const std::vector<Exchanged> all = {bucket(0, 10, 0, 1), bucket(1, 10, 1, 2)};
  const auto add = [&](std::uint64_t first, std::uint64_t second) {
    counts(Operation::all_reduce, "gradients 0", first);
    counts(Operation::all_reduce, "gradients 1", second);
    counts(Operation::all_reduce, "loss", 8);
    counts(Operation::send, "gradients 0", 1000000);  // of another operation
    table.add(StepReport{});
    table.add(ExchangeReport{.exchanges = all, .sent = ranks_->sent()});
  };
  add(1, 10);
  add(100, 1000);
  add(10000, 100000);
  const auto rows = nlohmann::json::parse(table.json()).at("exchanges");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("sent"), 10100);
  EXPECT_EQ(rows[1].at("sent"), 101000);
}

// Exchanges run one after another, the first from the moment in which it is ready:
//
//   backward ━━━━━━━━━━━━━━━━━━━━┫10
//   gradients 0     5 ├─────────┤ 15      predicted 4 ms:  5 … 9
//   gradients 1             9 · · ├──┤ 18 predicted 6 ms:  9 … 15
TEST_F(ExchangeTables, SayHowLongAStepWaitsAfterBackwardAndHowLongItShould) {
  ranks_->model = {{4000, 4e-3}, {6000, 6e-3}};
  const std::vector<TracedAction> actions = {
      {{.kind = Action::Kind::backward, .layer = 1}, at_ms(0), at_ms(5)},
      {{.kind = Action::Kind::backward, .layer = 0}, at_ms(5), at_ms(10)},
      {{.kind = Action::Kind::update}, at_ms(18), at_ms(30)}};
  std::vector<Exchanged> all = {
      bucket(0, 4000, 5, 15), bucket(1, 6000, 15, 18),
      exchanged(Purpose::loss, -1, Operation::all_reduce, 8, 18, 40),
      exchanged(Purpose::parameters, 0, Operation::all_gather, 8, 40, 50)};
  all[1].asked = at_ms(9);
  for (int i = 0; i < 3; ++i) {
    counts(Operation::all_reduce, "gradients 0", 1);
    counts(Operation::all_reduce, "gradients 1", 1);
    step(all, {}, actions);
  }
  EXPECT_NEAR(json().at("after_backward_ms"), 8, 1e-6);
  EXPECT_NEAR(json().at("after_backward_predicted_ms"), 5, 1e-6);
}

TEST_F(ExchangeTables, SayThatAStepDoesNotWaitWhereBackwardEndsLast) {
  ranks_->model = {{4000, 4e-3}};
  for (int i = 0; i < 3; ++i) {
    counts(Operation::all_reduce, "gradients 0", 1);
    step({bucket(0, 4000, 5, 8)}, {}, {{{.kind = Action::Kind::backward}, at_ms(0), at_ms(10)}});
  }
  EXPECT_EQ(json().at("after_backward_ms"), 0);
  EXPECT_EQ(json().at("after_backward_predicted_ms"), 0);
}

// Every algorithm, sizes of every width, hundreds of parts, and steps of seconds.
TEST_F(ExchangeTables, FitIntoSeventyNineColumns) {
  const std::vector<std::size_t> sizes = {1023, 1048400, 1047553179, std::size_t(1) << 39};
  std::vector<Exchanged> all = {
      exchanged(Purpose::tied_gradients, -1, Operation::all_reduce, 1048400, 0, 1)};
  const int algorithms = int(all_names<Algorithm>.size());
  for (int i = 0; i < algorithms; ++i) {
    all.push_back(bucket(100 + i, sizes[std::size_t(i) % sizes.size()], 0, 9999.99));
    ranks_->model[all.back().bytes] = 9.99999;
  }
  const StepReport slow{
      .seconds = 9.99999,
      .times = {.compute = 9.99999, .exposed = 9.99999, .hidden = 9.99999, .update = 9.99999}};
  for (const double seconds : {0.0999, 0.9999, 9.9999}) {
    ExchangeTable head(ranks_);
    for (int i = 0; i < 2; ++i)
      head.add(StepReport{.seconds = seconds,
                          .times = {.compute = seconds, .exposed = seconds, .update = seconds}});
    EXPECT_LE(head.text().find('\n'), 79u) << head.text();
  }
  for (int i = 0; i < 3; ++i) {
    for (int j = 1; j < algorithms; ++j)  // without "auto", which no exchange goes by
      counts(Operation::all_reduce, "gradients " + std::to_string(100 + j), 1, Algorithm(j),
             LinkKind::shared);
    step(all, slow);
  }
  std::istringstream text(table_.text());
  int lines = 0;
  for (std::string one; std::getline(text, one); ++lines) EXPECT_LE(one.size(), 79u) << one;
  EXPECT_EQ(lines, int(all.size()) + 2);
}

TEST_F(ExchangeTables, HaveColumnsBelowTheirTitles) {
  ranks_->model = {{2048, 0.5e-3}};
  for (int i = 0; i < 2; ++i) {
    counts(Operation::all_reduce, "gradients 0", 1);
    step({bucket(0, 2048, 0, 3, 1)});
  }
  std::istringstream text(table_.text());
  std::string first, titles, one;
  std::getline(text, first);
  std::getline(text, titles);
  std::getline(text, one);
  const auto end = [](const std::string& line, const std::string& word) {
    const auto at = line.find(word);
    EXPECT_NE(at, line.npos) << word << " in " << line;
    return at + word.size();
  };
  EXPECT_EQ(end(titles, "size"), end(one, "2.0 KiB")) << table_.text();
  EXPECT_EQ(titles.find(" algorithm "), one.find(" ring ")) << table_.text();
  EXPECT_EQ(titles.find(" link "), one.find(" tcp ")) << table_.text();
  EXPECT_EQ(end(titles, "predicted"), end(one, "0.50 ms")) << table_.text();
  EXPECT_EQ(end(titles, "measured"), end(one, "3.00 ms")) << table_.text();
  EXPECT_EQ(end(titles, "hidden"), end(one, "67 %")) << table_.text();
}

TEST_F(ExchangeTables, AreATableOfNothingBeforeTheSecondStep) {
  const auto empty = json();
  EXPECT_EQ(empty.at("steps"), 0);
  EXPECT_EQ(empty.at("step_ms"), 0);
  EXPECT_EQ(empty.at("after_backward_ms"), 0);
  EXPECT_EQ(empty.at("exchanges"), nlohmann::json::array());
  const std::string text = table_.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST_F(ExchangeTables, WriteTheFieldsThatTheFormatNames) {
  counts(Operation::all_reduce, "gradients 0", 1);
  step({bucket(0, 10, 0, 1)});
  step({bucket(0, 10, 0, 1)});
  const auto keys = [](const nlohmann::json& object) {
    Words found;
    for (const auto& [key, value] : object.items()) found.push_back(key);
    return found;  // sorted
  };
  EXPECT_EQ(keys(json()),
            (Words{"after_backward_ms", "after_backward_predicted_ms", "compute_ms", "exchanges",
                   "hidden_ms", "rank", "step_ms", "steps", "update_ms", "waited_ms"}));
  EXPECT_EQ(keys(rows()[0]),
            (Words{"algorithm", "bytes", "hidden", "link", "measured_ms", "name", "operation",
                   "part", "predicted_ms", "purpose", "sent", "times", "waited_ms"}));
}

}  // namespace
}  // namespace echelon
