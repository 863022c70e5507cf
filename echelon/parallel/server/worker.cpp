#include "echelon/parallel/server/worker.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "echelon/base/error.h"
#include "echelon/nn/memory.h"

namespace echelon {

ServerWorker::ServerWorker(Setup setup, const NetOptions& net, const Token& token,
                           const std::vector<FlatUnit>& units, at::Tensor values, at::Tensor grads,
                           Ledger& ledger)
    : setup_(std::move(setup)),
      units_(units),
      values_(std::move(values)),
      grads_(std::move(grads)),
      ledger_(ledger),
      exceptions_(std::uncaught_exceptions()) {
  for (std::size_t i = 0; i < setup_.servers.size(); ++i) {
    matrices_.push_back(wire::matrices_within(units, setup_.ranges[i]));
    int number = -1;
    if (local(i)) {
      peers_.push_back(nullptr);
      number = setup_.local->join_here(setup_.name);
      shares_ = setup_.local->shares();
    } else {
      const Deadline deadline = Deadline::in_seconds(setup_.connect_timeout);
      peers_.push_back(std::make_unique<Peer>(connect_proven(
          connect_tcp(setup_.servers[i], deadline),
          fmt::format(
              "{} at {}",
              i < setup_.names.size() ? setup_.names[i] : fmt::format("parameter server {}", i),
              setup_.servers[i].text()),
          net.tls, token, deadline)));
      const Frame reply = peers_[i]->ask(FrameWriter()
                                             .number(i == 0 ? 0 : 1)
                                             .text(setup_.name)
                                             .text(setup_.options)
                                             .frame(Peer::hello),
                                         deadline);
      FrameReader reader(reply, peers_[i]->name());
      number = int(reader.number());
      shares_ = int(reader.number_at_most(1 << 20));
    }
    if (i == 0) number_ = number;
  }
}

ServerWorker::~ServerWorker() {
  const std::string why =
      std::uncaught_exceptions() > exceptions_ ? "it failed, and says why itself" : "";
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    try {
      if (local(i))
        setup_.local->leave(number_, why);
      else
        peers_[i]->send(FrameWriter().text(why).frame(Peer::bye), transfer());
    } catch (const std::exception&) {  // it is gone already
    }
  }
}

