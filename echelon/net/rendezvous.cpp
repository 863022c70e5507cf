#include "echelon/net/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/net/frame.h"
#include "echelon/net/health.h"
#include "echelon/net/meeting.h"
#include "echelon/net/peer_pages.h"
#include "echelon/net/peer_relay.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;

constexpr auto probe_time = 2s;

std::string this_process() {
  std::array<char, 256> name = {};
  return fmt::format("pid {} on {}", getpid(),
                     gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?");
}

Hello hello_of(const Rendezvous& setup, const std::string& peer_info) {
  Hello hello{.rank = std::uint64_t(setup.rank),
              .world = std::uint64_t(setup.world),
              .who = this_process(),
              .identity = setup.identity,
              .number = 0,
              .peer_info = peer_info};
  fill_random(std::as_writable_bytes(std::span(&hello.number, 1)));
  return hello;
}

MeetingFrame kind_of_frame(const Frame& frame) { return static_cast<MeetingFrame>(frame.kind); }

// When a guest's time is over, rank 0 knows which ranks are missing.
Frame wait_for_answer(Stream& stream, Deadline deadline) {
  if (wait_ready(stream.socket().get(), stream.read_events(), deadline))
    return read_frame(stream, Deadline::in(std::max<Deadline::Clock::duration>(deadline.remaining(),
                                                                               probe_time)));
  write_frame(stream, FrameWriter().frame(static_cast<std::uint8_t>(MeetingFrame::late)),
              Deadline::in(probe_time));
  return read_frame(stream, Deadline::in(probe_time));
}

struct Pages {
  std::vector<std::string> infos;  // by rank
  std::vector<std::byte> bytes;    // as received, to be forwarded
};

Pages read_pages(Stream& from, int world, Deadline deadline) {
  PeerPages pages(world, from.name());
  std::vector<std::byte> bytes;
  while (!pages.complete()) {
    const Frame page = read_frame(from, deadline);
    if (kind_of_frame(page) == MeetingFrame::misfit) throw_misfit(page, from.name());
    if (kind_of_frame(page) != MeetingFrame::peer_page)
      throw Corrupt(from.name() + " sent something other than the ranks' peer info");
    pages.add(page);
    const auto one = encode(page);
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  return {pages.take(), std::move(bytes)};
}

// Fetches pages from a parent other than rank 0. If that fails, rank 0 knows whether the parent has
// ended.
Pages fetch_pages(const Rendezvous& setup, const PeerRoute& route, Assembly& assembly,
                  Deadline deadline) {
  try {
    const auto parent =
        connect_to_parent(setup.rank, route, setup.tls, setup.token, assembly, deadline);
    return read_pages(*parent, setup.world, deadline);
  } catch (const Timeout&) {
    throw;
  } catch (const Error&) {
    assembly.look_for_the_cause();
    throw;
  }
}

// In Kubernetes, a service may stand for the pod of rank 0.
bool in_kubernetes() { return std::getenv("KUBERNETES_SERVICE_HOST") != nullptr; }

}  // namespace

Gathered Rendezvous::exchange(const std::string& peer_info, Deadline deadline) {
  if (world == 1) return std::vector{peer_info};
  return rank == 0 ? gather(peer_info, deadline) : visit(peer_info, deadline);
}

std::string Rendezvous::loopback_hint() const {
  if (!other_machines || !(is_loopback(address.host) || address.host == "localhost")) return {};
  return fmt::format(
      "; {} is each machine's own address: for ranks on several machines give an address of rank 0's "
      "that the others reach",
      address.host);
}

// If the port is taken, another rank 0 may have it. Each is then told about the other.
Descriptor Rendezvous::listen(const Hello& mine) const {
  try {
    return listen_tcp(bind.empty() ? interface_address(address.host) : bind, address.port);
  } catch (const Error& error) {
    ask_who_is_there(mine, Deadline::in(probe_time));
    throw;
  }
}

// Connects to the address as rank 0. Returns nothing if it leads back to this process, otherwise
// why no one answered. Throws what another rank 0 answers.
std::optional<std::string> Rendezvous::ask_who_is_there(const Hello& mine,
                                                        Deadline deadline) const {
  const std::string name = fmt::format("the rendezvous at {}", address.text());
  Frame frame;
  try {
    const auto stream = connect_proven(connect_tcp(address, deadline), name, tls, token, deadline);
    write_frame(*stream, mine.frame(), deadline);
    frame = read_frame(*stream, deadline);
  } catch (const Error& error) {
    return error.what();
  }
  if (kind_of_frame(frame) == MeetingFrame::misfit) throw_misfit(frame, name);
  if (kind_of_frame(frame) == MeetingFrame::yourself) return {};
  return name + " did not say who it is";
}

// The other ranks connect to this address, so rank 0 must be reachable there.
void Rendezvous::require_here(const Hello& mine) const {
  std::string here;
  try {
    interface_address(address.host);
    return;
  } catch (const InvalidArgument& error) {
    here = error.what();
  }
  const auto nobody = ask_who_is_there(mine, Deadline::in(probe_time));
  if (!nobody) return;
  const std::string problem = fmt::format(
      "rank 0 ({}) runs on a machine that the rendezvous {} does not lead to ({}): start rank 0 "
      "(launch --node-rank 0) on that machine, or give all ranks an address of this one",
      mine.who, address.text(), here);
  if (!in_kubernetes()) throw InvalidArgument(problem);
  log::warn(problem);
}

Gathered Rendezvous::gather(const std::string& peer_info, Deadline deadline) {
  const Hello mine = hello_of(*this, peer_info);
  const bool given = bool(listener);
  std::vector<Listener> listeners;
  listeners.push_back({given ? std::move(listener) : listen(mine), tls});
  if (!also.empty()) listeners.push_back({listen_tcp(also, address.port), tls});
  Meeting meeting(*this, mine, std::move(listeners));
  try {
    if (!given) require_here(mine);
  } catch (const Error& error) {
    meeting.call_off(error);
  }
  return meeting.gather(deadline);
}

std::unique_ptr<Stream> Rendezvous::connect_to_rank_0(Deadline deadline) const {
  const std::string name = fmt::format("the rendezvous at {}", address.text());
  try {
    return connect_proven(connect_tcp(address, deadline), name, tls, token, deadline);
  } catch (const Timeout& error) {
    throw Timeout(error.what() + loopback_hint());
  }
}

Gathered Rendezvous::visit(const std::string& peer_info, Deadline deadline) {
  auto stream = connect_to_rank_0(deadline);
  Stream& rank_0 = *stream;
  Hello mine = hello_of(*this, peer_info);
  // Created before the hello, which contains its address.
  std::unique_ptr<PeerRelay> relay;
  if (tree().passes_on(rank)) {
    relay = std::make_unique<PeerRelay>(bind.empty() ? local_address(rank_0.socket()).host : bind,
                                        tls, token, tree().children(rank));
    mine.relay = relay->address();
  }
  write_frame(rank_0, mine.frame(), deadline);
  const Frame answer = wait_for_answer(rank_0, deadline);
  if (kind_of_frame(answer) == MeetingFrame::misfit) throw_misfit(answer, rank_0.name());
  const PeerRoute route = PeerRoute::read(answer, rank_0.name(), tree(), rank);

  std::map<int, Assembly::Member> watched;
  watched[0] = {"at " + address.text(), std::move(stream)};
  const auto assembly = std::make_shared<Assembly>(std::move(watched));
  Pages pages = route.parent == 0 ? read_pages(rank_0, world, deadline)
                                  : fetch_pages(*this, route, *assembly, deadline);
  if (pages.infos[std::size_t(rank)] != peer_info)
    throw Corrupt(fmt::format(
        "{} sent peer info of rank {} that this rank did not send",
        route.parent == 0 ? rank_0.name() : fmt::format("rank {}", route.parent), rank));
  if (relay) relay->pass_on(pages.bytes, route.meeting, *assembly, deadline);
  return {std::move(pages.infos), assembly};
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
  unsetenv("ECHELON_RENDEZVOUS_FD");  // this process owns it, not the processes it starts
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

// 192.0.2.1 belongs to no machine (RFC 5737).
std::string outward_address() { return address_towards("192.0.2.1"); }

std::string bind_address(const std::string& host, bool other_machines) {
  const std::string address = address_towards(host);
  if (!other_machines || !is_loopback(address) || is_loopback(host) || host == "localhost")
    return address;
  return outward_address();
}

}  // namespace echelon
