#include "python/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/net/host.h"
#include "echelon/net/socket_address.h"
#include "echelon/net/token.h"

namespace echelon::python {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

RankOptions read_options(std::chrono::milliseconds timeout) {
  RankOptions options;
  // torch's timeout is also the deadline of the rendezvous, unless an option sets another.
  options.net.connect_timeout = options.comm.timeout =
      std::max(std::chrono::duration<double>(timeout).count(), 1e-3);
  const Fields fields = fields_of(options);
  std::istringstream assignments(variable("ECHELON_SET"));
  for (std::string one; assignments >> one;) set_option(fields, one);
  check_options(fields);
  if (options.comm.backend != Backend::native)
    throw InvalidArgument(fmt::format(
        "comm.backend={} is not for torch.distributed, which has its own backend for it; "
        "this backend uses native",
        name_of(options.comm.backend)));
  return options;
}

// The texts of all ranks under one key of the store.
class Board {
 public:
  Board(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  std::vector<std::string> exchange(const std::string& name, const std::string& mine,
                                    Deadline deadline) const {
    set(key(name, rank_), mine);
    std::vector<std::string> keys, all;
    for (int r = 0; r < size_; ++r) keys.push_back(key(name, r));
    wait(keys, deadline);
    for (const auto& one : keys) all.push_back(read(one));
    return all;
  }

  // Rank 0's text; `make` runs on rank 0.
  template <class Make>
  std::string from_first(const std::string& name, Make make, Deadline deadline) const {
    if (rank_ == 0) {
      const std::string text = make();
      set(key(name, 0), text);
      return text;
    }
    wait({key(name, 0)}, deadline);
    return read(key(name, 0));
  }

 private:
  static std::string key(const std::string& name, int rank) {
    return fmt::format("echelon/{}/{}", name, rank);
  }

  void set(const std::string& key, const std::string& text) const {
    store_->set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
  }

  std::string read(const std::string& key) const {
    const auto bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }

  void wait(const std::vector<std::string>& keys, Deadline deadline) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining());
    try {
      // 0 would mean the store's own timeout, or none.
      store_->wait(keys, std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception& error) {
      std::string missing;
      for (const auto& one : keys)
        if (!store_->check({one}))
          missing += (missing.empty() ? "" : ", ") + one.substr(one.rfind('/') + 1);
      if (missing.empty()) throw;
      throw Timeout(
          fmt::format("these ranks of the process group did not come to its store: {} "
                      "(of {}; this is rank {}): {}",
                      missing, size_, rank_, error.what()));
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
};

Token find_token(const Board& board, Deadline deadline) {
  if (!variable("ECHELON_TOKEN").empty() || !variable("ECHELON_TOKEN_FILE").empty())
    return Token::find();
  return Token::parse(board.from_first(
      "token", [] { return Token::random().text(); }, deadline));
}

std::string address_to_bind(const Board& board, const NetOptions& net, Deadline deadline) {
  if (!net.interface.empty()) return interface_address(net.interface);
  const auto hosts = board.exchange("host", host_id(), deadline);
  const std::string loopback = "127.0.0.1";
  if (std::all_of(hosts.begin(), hosts.end(), [&](const auto& host) { return host == hosts[0]; }))
    return loopback;
  const std::string master = variable("MASTER_ADDR");
  return master.empty() ? outward_address() : bind_address(master, /*other_machines=*/true);
}

}  // namespace

std::shared_ptr<Group> join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                            std::chrono::milliseconds timeout) {
  const RankOptions options = read_options(timeout);
  const Deadline deadline = Deadline::in(std::chrono::duration_cast<Deadline::Clock::duration>(
      std::chrono::duration<double>(options.net.connect_timeout)));
  const Board board(store, rank, size);
  const bool alone = size == 1;
  const Token token = alone ? Token::random() : find_token(board, deadline);
  const std::string bind = alone ? "127.0.0.1" : address_to_bind(board, options.net, deadline);
  auto endpoint = std::make_shared<Endpoint>(
      rank, size, bind, options.net, token,
      [&](const std::string& info, Deadline until) { return board.exchange("peer", info, until); });
  return Group::world(std::move(endpoint), options.comm);
}

}  // namespace echelon::python
