#include "echelon/collective/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/collective/link_watch.h"
#include "echelon/collective/measure.h"
#include "echelon/collective/reduce.h"

namespace echelon {
namespace {

constexpr std::uint64_t world_id = 1;

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {  // splitmix64's finaliser over both
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (x ^ (x >> 31)) | 1;  // never 0, the control connections' channel
}

Deadline::Clock::duration timeout_of(const CallOptions& call, const CommOptions& options) {
  return call.timeout.count() > 0 ? call.timeout : Deadline::duration_of(options.timeout);
}

Deadline deadline_of(const CallOptions& call, const CommOptions& options) {
  return Deadline::in(timeout_of(call, options));
}

const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

bool can_be_hierarchical(const Shape& shape) { return shape.hosts > 1 && shape.local > 1; }

}  // namespace

std::shared_ptr<Group> Group::world(std::shared_ptr<Endpoint> endpoint,
                                    const CommOptions& options) {
  std::vector<int> members, near;
  for (int r = 0; r < endpoint->world(); ++r) {
    members.push_back(r);
    if (endpoint->near(r)) near.push_back(r);
  }
  // Every rank's first allocation is at the start of its heap, so no offset has to be exchanged
  // yet.
  auto store = std::make_shared<BlockStore>(endpoint->heap_owner());
  std::vector<std::size_t> blocks(near.size(), 0);
  if (near.size() > 1) blocks.assign(near.size(), store->make_first(int(near.size())));
  auto group = std::make_shared<Group>(Private{}, std::move(endpoint), options, std::move(members),
                                       world_id, std::make_shared<Ledger>(), store, blocks);
  group->require_same_options();
  Plan plan;
  if (options.plan.empty()) {
    const auto [figures, cache] = measure_figures(*group);
    plan = Plan::make(figures, group->shape_);
    if (group->rank() == 0 && figures.reused)
      group->watch_ = std::make_shared<LinkWatch>(cache, figures);
  } else {
    plan = group->read_plan();
  }
  group->set_plan(plan);
  if (group->rank() == 0) group->tell_what_does_not_fit(plan);
  group->ledger().clear();  // setup is not the caller's traffic
  return group;
}

Group::Group(Private, std::shared_ptr<Endpoint> endpoint, CommOptions options,
             std::vector<int> members, std::uint64_t id, std::shared_ptr<Ledger> ledger,
             std::shared_ptr<BlockStore> store, const std::vector<std::size_t>& blocks)
    : endpoint_(std::move(endpoint)),
      options_(std::move(options)),
      members_(std::move(members)),
      id_(id),
      scope_(id),
      ledger_(std::move(ledger)),
      store_(std::move(store)),
      forced_(options_.algorithm) {
  std::map<std::string, std::vector<int>> hosts;
  std::vector<int> near_ranks;
  for (int i = 0; i < size(); ++i) {
    const int rank = members_[std::size_t(i)];
    if (rank == endpoint_->rank()) index_ = i;
    hosts[endpoint_->peer_info(rank).host].push_back(i);
    if (endpoint_->near(rank)) {
      near_.push_back(i);
      near_ranks.push_back(rank);
    }
  }
  std::size_t fewest = members_.size();
  for (const auto& [host, ranks] : hosts) fewest = std::min(fewest, ranks.size());
  shape_ = {size(), int(hosts.size()), int(fewest)};
  spins_ = endpoint_->have_cores(members_);
  if (near_.size() > 1)
    shared_ = std::make_unique<SharedGroup>(*endpoint_, store_, near_ranks, blocks);
  messenger_ = std::make_unique<Messenger>(*endpoint_, members_, index_,
                                           [this](int member, int lane, Deadline deadline) {
                                             return lane_link(member, lane, deadline);
                                           });
  mailbox_ = std::make_unique<Mailbox>(
      *endpoint_, id_, members_, index_,
      [this](int member, Deadline deadline) { return mail_link(member, deadline); }, *ledger_);
  set_plan(Plan::make({}, shape_));

  if (shared_) {  // whether all ranks of the host can read each other's memory: a min over the host
    std::uint8_t can = options_.single_copy != Switch::off && shared_->probe_exposure(), all = 0;
    Call call{.operation = Operation::all_reduce,
              .type = DataType::u8,
              .op = ReduceOp::min,
              .in = bytes_of(&can),
              .out = bytes_of(&all),
              .count = 1,
              .tag = "setup",
              .deadline = Deadline::in_seconds(options_.timeout),
              .place = {{.group = id_}}};
    try {
      shared_->run(call, Algorithm::shared_direct, spins_);
    } catch (const std::exception& error) {
      give_up(error);
      throw;
    }
    can_expose_ = all != 0;
    set_single_copy(options_.single_copy == Switch::on);
  }
  // Slice j of a hierarchical all-reduce belongs to the j-th rank of every host.
  slices_ = shape_.local;
  if (shape_.hosts > 1 && shape_.local > 1) {
    const std::size_t mine = near_index(index_);
    std::vector<int> peers;
    for (const int first : [&] {
           std::vector<int> order;  // hosts in the order of their first rank
           for (const auto& [host, ranks] : hosts) order.push_back(ranks.front());
           std::sort(order.begin(), order.end());
           return order;
         }()) {
      const auto& ranks = hosts[endpoint_->peer_info(members_[std::size_t(first)]).host];
      if (mine < std::size_t(slices_)) peers.push_back(members_[std::size_t(ranks[mine])]);
    }
    if (mine < std::size_t(slices_)) {
      across_ =
          std::make_shared<Group>(Private{}, endpoint_, options_, peers, mixed(id_, 1000 + mine),
                                  ledger_, store_, std::vector<std::size_t>(1, 0));
      across_->scope_ = id_;
    }
  }
}

Group::~Group() = default;

void Group::measure_again() {
  set_plan(Plan::make(measure_figures(*this, Measure::again).figures, shape_));
  if (watch_) watch_->retire();
}

// Options that decide which path a call takes must be the same on all ranks.
void Group::require_same_options() {
  if (size() == 1) return;
  std::string mine =
      fmt::format("comm.algorithm={} comm.wire={} comm.single_copy={} comm.plan {}",
                  name_of(options_.algorithm), name_of(options_.wire),
                  name_of(options_.single_copy), options_.plan.empty() ? "not set" : "set");
  constexpr std::size_t length = 160;
  mine.resize(length, '\0');
  std::string all(length * members_.size(), '\0');
  const std::vector<std::size_t> counts(members_.size(), length);
  all_gather(DataType::u8, mine.data(), all.data(), counts, {.tag = "setup"});
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const std::string other = all.substr(i * length, length);
    if (other != mine)
      throw InvalidArgument(fmt::format("ranks have different options: {} has {}, rank {} {}",
                                        endpoint_->health().name(members_[i]), other.c_str(),
                                        endpoint_->rank(), mine.c_str()));
  }
}

