// Parameter servers with hostile clients that know the job's token: whatever they request or leave
// undone, the job continues, ends when it is told to, and keeps nothing of them.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <filesystem>
#include <future>

#include "echelon/parallel/server/worker.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t far = 1'000'000;

// A server whose two workers are in this process; one of them works.
struct Attacked {
  Token token = Token::random();
  std::unique_ptr<ParameterServer> server;
  int worker = -1, idle = -1;

  explicit Attacked(int ranks_here = 2) {
    ParameterServer::Setup setup;
    setup.server.mode = ServerMode::async;
    setup.shares = 2;
    setup.steps = 1000;
    setup.timeout = 60;
    server = std::make_unique<ParameterServer>(setup, "127.0.0.1", NetOptions{}, token);
    server->start({server->address()});
    worker = server->join_here("rank 0");
    if (ranks_here > 1) idle = server->join_here("rank 1");
    const at::Tensor values = at::zeros({64}, at::kDouble);
    server->begin({.type = at::kDouble,
                   .ranges = {{0, 64, true}},
                   .state = {values, values.clone(), values.clone()}},
                  worker);
  }

  std::unique_ptr<Peer> connect(const Frame& hello) const {
    const auto deadline = Deadline::in(60s);
    auto peer = std::make_unique<Peer>(connect_proven(connect_tcp(server->address(), deadline),
                                                      "the server", false, token, deadline));
    peer->send(hello, deadline);
    return peer;
  }
  // Works until the server says that the job is over.
  void finish() {
    std::size_t seen = 0;
    for (;;) {
      const auto next = server->next(worker, seen);
      seen += next.applied.size();
      if (next.finished) break;
      if (!next.task) continue;
      server->pull(worker, *next.task);
      server->push(worker, "rank 0", *next.task, 0.5, at::zeros({64}, at::kDouble));
      server->done(worker, *next.task, 1);
    }
    server->leave(worker);
    server->leave(idle);
  }
};

Frame hello(std::uint64_t role, const std::string& options) {
  return FrameWriter().number(role).text("a stranger").text(options).frame(Peer::hello);
}

// Makes an odd request and does not wait for the answer.
void ask(Peer& peer, int which) {
  FrameWriter writer;
  const auto send = [&](std::uint8_t kind) { peer.send(writer.frame(kind), in_time()); };
  const Task nobodys{.clock = 3, .share = 1, .number = 77, .version = 1};
  switch (which) {
    case 0:  // takes a share, and never computes it
      writer.number(0).number(far);
      return send(Peer::next);
    case 1:
      writer.number(far);
      return send(Peer::newest);
    case 2:  // one too large
      writer.number(0).number(1).number(bits_of(5));
      return send(Peer::norm);
    case 3:
      writer.number(0).number(0).number(bits_of(5));
      return send(Peer::norm);
    case 4:
      writer.number(far);
      return send(Peer::order);
    case 5:
      writer.number(far);
      return send(Peer::state);
    case 6:
      writer.text("");
      return send(Peer::stop);
    case 7:
      writer.text("a stranger says so");
      return send(Peer::stop);
    case 8:
      writer.number(far);
      return send(Peer::saved);
    case 9:
      return send(200);
    case 10:  // half a frame
      return peer.send_raw(std::as_bytes(std::span("ECH1@", 5)), in_time());
    case 11:  // a gradient that never comes
      wire::write_task(writer, nobodys).number(bits_of(1)).number(1).number(0).number(64);
      return send(Peer::push);
    case 12:
      wire::write_task(writer, nobodys);
      return send(Peer::pull);
    case 13:
      wire::write_task(writer, nobodys).number(bits_of(1));
      return send(Peer::done);
    case 14:
      writer.number(1).number(0).number(0).number(0).number(1).number(64);
      return send(Peer::begin);
    case 15:
      writer.number(0).text("again").text("");
      return send(Peer::hello);
    default:
      return;  // sends nothing more
  }
}
constexpr int kinds = 17;

TEST(ServerAttack, EndsWhenToldToWhateverStrangersHaveRequested) {
  Attacked job;
  std::vector<std::unique_ptr<Peer>> strangers;
  for (int i = 0; i < 250; ++i) {
    strangers.push_back(job.connect(hello(std::uint64_t(i % 3), i % 5 == 0 ? "" : "options")));
    try {
      ask(*strangers.back(), i % kinds);
    } catch (const Error&) {  // it was refused before
    }
  }
  job.server->stop();
  auto ended = std::async(std::launch::async, [&] {
    job.finish();
    job.server->wait();
    job.server.reset();
  });
  EXPECT_EQ(ended.wait_for(50s), std::future_status::ready)
      << "it waits for strangers, who may be silent for 60 s";
}

