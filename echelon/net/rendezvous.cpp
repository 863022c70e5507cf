#include "echelon/net/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/net/acceptor.h"
#include "echelon/net/frame.h"
#include "echelon/net/health.h"

namespace echelon {
namespace {

enum Kind : std::uint8_t { hello = 1, cards, misfit };

constexpr std::size_t longest_card = 4096;

}  // namespace

std::vector<std::string> Rendezvous::exchange(const std::string& card, Deadline deadline) {
  if (world == 1) return {card};
  return rank == 0 ? gather(card, deadline) : visit(card, deadline);
}

std::vector<std::string> Rendezvous::gather(const std::string& card, Deadline deadline) {
  if (!listener)
    listener = listen_tcp(bind.empty() ? interface_address(address.host) : bind, address.port);
  std::mutex mutex;  // the next four
  std::condition_variable arrived;
  std::map<int, std::pair<std::string, std::unique_ptr<Stream>>> guests;
  std::vector<std::unique_ptr<Stream>> misfits;
  std::string problem;
  bool late = false;

  std::vector<Listener> listeners;
  listeners.push_back({std::move(listener), tls});
  if (!also.empty()) listeners.push_back({listen_tcp(also, address.port), tls});
  {
    const auto welcome = [&](std::unique_ptr<Stream> stream, const Frame& frame) {
      FrameReader reader(frame, stream->name());
      const auto guest = reader.number(), guests_world = reader.number();
      std::string guests_card = reader.text(longest_card);
      reader.end();
      const std::lock_guard lock(mutex);
      if (frame.kind != hello) throw Corrupt(stream->name() + " did not begin with a hello");
      if (guests_world != std::uint64_t(world)) {
        problem = fmt::format(
            "rank {} says that the world is {}, rank 0 that it is {}: start all with the same number",
            guest, guests_world, world);
      } else if (guest == 0 || guest >= std::uint64_t(world)) {
        problem =
            fmt::format("a process came as rank {} to the rendezvous of rank 0, in a world of {}",
                        guest, world);
      } else if (!guests.try_emplace(int(guest), std::move(guests_card), std::move(stream))
                      .second) {
        problem = fmt::format("two processes came as rank {}: each needs its own", guest);
      }
      if (stream) misfits.push_back(std::move(stream));
      arrived.notify_all();
    };
    const Acceptor acceptor(std::move(listeners), token, welcome);
    std::unique_lock lock(mutex);
    const auto complete = [&] { return !problem.empty() || int(guests.size()) == world - 1; };
    if (!arrived.wait_for(lock, deadline.remaining(), complete)) {
      std::vector<int> missing;
      for (int r = 1; r < world; ++r)
        if (!guests.contains(r)) missing.push_back(r);
      problem =
          fmt::format("rendezvous at {}: rank{} {} of {} did not come in time", address.text(),
                      missing.size() > 1 ? "s" : "", fmt::join(missing, ", "), world);
      late = true;
    }
  }
  if (!problem.empty()) {
    const auto kind = late ? kind_of(Timeout("")) : kind_of(InvalidArgument(""));
    for (auto& [r, guest] : guests) misfits.push_back(std::move(guest.second));
    for (const auto& guest : misfits) {
      try {
        write_frame(*guest, FrameWriter().number(kind).text(problem).frame(misfit),
                    Deadline::in(std::chrono::seconds(1)));
      } catch (const Error&) {  // gone itself: the problem stays the same
      }
    }
    throw_kind(kind, problem);
  }
  FrameWriter writer;
  std::vector<std::string> all;
  for (int r = 0; r < world; ++r) {
    all.push_back(r == 0 ? card : guests[r].first);
    writer.text(all.back());
  }
  const Frame answer = writer.frame(cards);
  for (auto& [r, guest] : guests) write_frame(*guest.second, answer, deadline);
  return all;
}

std::vector<std::string> Rendezvous::visit(const std::string& card, Deadline deadline) {
  const std::string name = fmt::format("the rendezvous at {}", address.text());
  auto stream = connect_proven(connect_tcp(address, deadline), name, tls, token, deadline);
  write_frame(*stream,
              FrameWriter()
                  .number(std::uint64_t(rank))
                  .number(std::uint64_t(world))
                  .text(card)
                  .frame(hello),
              deadline);
  const Frame answer = read_frame(*stream, deadline);
  FrameReader reader(answer, name);
  if (answer.kind == misfit) {
    const auto kind = reader.number();
    throw_kind(kind, reader.text(longest_card));
  }
  if (answer.kind != cards) throw Corrupt(name + " sent something other than the ranks' cards");
  std::vector<std::string> all;
  for (int r = 0; r < world; ++r) all.push_back(reader.text(longest_card));
  reader.end();
  return all;
}

Descriptor inherited_listener() {
  const char* text = std::getenv("ECHELON_RENDEZVOUS_FD");
  if (text == nullptr) return {};
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  int listening = 0;
  socklen_t length = sizeof listening;
  if (*text == '\0' || *end != '\0' || number < 3 || number > 1 << 20 ||
      getsockopt(int(number), SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || !listening)
    throw InvalidArgument(fmt::format("ECHELON_RENDEZVOUS_FD={} is no listening socket", text));
  unsetenv("ECHELON_RENDEZVOUS_FD");  // its owner is this process, not those it starts
  Descriptor listener{int(number)};
  fcntl(listener.get(), F_SETFD, FD_CLOEXEC);
  fcntl(listener.get(), F_SETFL, fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
  return listener;
}

std::string address_towards(const std::string& host) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (const int error = getaddrinfo(host.c_str(), "9", &hints, &found); error != 0)
    throw InvalidArgument(
        fmt::format("cannot find the address of \"{}\": {}", host, gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  for (const addrinfo* one = found; one; one = one->ai_next) {
    const Descriptor probe(socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (probe && connect(probe.get(), one->ai_addr, one->ai_addrlen) == 0)
      return local_address(probe).host;
  }
  throw Error(with_errno(fmt::format("no interface of this machine leads to {}", host)));
}

std::string outward_address() { return address_towards("192.0.2.1"); }  // no machine's (RFC 5737)

std::string bind_address(const std::string& host, bool other_machines) {
  const std::string address = address_towards(host);
  if (!other_machines || !is_loopback(address) || is_loopback(host) || host == "localhost")
    return address;
  return outward_address();
}

}  // namespace echelon