// Reports what the user asked for and does not get.
void Group::tell_what_does_not_fit(const Plan& plan) const {
  if (plan.shape != shape_)
    log::warn(fmt::format(
        "{} is the plan of {}, and these are {}: its figures are used, its choices are not",
        options_.plan, plan.shape.text(), shape_.text()));
  if (forced_ == Algorithm::hierarchical && size() > 1 && !can_be_hierarchical(shape_))
    log::warn(fmt::format(
        "comm.algorithm=hierarchical is for several hosts of several ranks, and these are {}: "
        "the algorithm is chosen by cost",
        shape_.text()));
}

// Rank 0's file applies to all ranks.
Plan Group::read_plan() {
  std::string text;
  if (index_ == 0) text = Plan::read(options_.plan).json();
  std::uint64_t length = text.size();
  broadcast(DataType::u8, &length, sizeof length, 0, {.tag = "setup"});
  text.resize(length);
  broadcast(DataType::u8, text.data(), length, 0, {.tag = "setup"});
  return Plan::parse(text, options_.plan);
}

void Group::set_plan(const Plan& plan) {
  plan_ = plan.shape == shape_ ? plan : Plan::make(plan.figures, shape_);
  plan_.check();
  if (shared_) {
    const auto crossings = shared_crossings(int(near_.size()), plan.figures);
    SharedGroup::Limits limits;
    limits.registered_from = crossings.registered;
    limits.staged_from = crossings.staged;
    shared_->set_limits(limits);
    if (options_.single_copy == Switch::automatic) set_single_copy(plan.figures.single_copy);
  }
  if (across_) across_->set_plan(plan);
}