TEST(ServerAttack, ComputesTheSameWhateverStrangersRequest) {
  Attacked job;
  std::vector<std::unique_ptr<Peer>> strangers;
  for (int kind = 1; kind < kinds; ++kind) {
    strangers.push_back(job.connect(hello(1, "options")));
    strangers.back()->check(strangers.back()->receive(in_time()));  // it may take part
    ask(*strangers.back(), kind);
  }
  const at::Tensor before = job.server->pull(job.worker, job.server->newest(job.worker, 0)).clone();
  for (int share = 0; share < 6; ++share) {
    const auto next = job.server->next(job.worker, far);
    ASSERT_TRUE(next.task);
    job.server->pull(job.worker, *next.task);
    job.server->push(job.worker, "rank 0", *next.task, 0.5, at::zeros({64}, at::kDouble));
    job.server->done(job.worker, *next.task, 1);
  }
  const Task after = job.server->newest(job.worker, 3);
  EXPECT_EQ(after.version, 3);
  EXPECT_TRUE(at::equal(job.server->pull(job.worker, after), before)) << "gradients were zero";
  const auto told = job.server->next(job.worker, 0);
  ASSERT_EQ(told.applied.size(), 3u);
  for (const auto& applied : told.applied) EXPECT_EQ(applied.norm, 0);
  EXPECT_TRUE(told.failure.empty());
}

TEST(ServerAttack, SaysWhoMayMakeWhichRequest) {
  Attacked job;
  const auto refused = [&](int which) {
    const auto peer = job.connect(hello(1, "options"));
    peer->check(peer->receive(in_time()));
    ask(*peer, which);
    return outcome([&] { peer->check(peer->receive(in_time())); });
  };
  for (const auto& [which, whose] : {std::pair{3, "parameter servers"},
                                     {4, "parameter servers"},
                                     {5, "workers that the job began with"},
                                     {6, "workers that the job began with"},
                                     {7, "workers that the job began with"},
                                     {8, "the first worker"},
                                     {14, "workers that the job began with"}}) {
    const auto seen = refused(which);
    EXPECT_EQ(seen.kind, "InvalidArgument") << which;
    EXPECT_NE(seen.message.find(whose), std::string::npos) << seen.message;
  }
  // A server that the job does not have, and a worker too many.
  for (const auto& one : {hello(2, ""), hello(0, "")}) {
    const auto first = job.connect(one), second = job.connect(one);
    first->receive(in_time());
    EXPECT_EQ(outcome([&] { second->check(second->receive(in_time())); }).kind, "InvalidArgument");
  }
}

// A signal reaches every rank, and each reports it; only the first may abandon steps in progress.
TEST(ServerAttack, LetsEveryRankStopTheJob) {
  Attacked job(1);
  const auto rank = job.connect(hello(0, ""));
  rank->check(rank->receive(in_time()));
  ask(*rank, 7);
  const auto refused = outcome([&] { rank->check(rank->receive(in_time())); });
  EXPECT_EQ(refused.kind, "InvalidArgument");
  EXPECT_NE(refused.message.find("the first worker"), std::string::npos) << refused.message;
  EXPECT_FALSE(job.server->next(job.worker, far).finished);
  ask(*rank, 6);
  EXPECT_EQ(outcome([&] { rank->check(rank->receive(in_time())); }).kind, "done");
  ask(*rank, 0);  // the other share of the step that was begun
  const Frame reply = rank->receive(in_time());
  EXPECT_EQ(reply.kind, Peer::ok) << "what was begun is finished";
}

Frame push_frame(const Task& task) {
  FrameWriter writer;
  return wire::write_task(writer, task)
      .number(bits_of(1))
      .number(1)
      .number(0)
      .number(64)
      .frame(Peer::push);
}

// The answer to a gradient of ones.
Outcome push_ones(Peer& peer, const Task& task) {
  const at::Tensor ones = at::zeros({64}, at::kDouble).fill_(1);
  return outcome([&] { peer.ask(push_frame(task), in_time(), wire::bytes_of(ones)); });
}