void ServerWorker::on_all(const std::function<void(std::size_t)>& fn) {
  std::vector<std::exception_ptr> errors(peers_.size());
  const MemoryContext here;
  const auto guarded = [&](std::size_t i) {
    const MemoryContext::Join counted(here);
    at::NoGradGuard no_grad;
    try {
      fn(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < peers_.size(); ++i) threads.emplace_back(guarded, i);
  guarded(0);
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

void ServerWorker::begin(const std::vector<SliceUpdate::State>& state, std::int64_t version,
                         double updates) {
  on_all([&](std::size_t i) {
    const auto& range = setup_.ranges[i];
    ParameterServer::Beginning beginning{
        values_.scalar_type(),
        version,
        updates,
        ranges_within(units_, range.begin, range.end, master_type(values_.scalar_type())),
        {}};
    for (const auto& one : state) beginning.state.push_back(narrowed(one.flat, i));
    if (local(i)) return setup_.local->begin(beginning, number_);
    const auto bytes = wire::send(*peers_[i], beginning, transfer(), Peer::begin);
    ledger_.add(Operation::send, "begin", Algorithm::direct, LinkKind::tcp, bytes);
    peers_[i]->check(peers_[i]->receive(transfer()));
  });
}

ParameterServer::Next ServerWorker::next(std::int64_t until) {
  const auto ask = [&] {
    FrameWriter request;
    request.number(seen_).number(std::uint64_t(until));
    return wire::decode_next(peers_[0]->ask(request.frame(Peer::next), transfer()),
                             peers_[0]->name());
  };
  auto reply = local(0) ? setup_.local->next(number_, seen_, until) : ask();
  seen_ += reply.applied.size();
  return reply;
}

void ServerWorker::pull(const Task& task) {
  on_all([&](std::size_t i) {
    setup_.exchange->pull(narrowed(values_, i),
                          {.purpose = Purpose::pull, .part = int(i), .here = local(i)},
                          [&](const at::Tensor& slice) { fetch(i, task, slice); });
  });
}

void ServerWorker::fetch(std::size_t server, const Task& task, const at::Tensor& slice) {
  if (local(server)) {
    const MemoryContext::Join the_servers(setup_.local->memory());  // may be freed here
    slice.copy_(setup_.local->pull(server == 0 ? number_ : -1, task));
    return;
  }
  Peer& peer = *peers_[server];
  FrameWriter request;
  const Frame reply = peer.ask(wire::write_task(request, task).frame(Peer::pull), transfer());
  FrameReader reader(reply, peer.name());
  if (reader.number() != std::uint64_t(slice.nbytes()))
    throw InvalidArgument(
        fmt::format("{} owns another part of the model than this worker thinks: "
                    "the two have different options",
                    peer.name()));
  peer.receive_raw(wire::writable(slice), transfer());
}

void ServerWorker::pull_newest(std::int64_t at_least) {
  if (local(0)) return pull(setup_.local->newest(number_, at_least));
  const Frame reply =
      peers_[0]->ask(FrameWriter().number(std::uint64_t(at_least)).frame(Peer::newest), transfer());
  FrameReader reader(reply, peers_[0]->name());
  pull(wire::read_task(reader));
}

Task ServerWorker::pin(std::int64_t at_least) {
  if (local(0)) return setup_.local->newest(number_, at_least, ClockTable::Reads::masters);
  const Frame reply =
      peers_[0]->ask(FrameWriter().number(std::uint64_t(at_least)).frame(Peer::pin), transfer());
  FrameReader reader(reply, peers_[0]->name());
  return wire::read_task(reader);
}

void ServerWorker::read_masters(const Task& pinned, std::int64_t begin, const at::Tensor& into) {
  at::NoGradGuard no_grad;
  const std::int64_t end = begin + into.numel();
  for (std::size_t i = 0; i < setup_.ranges.size(); ++i) {
    const auto& range = setup_.ranges[i];
    const auto from = std::max(begin, range.begin), to = std::min(end, range.end);
    if (from >= to) continue;
    const at::Tensor part = into.view({-1}).narrow(0, from - begin, to - from);
    if (local(i)) {
      part.copy_(setup_.local->masters(pinned, from - range.begin, to - range.begin));
      continue;
    }
    FrameWriter request;
    wire::write_task(request, pinned)
        .number(std::uint64_t(from - range.begin))
        .number(std::uint64_t(to - range.begin));
    const Frame reply = peers_[i]->ask(request.frame(Peer::masters), transfer());
    FrameReader reader(reply, peers_[i]->name());
    if (reader.number() != std::uint64_t(part.nbytes()))
      throw InvalidArgument(peers_[i]->name() + " has masters of another precision than this job");
    peers_[i]->receive_raw(wire::writable(part), transfer());
  }
}

void ServerWorker::push(const Task& task, double weight) {
  on_all([&](std::size_t i) {
    const Parcel parcel{.purpose = Purpose::push,
                        .part = int(i),
                        .told_apart = setup_.exchange->records(),
                        .here = local(i)};
    setup_.exchange->push(narrowed(grads_, i), parcel, [&](const at::Tensor& slice) {
      deliver(i, task, weight, slice, tag_of(parcel));
    });
  });
}

void ServerWorker::deliver(std::size_t server, const Task& task, double weight,
                           const at::Tensor& slice, const std::string& tag) {
  if (local(server)) {
    const MemoryContext::Join the_servers(setup_.local->memory());
    const MemoryScope scope(MemoryKind::gradients);
    return setup_.local->push(server == 0 ? number_ : -1, setup_.name, task, weight, slice.clone());
  }
  Peer& peer = *peers_[server];
  const auto runs = wire::runs_of(slice, matrices_[server]);
  const auto bytes = wire::send_push(peer, {task, weight, slice}, runs, transfer());
  ledger_.add(Operation::send, tag, Algorithm::direct, LinkKind::tcp, bytes);
  peer.check(peer.receive(transfer()));
}

void ServerWorker::done(const Task& task, double loss) {
  if (local(0)) return setup_.local->done(number_, task, loss);
  FrameWriter request;
  peers_[0]->ask(wire::write_task(request, task).number(bits_of(loss)).frame(Peer::done),
                 transfer());
}

double ServerWorker::fetch_state(const std::vector<SliceUpdate::State>& state,
                                 std::int64_t version) {
  double updates = 0;
  on_all([&](std::size_t i) {
    std::vector<at::Tensor> mine;
    for (const auto& one : state) mine.push_back(narrowed(one.flat, i));
    double counted = 0;
    if (local(i)) {
      setup_.local->show_state(version, [&](const ParameterServer::Beginning& all) {
        wire::require_same_state(all, mine);
        for (std::size_t s = 0; s < mine.size(); ++s) mine[s].copy_(all.state[s]);
        counted = all.updates;
      });
    } else {
      const Frame reply = peers_[i]->ask(
          FrameWriter().number(std::uint64_t(version)).frame(Peer::state), transfer());
      counted = wire::receive_state(*peers_[i], reply, mine, transfer());
    }
    if (i == 0) updates = counted;
  });
  return updates;
}

std::vector<std::string> ServerWorker::memory_reports() {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (local(i)) {
      all.push_back(setup_.local->memory_report());
      continue;
    }
    const Frame reply = peers_[i]->ask(FrameWriter().frame(Peer::memory), transfer());
    all.push_back(FrameReader(reply, peers_[i]->name()).text());
  }
  return all;
}

void ServerWorker::saved(std::int64_t version) {
  if (local(0)) return setup_.local->saved(version);
  peers_[0]->ask(FrameWriter().number(std::uint64_t(version)).frame(Peer::saved), transfer());
}

void ServerWorker::stop() {
  if (local(0)) return setup_.local->stop();
  peers_[0]->ask(FrameWriter().text("").frame(Peer::stop), transfer());
}

void ServerWorker::abandon(const std::string& why) {
  if (local(0)) return setup_.local->abandon(why);
  peers_[0]->ask(FrameWriter().text(why).frame(Peer::stop), transfer());
}

}  // namespace echelon