void Group::set_single_copy(bool wanted) {
  if (shared_) shared_->set_exposure(can_expose_ && wanted);
}

std::size_t Group::near_index(int member) const {
  return std::size_t(std::find(near_.begin(), near_.end(), member) - near_.begin());
}

std::unique_ptr<Link> Group::tcp_link(int rank, std::uint64_t channel, Deadline deadline) {
  const Endpoint::Purpose purpose{mixed(id_, channel), scope_,
                                  int(endpoint_->options().connections)};
  auto streams = endpoint_->try_open(rank, purpose, deadline);
  return streams ? std::make_unique<TcpLink>(std::move(*streams)) : nullptr;
}

Link* Group::lane_link(int member, int lane, Deadline deadline) {
  auto& link = links_[{member, lane}];
  if (!link) {
    const int rank = members_[std::size_t(member)];
    link = endpoint_->near(rank) ? shared_->link(int(near_index(member)), lane)
                                 : tcp_link(rank, 10 + std::uint64_t(lane), deadline);
  }
  return link.get();
}

std::unique_ptr<Link> Group::mail_link(int member, Deadline deadline) {
  const int rank = members_[std::size_t(member)];
  if (endpoint_->near(rank)) return shared_->link(int(near_index(member)), SharedBlock::rings - 1);
  return tcp_link(rank, 20, deadline);
}

std::shared_ptr<Group> Group::split(int colour, int key) {
  struct Wish {
    std::int64_t colour, key;
  };
  const std::uint64_t number = ++splits_;
  const Wish mine = {colour, key};
  std::vector<Wish> wishes(members_.size());
  const std::vector<std::size_t> each(members_.size(), sizeof(Wish));
  all_gather(DataType::u8, &mine, wishes.data(), each, {.tag = "split"});
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < wishes.size(); ++i)
    if (wishes[i].colour == colour) chosen.push_back(i);
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](std::size_t a, std::size_t b) { return wishes[a].key < wishes[b].key; });
  std::vector<int> ranks;
  std::size_t near = 0;
  for (const std::size_t i : chosen) {
    ranks.push_back(members_[i]);
    near += endpoint_->near(members_[i]);
  }
  try {
    const std::size_t block = colour >= 0 && near > 1 ? store_->make(int(near)) : 0;
    std::vector<std::size_t> all_blocks(members_.size());
    const std::vector<std::size_t> one(members_.size(), sizeof(std::size_t));
    all_gather(DataType::u8, &block, all_blocks.data(), one, {.tag = "split"});
    if (colour < 0) return nullptr;
    std::vector<std::size_t> blocks;
    for (const std::size_t i : chosen)
      if (endpoint_->near(members_[i])) blocks.push_back(all_blocks[i]);
    auto group = std::make_shared<Group>(Private{}, endpoint_, options_, std::move(ranks),
                                         mixed(mixed(id_, 100 + number), std::uint64_t(colour)),
                                         ledger_, store_, blocks);
    group->set_plan(plan_);
    group->watch_ = watch_;
    return group;
  } catch (const std::exception& error) {  // other ranks may wait in this call
    give_up(error);
    throw;
  }
}

