#include "echelon/collective/server_exchange.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "echelon/collective/reduce.h"

namespace echelon {
namespace {

// Tags: a chunk is identified by its first element, with one tag towards its owner and one back.
std::uint64_t there(std::size_t begin) { return 2 * begin; }
std::uint64_t back(std::size_t begin) { return 2 * begin + 1; }

double divisor(double n, double k) { return n * n + k * n - 2 * k; }

}  // namespace

std::vector<double> balanced_weights(int workers, int extra_servers) {
  const double n = workers, k = extra_servers;
  std::vector<double> weights(std::size_t(workers), (n - k) / divisor(n, k));
  weights.insert(weights.end(), std::size_t(extra_servers), 2 * (n - 1) / divisor(n, k));
  return weights;
}

double vectors_a_link(int workers, int extra_servers) {
  return 2.0 * workers * (workers - 1) / divisor(workers, extra_servers);
}

ServerExchange::ServerExchange(std::shared_ptr<Group> group, int workers,
                               std::vector<std::size_t> bounds)
    : group_(std::move(group)), workers_(workers), bounds_(std::move(bounds)) {
  const auto me = std::size_t(group_->rank());
  const std::size_t mine = bounds_[me + 1] - bounds_[me];
  pushed_.assign(std::size_t(workers_), std::vector<float>(mine));
  if (!works()) sum_.resize(mine);
}

void ServerExchange::run(float* data) {
  std::exception_ptr failed;
  std::thread server([&] {
    try {
      serve(data);
    } catch (...) {
      failed = std::current_exception();
    }
  });
  std::exception_ptr other;
  try {
    if (works()) push_and_pull(data);
  } catch (...) {
    other = std::current_exception();
  }
  server.join();
  for (const auto& error : {failed, other})
    if (error) std::rethrow_exception(error);
}

void ServerExchange::serve(float* data) {
  const int me = group_->rank();
  const std::size_t first = bounds_[std::size_t(me)], end = bounds_[std::size_t(me) + 1];
  const CallOptions call{.tag = "servers"};
  std::vector<Group::Ticket> coming, going;
  for (std::size_t at = first; at < end; at += chunk)
    for (int w = 0; w < workers_; ++w)
      if (w != me)
        coming.push_back(group_->receive(pushed_[std::size_t(w)].data() + (at - first),
                                         std::min(chunk, end - at) * sizeof(float), w, there(at),
                                         call));
  auto next = coming.begin();
  float* const out = works() ? data + first : sum_.data();
  for (std::size_t at = first; at < end; at += chunk) {
    const std::size_t count = std::min(chunk, end - at), offset = at - first;
    std::vector<const void*> inputs;
    for (int w = 0; w < workers_; ++w) {
      if (w != me) group_->wait(*next++);
      inputs.push_back(w == me ? data + at : pushed_[std::size_t(w)].data() + offset);
    }
    reduce(DataType::f32, ReduceOp::sum, out + offset, inputs.data(), workers_, count, workers_);
    for (int w = 0; w < workers_; ++w)
      if (w != me)
        going.push_back(group_->send(out + offset, count * sizeof(float), w, back(at), call));
  }
  for (const auto& ticket : going) group_->wait(ticket);
}

// The result overwrites what was pushed. It can only arrive after all pushes have arrived.
void ServerExchange::push_and_pull(float* data) {
  const int me = group_->rank(), ranks = group_->size();
  const CallOptions call{.tag = "servers"};
  std::vector<Group::Ticket> tickets;
  struct Push {
    double place;  // within its owner's part: 0 is the beginning, 1 the end
    int owner;
    std::size_t at, count;
  };
  // All owners' parts progress at the same rate, however long they are, so that no link is left
  // busy alone at the end. Each rank begins with its neighbour.
  std::vector<Push> pushes;
  for (int k = 1; k < ranks; ++k) {
    const int owner = (me + k) % ranks;
    const std::size_t first = bounds_[std::size_t(owner)], end = bounds_[std::size_t(owner) + 1];
    for (std::size_t at = first; at < end; at += chunk)
      pushes.push_back(
          {double(at - first) / double(end - first), owner, at, std::min(chunk, end - at)});
  }
  std::stable_sort(pushes.begin(), pushes.end(),
                   [](const Push& a, const Push& b) { return a.place < b.place; });
  for (const auto& [place, owner, at, count] : pushes) {
    const std::size_t bytes = count * sizeof(float);
    tickets.push_back(group_->receive(data + at, bytes, owner, back(at), call));
    tickets.push_back(group_->send(data + at, bytes, owner, there(at), call));
  }
  for (const auto& ticket : tickets) group_->wait(ticket);
}

}  // namespace echelon
