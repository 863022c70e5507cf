#include "echelon/net/acceptor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/log.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;

constexpr int accepted_in_a_row = 64;

// Strangers must not use up the files that the job needs.
std::size_t affordable(std::size_t places) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return places;
  return std::clamp<std::size_t>(files.rlim_cur / 4, 1, places);
}

}  // namespace

Acceptor::Acceptor(std::vector<Listener> listeners, const Token& token, Welcome welcome,
                   Patience patience)
    : listeners_(std::move(listeners)),
      token_(token),
      welcome_(std::move(welcome)),
      patience_(patience),
      places_(affordable(most_unproven)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_) throw Error(with_errno("cannot make an eventfd"));
  thread_ = std::thread([this] { run(); });
}

Acceptor::~Acceptor() {
  const std::uint64_t one = 1;
  if (write(stop_.get(), &one, sizeof one) != sizeof one)
    log::error("an eventfd cannot be written");
  thread_.join();
}

void Acceptor::run() {
  std::vector<pollfd> ready;
  while (true) {
    ready.assign(1, {stop_.get(), POLLIN, 0});
    const bool room = has_room();
    for (const auto& listener : listeners_)
      ready.push_back({room ? listener.socket.get() : -1, POLLIN, 0});
    for (const auto& newcomer : newcomers_) ready.push_back(newcomer.poll_entry());
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::min<Deadline::Clock::duration>({longest_poll(), turned_away_.due().remaining(), 1h}));
    if (poll(ready.data(), ready.size(), static_cast<int>(left.count())) < 0) continue;
    if (ready[0].revents) return;
    // Handles earlier newcomers before new connections.
    auto entry = ready.begin() + 1 + static_cast<std::ptrdiff_t>(listeners_.size());
    for (auto one = newcomers_.begin(); one != newcomers_.end(); ++entry) {
      const auto next = std::next(one);
      if (entry->revents) advance(one);
      one = next;
    }
    drop_expired();
    for (std::size_t i = 0; i < listeners_.size(); ++i)
      if (ready[i + 1].revents) accept_from(listeners_[i]);
    turned_away_.say_if_due();
  }
}

// The time until there is something to do even if nothing arrives.
Deadline::Clock::duration Acceptor::longest_poll() const {
  if (newcomers_.empty()) return Deadline::Clock::duration::max();
  auto left = newcomers_.front().deadline().remaining();  // the oldest one's deadline is the first
  if (newcomers_.size() >= places_) {
    const auto age = Deadline::Clock::now() - newcomers_.front().since();
    if (age < patience_.keep)
      left = std::min<Deadline::Clock::duration>(left, patience_.keep - age);
  }
  return left;
}

bool Acceptor::has_room() const {
  return newcomers_.size() < places_ ||
         Deadline::Clock::now() - newcomers_.front().since() >= patience_.keep;
}

Acceptor::Newcomers::iterator Acceptor::least_promising() {
  const auto silent =
      std::find_if(newcomers_.begin(), newcomers_.end(), [this](const Newcomer& one) {
        return one.silent() && Deadline::Clock::now() - one.since() >= patience_.keep;
      });
  return silent != newcomers_.end() ? silent : newcomers_.begin();
}

void Acceptor::advance(Newcomers::iterator newcomer) {
  const std::string from = newcomer->from();
  try {
    if (!newcomer->advance()) return;
    welcome_(newcomer->take_stream(), newcomer->first());
  } catch (const std::exception& error) {
    turned_away_.note(from, error.what());
  }
  newcomers_.erase(newcomer);
}

void Acceptor::drop_expired() {
  while (!newcomers_.empty() && newcomers_.front().deadline().expired()) {
    const auto& one = newcomers_.front();
    turned_away_.note(
        one.from(),
        fmt::format("{} {} s",
                    one.silent() ? "it said nothing within" : "it did not prove the token within",
                    std::chrono::duration<double>(patience_.proof).count()));
    newcomers_.pop_front();
  }
}

void Acceptor::accept_from(const Listener& listener) {
  for (int i = 0; i < accepted_in_a_row && has_room(); ++i) {
    try {
      auto socket = accept(listener.socket, Deadline::in(Deadline::Clock::duration::zero()));
      if (!socket) return;
      if (newcomers_.size() >= places_) {
        const auto one = least_promising();
        turned_away_.note(one->from(), "others took its place before it had proven the token");
        newcomers_.erase(one);
      }
      newcomers_.emplace_back(std::move(*socket), listener.tls, token_,
                              Deadline::in(patience_.proof));
    } catch (const std::exception& error) {  // out of descriptors: some may be closed soon
      turned_away_.note(local_address(listener.socket).text(), error.what());
      std::this_thread::sleep_for(10ms);
      return;
    }
  }
}

std::unique_ptr<Stream> connect_proven(Descriptor socket, std::string name, bool tls,
                                       const Token& token, Deadline deadline) {
  auto stream =
      tls ? Stream::tls(std::move(socket), std::move(name), token, Side::connecting, deadline)
          : Stream::plain(std::move(socket), std::move(name));
  authenticate(*stream, token, Side::connecting, deadline);
  return stream;
}

}  // namespace echelon