std::size_t Group::choice_bytes(const Call& call) const {
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::broadcast:
    case Operation::reduce:
      return call.bytes();
    default:
      return total(call.counts) * size_of(call.type);
  }
}

Algorithm Group::algorithm(Operation operation, std::size_t bytes) const {
  for (const auto& choice : plan_.choices[std::size_t(operation)])
    if (bytes <= choice.bytes) return choice.algorithm;
  return plan_.choices[std::size_t(operation)].back().algorithm;
}

void Group::run(Call& call, const CallOptions& options) {
  const std::lock_guard lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
  call.tag = options.tag;
  call.deadline = Deadline::about(timeout_of(options, options_));
  if (size() == 1) return run_alone(call);
  Algorithm chosen = options.algorithm;
  if (chosen == Algorithm::automatic && call.operation == Operation::all_reduce) chosen = forced_;
  const std::size_t bytes = choice_bytes(call);
  const bool across = shape_.hosts > 1;
  if (chosen == Algorithm::hierarchical && !can_be_hierarchical(shape_))
    chosen = Algorithm::automatic;  // only one level: nothing to combine
  const std::uint64_t as_called = signature(call, chosen);
  // On one host the choice also depends on all ranks' buffers, which are known once the ranks have
  // met.
  if (chosen == Algorithm::automatic && across) chosen = algorithm(call.operation, bytes);
  try {
    auto& place = recent_[++number_ % recent_.size()];
    place = {id_, number_, as_called, call.operation == Operation::all_to_all ? 0 : bytes};
    call.place = {place, members_, recent_};
    if ((chosen == Algorithm::shared || chosen == Algorithm::shared_direct) && across)
      throw InvalidArgument(
          fmt::format("{} is for ranks of one host; these are on {}", name(chosen), shape_.hosts));
    const bool watched = across && watch_ && !watch_->done();
    const auto start = watched ? Deadline::Clock::now() : Deadline::Clock::time_point();
    run_checked(call, chosen, spins_ && !options.patient);
    if (watched)
      watch_->saw(call.operation, bytes,
                  std::chrono::duration<double>(Deadline::Clock::now() - start).count(),
                  cost(call.operation, chosen, bytes, shape_, plan_.figures));
  } catch (const std::exception& error) {
    give_up(error);
    throw;
  }
}

// Call it in a catch block: it uses the current exception.
void Group::give_up(const std::exception& error) {
  broken_ = std::current_exception();
  endpoint_->give_up(members_, scope_, error);
}

void Group::run_checked(const Call& call, Algorithm chosen, bool spin) {
  if (chosen == Algorithm::shared || chosen == Algorithm::shared_direct ||
      chosen == Algorithm::automatic) {
    const auto [bytes, taken] = shared_->run(call, chosen, spin);
    ledger_->add(call.operation, call.tag, taken, LinkKind::shared, bytes);
    return;
  }
  if (chosen == Algorithm::hierarchical) return run_hierarchical(call, spin);
  const auto sent = chosen == Algorithm::server && call.operation == Operation::all_reduce
                        ? run_as_servers(call, spin)
                        : messenger_->run(call, chosen, number_, spin, options_.wire == Wire::fp32);
  if (sent.shared || !sent.tcp)
    ledger_->add(call.operation, call.tag, chosen, LinkKind::shared, sent.shared);
  if (sent.tcp) ledger_->add(call.operation, call.tag, chosen, LinkKind::tcp, sent.tcp);
}