// Whatever task it names, a worker's gradient counts only for its own task.
TEST(ServerAttack, TakesNoGradientForAnothersShare) {
  Attacked job;
  const auto guest = job.connect(hello(1, "options"));
  guest->check(guest->receive(in_time()));
  const auto mine = job.server->next(job.worker, far);
  ASSERT_TRUE(mine.task);
  const auto refused = push_ones(*guest, *mine.task);
  EXPECT_EQ(refused.kind, "InvalidArgument");
  EXPECT_EQ(refused.message,
            "a stranger was not given share 0 of step 1 on the parameters after 0 updates");
  FrameWriter request;
  wire::write_task(request, *mine.task);
  EXPECT_EQ(outcome([&] { guest->ask(request.frame(Peer::pull), in_time()); }).kind,
            "InvalidArgument");
  // Nor may a worker change what it has sent.
  const at::Tensor nothing = at::zeros({64}, at::kDouble);
  job.server->push(job.worker, "rank 0", *mine.task, 0.5, nothing.clone());
  EXPECT_EQ(outcome([&] {
              job.server->push(job.worker, "rank 0", *mine.task, 0.5, nothing.clone());
            }).message,
            "rank 0 sent a second gradient for share 0 of step 1");
}

// A server other than the first, which knows tasks by their numbers alone.
TEST(ServerAttack, KeepsNoMoreForGuestsThanAJobCanHaveWaiting) {
  const Token token = Token::random();
  ParameterServer::Setup setup;
  setup.server.mode = ServerMode::bounded;
  setup.server.staleness = 1;
  setup.shares = 2;
  setup.steps = 1000;
  ParameterServer first(setup, "127.0.0.1", NetOptions{}, token);
  setup.index = 1;
  ParameterServer second(setup, "127.0.0.1", NetOptions{}, token);
  const std::vector<Address> all = {first.address(), second.address()};
  for (auto* server : {&first, &second}) {
    server->start(all);
    const at::Tensor values = at::zeros({64}, at::kDouble);
    server->begin({.type = at::kDouble,
                   .ranges = {{0, 64, true}},
                   .state = {values, values.clone(), values.clone()}},
                  -1);
  }
  const auto deadline = in_time();
  Peer guest(connect_proven(connect_tcp(second.address(), deadline), "the server", false, token,
                            deadline));
  guest.ask(hello(1, "options"), deadline);
  for (int number = 0; number < 6; ++number)
    EXPECT_EQ(push_ones(guest, {.clock = far, .number = number}).kind, "done") << number;
  EXPECT_NE(push_ones(guest, {.clock = far, .number = 2}).message.find("a second gradient"),
            std::string::npos);
  const auto refused = push_ones(guest, {.clock = far, .number = 6});
  EXPECT_EQ(refused.kind, "InvalidArgument");
  EXPECT_NE(refused.message.find("has no room for more"), std::string::npos) << refused.message;
  // Others can still send, and nobody can guess the number of a share.
  second.push(-1, "rank 1", {.number = 7}, 0.5, at::zeros({64}, at::kDouble));
  const int worker = first.join("rank 0"), other = first.join("rank 1");
  const auto a = first.next(worker, 0).task, b = first.next(other, 0).task;
  ASSERT_TRUE(a && b);
  EXPECT_NE(b->number, a->number + 1);
}

std::ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(ServerAttack, KeepsNothingOfGuestsThatLeft) {
  Attacked job;
  const auto come_and_go = [&](int how_many) {
    for (int i = 0; i < how_many; ++i) {
      const auto peer = job.connect(hello(1, "options"));
      peer->check(peer->receive(in_time()));
      if (i % 2) peer->send(FrameWriter().text("").frame(Peer::bye), in_time());
    }
  };
  come_and_go(4);
  const auto threads = entries("/proc/self/task"), files = entries("/proc/self/fd");
  come_and_go(60);
  // The last ones may not have been removed yet; the next guests remove them.
  for (const auto deadline = Deadline::in(30s); !deadline.expired();) {
    come_and_go(1);
    if (entries("/proc/self/task") < threads + 10 && entries("/proc/self/fd") < files + 10) break;
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_LT(entries("/proc/self/task"), threads + 10);
  EXPECT_LT(entries("/proc/self/fd"), files + 10);
}

}  // namespace
}  // namespace echelon
