// A parameter server's connections: one thread per connection, one request at a time.
#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/parallel/server/server.h"
#include "echelon/parallel/server/wire.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;

constexpr auto a_while = 1s;  // until a question is answered with "ask again"

}  // namespace

void ParameterServer::welcome(std::unique_ptr<Stream> stream, const Frame& first) {
  reap();
  const std::lock_guard lock(mutex_);
  auto& one = connections_.emplace_back();
  one.peer = std::make_unique<Peer>(std::move(stream));
  try {
    one.thread = std::thread([this, &one, first] {
      const MemoryContext::Join counted(memory_);
      serve(one, first);
    });
  } catch (const std::system_error&) {
    const std::string name = one.peer->name();
    connections_.pop_back();
    throw Error(name + " was turned away: this process may not have more threads (ulimit -u)");
  }
}

void ParameterServer::reap() {
  std::list<Connection> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto one = it++;
      if (one->ended) ended.splice(ended.end(), connections_, one);
    }
  }
  for (auto& one : ended) one.thread.join();
}

// Establishes who the peer is and what it may ask for. Throws InvalidArgument if it may not take
// part.
void ParameterServer::introduce(Connection& connection, const Frame& hello) {
  Peer& peer = *connection.peer;
  FrameReader reader(hello, peer.name());
  if (hello.kind != Peer::hello) throw Corrupt(peer.name() + " did not say who it is");
  const auto kind = reader.number_at_most(2);
  const std::string name = reader.text(256);
  const std::string options = reader.text(1 << 16);
  reader.end();
  peer.rename(name);
  Role role = kind == 2 ? Role::server : options.empty() ? Role::rank : Role::guest;
  int worker = -1;
  if (role == Role::guest && setup_.check_guest) setup_.check_guest(options);
  if (role != Role::server) worker = join(name, role == Role::guest ? Part::guest : Part::rank);
  Lock lock(mutex_);
  if (role == Role::server) {
    wait_until(lock, transfer(), "its own start", [&] { return servers_ > 0; });
    const auto others =
        std::count_if(connections_.begin(), connections_.end(),
                      [](const Connection& one) { return one.role == Role::server; });
    if (others + 1 >= servers_)
      throw InvalidArgument(
          fmt::format("{} is no server of this job, which has {}", name, servers_));
  }
  connection.worker = worker;
  connection.role = role;
  connection.waited_for = role != Role::guest;
  if (role == Role::guest && worker >= 0) log::info(name + " takes shares from now on");
}

void ParameterServer::serve(Connection& connection, const Frame& first) {
  Peer& peer = *connection.peer;
  std::string why;
  bool said_goodbye = false;
  try {
    introduce(connection, first);
    peer.send(FrameWriter()
                  .number(std::uint64_t(connection.worker))
                  .number(std::uint64_t(setup_.shares))
                  .frame(Peer::ok),
              transfer());
    while (!said_goodbye) {
      if (!peer.asked(Deadline::in(a_moment))) {
        const std::lock_guard lock(mutex_);
        if (stopping_) break;
        continue;
      }
      const Frame request = peer.receive(transfer());
      try {
        require_role(connection, request);
        said_goodbye = request.kind == Peer::bye;
        if (said_goodbye)
          why = FrameReader(request, peer.name()).text();
        else
          answer(connection, request);
      } catch (const Corrupt&) {
        throw;  // the position in the stream is unknown
      } catch (const std::exception& error) {
        peer.send(failure(error), transfer());
      }
    }
  } catch (const std::exception& error) {
    why = error.what();
    try {  // it may not join: tell it why
      if (connection.role == Role::stranger) peer.send(failure(error), Deadline::in(a_while));
    } catch (const std::exception&) {  // it is gone already
    }
  }
  if (connection.worker >= 0) lose(connection.worker, why);
  const std::lock_guard lock(mutex_);
  connection.peer.reset();
  connection.waited_for = false;
  changed_.notify_all();
  connection.ended = true;
}