// Part j of the vector goes to rank j, which sums it and sends the sum back: as if each rank were
// also a parameter server. Each rank sends 2((p-1)/p) n bytes in 2(p-1) messages.
Messenger::Sent Group::run_as_servers(const Call& call, bool spin) {
  const auto bounds = even_parts(call.count, size());
  std::vector<std::size_t> counts;
  for (std::size_t j = 0; j + 1 < bounds.size(); ++j) counts.push_back(bounds[j + 1] - bounds[j]);
  Call part = call;
  part.operation = Operation::reduce_scatter;
  part.counts = counts;
  part.count = 0;
  part.out = call.out + bounds[std::size_t(index_)] * size_of(call.type);
  const bool wide = options_.wire == Wire::fp32;
  const auto pushed = messenger_->run(part, Algorithm::direct, number_, spin, wide);
  part.operation = Operation::all_gather;
  part.in = part.out;
  part.out = call.out;
  const auto pulled = messenger_->run(part, Algorithm::direct, number_, spin, wide);
  return {pushed.shared + pulled.shared, pushed.tcp + pulled.tcp};
}

// Within each host, rank j sums slice j. The j-th ranks of all hosts sum it across hosts. Then it
// is all-gathered within each host. Each host sends 2((m-1)/m) n bytes in total, however many ranks
// it has.
void Group::run_hierarchical(const Call& call, bool spin) {
  const std::size_t element = size_of(call.type), mine = near_index(index_);
  const auto bounds = even_parts(call.count, slices_);
  std::vector<std::size_t> counts(near_.size(), 0);
  for (std::size_t j = 0; j < std::size_t(slices_); ++j) counts[j] = bounds[j + 1] - bounds[j];
  const bool owner = mine < std::size_t(slices_);
  std::byte* slice = call.out + (owner ? bounds[mine] : 0) * element;
  const ReduceOp op = call.op == ReduceOp::average ? ReduceOp::sum : call.op;

  Call inside = call;
  inside.operation = Operation::reduce_scatter;
  inside.op = op;
  inside.out = slice;
  inside.counts = counts;
  std::uint64_t bytes = shared_->run(inside, Algorithm::shared, spin).bytes;
  if (owner) {  // also for an empty slice: the other hosts may have called with more
    Call outside = call;
    outside.op = op;
    outside.in = outside.out = slice;
    outside.count = counts[mine];
    ++across_->number_;
    const auto best = across_->algorithm(Operation::all_reduce, counts[mine] * element);
    const auto sent = across_->messenger_->run(outside, best, across_->number_, spin,
                                               options_.wire == Wire::fp32);
    ledger_->add(call.operation, call.tag, Algorithm::hierarchical, LinkKind::tcp, sent.tcp, 0);
    if (call.op == ReduceOp::average) scale(call.type, slice, counts[mine], size());
  }
  inside.operation = Operation::all_gather;
  inside.in = slice;
  inside.out = call.out;
  inside.count = 0;
  bytes += shared_->run(inside, Algorithm::shared, spin).bytes;
  ledger_->add(call.operation, call.tag, Algorithm::hierarchical, LinkKind::shared, bytes);
}

void Group::run_alone(const Call& call) {
  const std::size_t bytes =
      (call.counts.empty()
           ? call.count
           : total(call.operation == Operation::all_to_all ? call.back : call.counts)) *
      size_of(call.type);
  if (bytes && call.out && call.in != call.out) std::memmove(call.out, call.in, bytes);
}

namespace {

void check_counts(std::span<const std::size_t> counts, int size, const char* what) {
  if (int(counts.size()) != size)
    throw InvalidArgument(fmt::format("{} takes one count for each of the {} ranks; {} were given",
                                      what, size, counts.size()));
}

void check_root(int root, int size) {
  if (root < 0 || root >= size)
    throw InvalidArgument(fmt::format("root {} is no rank of this group: 0 … {}", root, size - 1));
}

}  // namespace

void Group::all_reduce(DataType type, ReduceOp op, const void* in, void* out, std::size_t count,
                       const CallOptions& options) {
  check(type, op);
  Call call{.operation = Operation::all_reduce,
            .type = type,
            .op = op,
            .in = bytes_of(in),
            .out = bytes_of(out),
            .count = count};
  run(call, options);
}

