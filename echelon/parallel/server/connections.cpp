// What comes to a parameter server over connections: one thread for each, requests one at a time.
#include <fmt/format.h>

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
  const std::lock_guard lock(connections_mutex_);
  auto& one = connections_.emplace_back();
  one.peer = std::make_unique<Peer>(std::move(stream));
  one.here = true;
  one.thread = std::thread([this, &one, first] { serve(one, first); });
}

void ParameterServer::serve(Connection& connection, const Frame& first) {
  Peer& peer = *connection.peer;
  int worker = -1;
  bool counted = false;
  std::string why;
  try {
    FrameReader reader(first, peer.name());
    if (first.kind != Peer::hello) throw Corrupt(peer.name() + " did not say who it is");
    const auto role = reader.number_at_most(2);
    peer.rename(reader.text(256));
    const std::string options = reader.text(1 << 16);
    reader.end();
    if (role < 2) {
      if (!options.empty() && setup_.check_guest) setup_.check_guest(options);
      worker = join(peer.name());
      if (!options.empty() && worker >= 0) log::info(peer.name() + " takes shares from now on");
    } else {
      const std::lock_guard lock(mutex_);
      ++present_;
    }
    counted = true;
    {
      const std::lock_guard lock(connections_mutex_);
      connection.worker = worker;
    }
    peer.send(FrameWriter()
                  .number(std::uint64_t(worker))
                  .number(std::uint64_t(setup_.shares))
                  .frame(Peer::ok),
              transfer());
    for (bool more = true; more;) {
      if (!peer.asked(Deadline::in(a_moment))) {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        continue;
      }
      const Frame request = peer.receive(transfer());
      try {
        more = answer(connection, request);
      } catch (const Corrupt&) {
        throw;  // what follows in the stream cannot be told
      } catch (const std::exception& error) {
        peer.send(failure(error), transfer());
      }
    }
    why = "it left";
  } catch (const InvalidArgument& error) {  // it may not join: it is told why
    why = error.what();
    try {
      if (!counted) peer.send(failure(error), transfer());
    } catch (const std::exception&) {  // it is gone itself
    }
  } catch (const std::exception& error) {
    why = error.what();
  }
  {
    const std::lock_guard lock(connections_mutex_);
    connection.here = false;
  }
  if (counted) lose(worker, why);
}

void ParameterServer::lose(int worker, const std::string& why) {
  const std::lock_guard lock(mutex_);
  --present_;
  changed_.notify_all();
  if (worker < 0) return;
  if (!table_ || stopping_ || failed_ || table_->finished() || !table_->alive(worker)) return;
  since_.erase(worker);
  table_->drop(worker);
  const auto message = fmt::format("{} is gone ({})", table_->name(worker), why);
  if (needs_all_workers())
    return fail(std::make_exception_ptr(
        PeerLost(message + (setup_.spell ? ", and with it a part of the model"
                                         : ", and the job is synchronous"))));
  if (worker == begun_by_)
    return fail(
        std::make_exception_ptr(PeerLost(message + "; it is the one that shows and saves")));
  if (table_->living() == 0)
    return fail(std::make_exception_ptr(PeerLost(message + "; no worker is left")));
  log::warn(message + "; the others go on");
}

bool ParameterServer::answer(Connection& connection, const Frame& request) {
  Peer& peer = *connection.peer;
  const int worker = connection.worker;
  FrameReader reader(request, peer.name());
  const auto needs_table = [&] {
    if (!table_ || worker < 0) throw InvalidArgument("the first server keeps the clock table");
  };
  switch (request.kind) {
    case Peer::begin:
      answer_begin(connection, request);
      return true;
    case Peer::next: {
      needs_table();
      const auto seen = std::size_t(reader.number());
      reader.end();
      peer.send(wire::encode(next(worker, seen)), transfer());
      return true;
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
      const auto at_least = std::int64_t(reader.number());
      reader.end();
      const Values values = pull(at_least, task);
      ledger_.add(Operation::send, "pull", Algorithm::direct, LinkKind::tcp,
                  values.values.nbytes());
      peer.send(FrameWriter()
                    .number(std::uint64_t(values.version))
                    .number(values.values.nbytes())
                    .frame(Peer::ok),
                transfer(), wire::bytes_of(values.values));
      return true;
    }
    case Peer::push:
      answer_push(peer, request);
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
      const auto clock = table_->order(update);
      const bool over = table_->finished();
      lock.unlock();
      peer.send(FrameWriter()
                    .number(std::uint64_t(clock.value_or(0)))
                    .frame(clock  ? Peer::ok
                           : over ? Peer::finished
                                  : Peer::wait),
                transfer());
      return true;
    }
    case Peer::norm: {
      const auto update = std::int64_t(reader.number());
      const auto server = int(reader.number_at_most(std::uint64_t(servers_)));
      const double square = double_of(reader.number());
      reader.end();
      const double all = sum_squares(update, server, square);
      peer.send(FrameWriter().number(bits_of(all)).frame(Peer::ok), transfer());
      return true;
    }
    case Peer::state: {
      const auto bytes = wire::send(peer, state(std::int64_t(reader.number())), transfer());
      ledger_.add(Operation::send, "state", Algorithm::direct, LinkKind::tcp, bytes);
      return true;
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
    case Peer::bye:
      return false;
    default:
      throw Corrupt(fmt::format("{} sent a request of unknown kind {}", peer.name(), request.kind));
  }
  peer.send(FrameWriter().frame(Peer::ok), transfer());
  return true;
}

void ParameterServer::answer_begin(Connection& connection, const Frame& request) {
  Peer& peer = *connection.peer;
  begin(wire::receive_beginning(peer, request, transfer()), connection.worker);
  {
    const std::lock_guard lock(connections_mutex_);
    connection.first = true;
  }
  peer.send(FrameWriter().frame(Peer::ok), transfer());
}

void ParameterServer::answer_push(Peer& peer, const Frame& request) {
  at::Tensor like;
  {
    const std::lock_guard lock(mutex_);
    like = published_;
  }
  if (!like.defined()) throw Corrupt(peer.name() + " sent a gradient before the job began");
  auto pushed = wire::receive_push(peer, request, like, transfer());
  push(peer.name(), pushed.task, pushed.version, pushed.weight, std::move(pushed.grad));
}

}  // namespace echelon