void ParameterServer::lose(int worker, const std::string& why) {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
  if (worker < 0) return;
  if (!table_ || stopping_ || failed_ || table_->finished() || !table_->alive(worker)) return;
  since_.erase(worker);
  table_->drop(worker);
  const auto message =
      fmt::format("{} is gone ({})", table_->name(worker), why.empty() ? "it left" : why);
  if (!why.empty()) lost_.push_back(message);
  if (needs_all_workers())
    return fail(std::make_exception_ptr(
        PeerLost(message + (setup_.async_phase ? ", and with it a part of the model"
                                               : ", and the job is synchronous"))));
  if (worker == begun_by_)
    return fail(
        std::make_exception_ptr(PeerLost(message + "; it is the one that shows and saves")));
  if (table_->living() == 0)
    return fail(std::make_exception_ptr(PeerLost(message + "; no worker is left")));
  log::warn(message + "; the others go on");
}

// Holding the job's token is not enough to control the job.
void ParameterServer::require_role(const Connection& connection, const Frame& request) const {
  const auto refuse = [&](const char* whose) {
    throw InvalidArgument(fmt::format("{} sent a request of kind {}, which is for {}",
                                      connection.peer->name(), request.kind, whose));
  };
  switch (request.kind) {
    case Peer::order:
    case Peer::norm:
      if (connection.role != Role::server) refuse("parameter servers");
      break;
    case Peer::begin:
    case Peer::state:
    case Peer::pin:
    case Peer::masters:
      if (connection.role != Role::rank) refuse("workers that the job began with");
      break;
    case Peer::saved:
    case Peer::memory:
      if (!connection.first) refuse("the first worker");
      break;
    case Peer::stop: {
      // Any rank may ask to stop: all ranks receive the signal. Only the first worker may abandon
      // steps that were begun, except in an asynchronous phase, where any rank may have a reason
      // to.
      FrameReader reader(request, connection.peer->name());
      const bool gives_up = !reader.text().empty();
      if (connection.role != Role::rank && connection.role != Role::server)
        refuse("workers that the job began with");
      if (gives_up && !connection.first && !setup_.async_phase) refuse("the first worker");
      break;
    }
    default:
      break;
  }
}