void Group::reduce_scatter(DataType type, ReduceOp op, const void* in, void* out,
                           std::span<const std::size_t> counts, const CallOptions& options) {
  check(type, op);
  check_counts(counts, size(), "reduce_scatter");
  Call call{.operation = Operation::reduce_scatter,
            .type = type,
            .op = op,
            .in = bytes_of(in),
            .out = bytes_of(out),
            .counts = counts};
  run(call, options);
}

void Group::all_gather(DataType type, const void* in, void* out,
                       std::span<const std::size_t> counts, const CallOptions& options) {
  check_counts(counts, size(), "all_gather");
  Call call{.operation = Operation::all_gather,
            .type = type,
            .in = bytes_of(in),
            .out = bytes_of(out),
            .counts = counts};
  run(call, options);
}

void Group::broadcast(DataType type, void* data, std::size_t count, int root,
                      const CallOptions& options) {
  check_root(root, size());
  Call call{.operation = Operation::broadcast,
            .type = type,
            .in = bytes_of(data),
            .out = bytes_of(data),
            .count = count,
            .root = root};
  run(call, options);
}

void Group::reduce(DataType type, ReduceOp op, const void* in, void* out, std::size_t count,
                   int root, const CallOptions& options) {
  check(type, op);
  check_root(root, size());
  Call call{.operation = Operation::reduce,
            .type = type,
            .op = op,
            .in = bytes_of(in),
            .out = bytes_of(out),
            .count = count,
            .root = root};
  run(call, options);
}

void Group::gather(DataType type, const void* in, void* out, std::span<const std::size_t> counts,
                   int root, const CallOptions& options) {
  check_root(root, size());
  check_counts(counts, size(), "gather");
  Call call{.operation = Operation::gather,
            .type = type,
            .in = bytes_of(in),
            .out = bytes_of(out),
            .counts = counts,
            .root = root};
  run(call, options);
}

void Group::scatter(DataType type, const void* in, void* out, std::span<const std::size_t> counts,
                    int root, const CallOptions& options) {
  check_root(root, size());
  check_counts(counts, size(), "scatter");
  Call call{.operation = Operation::scatter,
            .type = type,
            .in = bytes_of(in),
            .out = bytes_of(out),
            .counts = counts,
            .root = root};
  run(call, options);
}

void Group::all_to_all(DataType type, const void* in, void* out, std::span<const std::size_t> there,
                       std::span<const std::size_t> back, const CallOptions& options) {
  check_counts(there, size(), "all_to_all");
  check_counts(back, size(), "all_to_all");
  Call call{.operation = Operation::all_to_all,
            .type = type,
            .in = bytes_of(in),
            .out = bytes_of(out),
            .counts = there,
            .back = back};
  run(call, options);
}

void Group::barrier(const CallOptions& options) {
  Call call{.operation = Operation::barrier, .type = DataType::u8};
  run(call, options);
}

Group::Ticket Group::send(const void* data, std::size_t bytes, int to, std::uint64_t tag,
                          const CallOptions& options, bool background) {
  return mailbox_->post({.peer = to,
                         .tag = tag,
                         .buffer = const_cast<std::byte*>(bytes_of(data)),
                         .bytes = bytes,
                         .deadline = deadline_of(options, options_),
                         .sends = true,
                         .label = std::string(options.tag),
                         .owner = options.owner},
                        background);
}

Group::Ticket Group::receive(void* data, std::size_t bytes, int from, std::uint64_t tag,
                             const CallOptions& options, bool background) {
  return mailbox_->post({.peer = from,
                         .tag = tag,
                         .buffer = bytes_of(data),
                         .bytes = bytes,
                         .deadline = deadline_of(options, options_),
                         .sends = false,
                         .label = std::string(options.tag),
                         .owner = options.owner},
                        background);
}

std::shared_ptr<std::byte> Group::allocate(std::size_t bytes) {
  const auto heap = endpoint_->heap_owner();
  return {heap->allocate(bytes), [heap](std::byte* memory) { heap->free(memory); }};
}

}  // namespace echelon