void ParameterServer::answer(Connection& connection, const Frame& request) {
  Peer& peer = *connection.peer;
  const int worker = connection.worker;
  FrameReader reader(request, peer.name());
  const auto needs_table = [&] {
    if (!table_ || worker < 0) throw InvalidArgument("the first server keeps the clock table");
  };
  switch (request.kind) {
    case Peer::begin:
      answer_begin(connection, request);
      return;
    case Peer::next: {
      needs_table();
      const auto seen = std::size_t(reader.number());
      const auto until = std::int64_t(reader.number_at_most(std::uint64_t(ClockTable::unbounded)));
      reader.end();
      peer.send(wire::encode(next(worker, seen, until)), transfer());
      return;
    }
    case Peer::done: {
      needs_table();
      const Task task = wire::read_task(reader);
      const double loss = double_of(reader.number());
      reader.end();
      done(worker, task, loss);
      break;
    }
    case Peer::pull: {
      const Task task = wire::read_task(reader);
      reader.end();
      const at::Tensor values = pull(worker, task, part_of(connection));
      ledger_.add(Operation::send, "pull", Algorithm::direct, LinkKind::tcp, values.nbytes());
      peer.send(FrameWriter().number(values.nbytes()).frame(Peer::ok), transfer(),
                wire::bytes_of(values));
      return;
    }
    case Peer::newest: {
      needs_table();
      const auto at_least = std::int64_t(reader.number());
      reader.end();
      FrameWriter reply;
      peer.send(wire::write_task(reply, newest(worker, at_least)).frame(Peer::ok), transfer());
      return;
    }
    case Peer::pin: {
      needs_table();
      const auto at_least = std::int64_t(reader.number());
      reader.end();
      FrameWriter reply;
      const Task task = newest(worker, at_least, ClockTable::Reads::masters);
      peer.send(wire::write_task(reply, task).frame(Peer::ok), transfer());
      return;
    }
    case Peer::masters: {
      const Task task = wire::read_task(reader);
      const auto begin = std::int64_t(reader.number()), end = std::int64_t(reader.number());
      reader.end();
      const MemoryScope scope(MemoryKind::parameters);
      const at::Tensor part = masters(task, begin, end);
      ledger_.add(Operation::send, "masters", Algorithm::direct, LinkKind::tcp, part.nbytes());
      peer.send(FrameWriter().number(part.nbytes()).frame(Peer::ok), transfer(),
                wire::bytes_of(part));
      return;
    }
    case Peer::memory:
      peer.send(FrameWriter().text(memory_report()).frame(Peer::ok), transfer());
      return;
    case Peer::push:
      answer_push(connection, request);
      break;
    case Peer::order: {
      const auto update = std::int64_t(reader.number());
      reader.end();
      Lock lock(mutex_);
      check();
      if (!table_) throw InvalidArgument("the first server keeps the order of updates");
      changed_.wait_for(lock, a_while, [&] {
        return table_->order(update) || table_->finished() || failed_ || stopping_;
      });
      check();
      const auto step = table_->order(update);
      FrameWriter other;
      std::vector<std::string> dropped;
      for (const auto& [who, text] : dropped_) dropped.push_back(table_->name(who));
      wire::write_texts(other, dropped);
      const auto kind = table_->finished() ? Peer::finished : Peer::wait;
      lock.unlock();
      peer.send(step ? wire::encode(*step) : other.frame(kind), transfer());
      return;
    }
    case Peer::norm: {
      const auto update = std::int64_t(reader.number());
      const auto server = int(reader.number_at_most(std::uint64_t(servers_) - 1));
      const double square = double_of(reader.number());
      reader.end();
      FrameWriter reply;
      reply.number(bits_of(sum_squares(update, server, square)));
      std::vector<Task> held;
      {
        const std::lock_guard lock(mutex_);
        held = table_->held();
      }
      peer.send(wire::write_tasks(reply, held).frame(Peer::ok), transfer());
      return;
    }
    case Peer::state: {
      const auto version = std::int64_t(reader.number());
      reader.end();
      show_state(version, [&](const Beginning& all) {
        const auto bytes = wire::send(peer, all, transfer());
        ledger_.add(Operation::send, "state", Algorithm::direct, LinkKind::tcp, bytes);
      });
      return;
    }
    case Peer::saved:
      saved(std::int64_t(reader.number()));
      break;
    case Peer::stop:
      if (const auto why = reader.text(); why.empty())
        stop();
      else
        abandon(why);
      break;
    default:
      throw Corrupt(fmt::format("{} sent a request of unknown kind {}", peer.name(), request.kind));
  }
  peer.send(FrameWriter().frame(Peer::ok), transfer());
}

void ParameterServer::answer_begin(Connection& connection, const Frame& request) {
  Peer& peer = *connection.peer;
  const MemoryScope scope(MemoryKind::optimizer);
  begin(wire::receive_beginning(peer, request, transfer()), connection.worker);
  {
    const std::lock_guard lock(mutex_);
    connection.first = true;
  }
  peer.send(FrameWriter().frame(Peer::ok), transfer());
}

void ParameterServer::answer_push(Connection& connection, const Frame& request) {
  Peer& peer = *connection.peer;
  wire::GradientShape shape;
  {
    const std::lock_guard lock(mutex_);
    if (!update_) throw Corrupt(peer.name() + " sent a gradient before the job began");
    shape = {numel_, type_};
  }
  const MemoryScope scope(MemoryKind::gradients);
  auto pushed = wire::receive_push(peer, request, shape, transfer());
  push(connection.worker, peer.name(), pushed.task, pushed.weight, std::move(pushed.grad),
       part_of(connection));
}

}  // namespace echelon
