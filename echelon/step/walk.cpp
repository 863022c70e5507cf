#include "echelon/step/walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "echelon/step/exchange.h"
#include "echelon/step/shards.h"

namespace echelon {
namespace {

using Kind = Action::Kind;
using Memory = RankCosts::Memory;

// A missing cost is zero.
template <class Cost>
Cost cost_of(const std::vector<Cost>& costs, int index) {
  return index >= 0 && std::size_t(index) < costs.size() ? costs[std::size_t(index)] : Cost{};
}

template <class Value>
Value& grown(std::vector<Value>& values, int index) {
  if (std::size_t(index) >= values.size()) values.resize(std::size_t(index) + 1);
  return values[std::size_t(index)];
}

void add(Memory& memory, std::int64_t bytes) {
  memory.now += bytes;
  memory.peak = std::max(memory.peak, memory.now);
}

// Which rank has which layer, and what each layer has passed to the next. All ranks of a walk share
// it.
class Messages {
 public:
  static constexpr int nobody = -1;  // a rank that is not walked

  explicit Messages(std::span<const Table> tables) {
    for (std::size_t rank = 0; rank < tables.size(); ++rank)
      for (const Action& action : tables[rank]) {
        if (action.kind > Kind::send_grad) continue;  // not about a layer
        layers_ = std::max(layers_, action.layer + 1);
        micro_batches_ = std::max(micro_batches_, action.micro_batch + 1);
      }
    owner_.resize(std::size_t(layers_), nobody);
    inputs_.resize(size());
    gradients_.resize(size());
    for (std::size_t rank = 0; rank < tables.size(); ++rank)
      for (const Action& action : tables[rank])
        if (computes(action)) own(action.layer, int(rank));
  }

  int owner(int layer) const {
    return layer >= 0 && layer < layers_ ? owner_[std::size_t(layer)] : nobody;
  }
  std::size_t size() const { return std::size_t(layers_) * std::size_t(micro_batches_); }
  std::size_t at(int layer, int micro_batch) const {
    return std::size_t(layer) * std::size_t(micro_batches_) + std::size_t(micro_batch);
  }
  std::size_t at(const Action& action) const { return at(action.layer, action.micro_batch); }

  // The layer that provides an action's input; none if no walked rank has that layer.
  std::optional<int> source(const Action& action) const {
    int from = nobody;
    if (action.kind == Kind::forward) from = action.layer - 1;
    if (action.kind == Kind::backward || action.kind == Kind::input) from = action.layer + 1;
    return owner(from) == nobody ? std::nullopt : std::optional(from);
  }
  // When that input arrives; none: it has not been sent yet.
  const std::optional<double>& arrival(const Action& action) const {
    return (action.kind == Kind::forward ? inputs_ : gradients_)[at(action)];
  }
  void give_input(int to, int micro_batch, double time) {
    if (owner(to) != nobody) inputs_[at(to, micro_batch)] = time;
  }
  void give_gradient(int to, int micro_batch, double time) {
    if (owner(to) != nobody) gradients_[at(to, micro_batch)] = time;
  }

 private:
  void own(int layer, int rank) {
    int& owner = owner_[std::size_t(layer)];
    if (owner != nobody && owner != rank)
      throw InvalidArgument(
          fmt::format("layer {} is in the tables of ranks {} and {}", layer, owner, rank));
    owner = rank;
  }

  int layers_ = 0, micro_batches_ = 0;
  std::vector<int> owner_;                                 // by layer
  std::vector<std::optional<double>> inputs_, gradients_;  // by layer and micro-batch: arrival
};

// One rank: its clocks and the memory it holds.
class Rank {
 public:
  Rank(int rank, const Table& table, const StepCosts& costs, Messages& messages)
      : rank_(rank),
        table_(table),
        costs_(costs),
        messages_(messages),
        input_came_(messages.size(), false),
        gradient_came_(messages.size(), false) {
    for (const Action& action : table)
      if (action.kind == Kind::recompute) grown(recomputed_, action.layer) = 1;
  }

  std::size_t index() const { return index_; }
  bool ended() const { return index_ == table_.size(); }
  const Action& next() const { return table_[index_]; }
  const RankCosts& costs() const { return sum_; }

  // The layer that the next action still waits for.
  std::optional<int> awaited() const {
    const auto from = messages_.source(next());
    return from && !messages_.arrival(next()) ? from : std::nullopt;
  }

  TimedAction step() {
    const Action& action = table_[index_++];
    const Span span = run(action);
    sum_.end = now_;
    return {action, span.begin, span.end};
  }

 private:
  struct Span {
    double begin, end;
  };
  struct Scattering {
    int group;
    double end;
    std::int64_t bytes;  // of memory that it holds
  };

  Span run(const Action& a) {
    const StepCosts::Layer layer = cost_of(costs_.layers, a.layer);
    const StepCosts::Group group = cost_of(costs_.groups, a.group);
    switch (a.kind) {
      case Kind::forward:
        return forward(a, layer);
      case Kind::recompute:
        add(sum_.activations, layer.recomputed);
        return compute(layer.forward);
      case Kind::backward:
        return backward(a, layer, layer.input + layer.weight);
      case Kind::input:
        return backward(a, layer, layer.input);
      case Kind::weight:
        if (!is_recomputed(a.layer)) add(sum_.activations, -layer.deferred);
        return compute(layer.weight);
      case Kind::receive:
        input_came_[messages_.at(a)] = true;
        hold_message(message(a.layer - 1).bytes);
        return {now_, now_};
      case Kind::receive_grad:
        gradient_came_[messages_.at(a)] = true;
        hold_message(message(a.layer).bytes);
        return {now_, now_};
      case Kind::send: {
        const Span sent = send(up_, message(a.layer));
        messages_.give_input(a.layer + 1, a.micro_batch, sent.end);
        return sent;
      }
      case Kind::send_grad: {
        // At most two gradients are under way while forwards continue: the next input is computed
        // only after the first gradient was received. When only backwards are left, each frees more
        // than it sends.
        if (++gradients_sent_ > 2) hold_message(-message(a.layer - 1).bytes);
        const Span sent = send(down_, message(a.layer - 1));
        messages_.give_gradient(a.layer - 1, a.micro_batch, sent.end);
        return sent;
      }
      case Kind::reduce:
        return exchange(cost_of(costs_.buckets, a.bucket), Purpose::gradients);
      case Kind::fetch: {
        const Span fetched = on(storage_, group.fetch.seconds, now_);
        grown(fetched_, a.group) = fetched.end;
        return fetched;
      }
      case Kind::gather: {
        add(sum_.values, group.values);
        const Span gathered = exchange(group.gather, Purpose::parameters, grown(fetched_, a.group));
        grown(gathered_, a.group) = gathered.end;
        return gathered;
      }
      case Kind::wait_unshard:
        return wait_until(grown(gathered_, a.group), sum_.exposed);
      case Kind::reshard:
        add(sum_.values, -group.values);
        return {now_, now_};
      case Kind::alloc_grads:
        return alloc_grads(a.group, group.gradients);
      case Kind::scatter: {
        const Span scattered = exchange(group.scatter, Purpose::gradients);
        scattering_.push_back(
            {a.group, scattered.end, std::exchange(grown(allocated_, a.group), 0)});
        return scattered;
      }
      case Kind::tie:
        return wait_for(exchange(costs_.tie, Purpose::tied_gradients));
      case Kind::synchronize:
        return synchronize();
      case Kind::update: {
        synchronize();
        sum_.updating += costs_.update;
        return pass(costs_.update);
      }
      case Kind::push:
        synchronize();
        return wait_for(exchange(costs_.push, Purpose::push));
    }
    return {now_, now_};
  }

  Span forward(const Action& a, const StepCosts::Layer& layer) {
    wait_for_source(a);
    // The message is now the layer's input, which the layer keeps.
    if (input_came_[messages_.at(a)]) hold_message(-message(a.layer - 1).bytes);
    add(sum_.activations, layer.kept);
    work_with(layer.forward_workspace);
    const Span ran = compute(layer.forward);
    if (messages_.owner(a.layer + 1) == rank_)
      messages_.give_input(a.layer + 1, a.micro_batch, ran.end);
    return ran;
  }

  Span backward(const Action& a, const StepCosts::Layer& layer, double seconds) {
    wait_for_source(a);
    if (gradient_came_[messages_.at(a)]) {
      hold_message(-message(a.layer).bytes);
      gone_ += message(a.layer).bytes;
    }
    work_with(layer.backward_workspace);
    std::int64_t freed = layer.kept;
    if (is_recomputed(a.layer))
      freed += layer.recomputed;
    else if (a.kind == Kind::input)
      freed -= layer.deferred;
    add(sum_.activations, -freed);
    const Span ran = compute(seconds);
    if (messages_.owner(a.layer - 1) == rank_)
      messages_.give_gradient(a.layer - 1, a.micro_batch, ran.end);
    return ran;
  }

  // An output has certainly gone when its gradient is back. Its memory is released at the next
  // send.
  Span send(double& lane, const StepCosts::Transfer& what) {
    hold_message(what.bytes);
    hold_message(-std::exchange(gone_, 0));
    count(what, Purpose::activations);
    return on(lane, what.seconds, now_);
  }

  Span alloc_grads(int group, std::int64_t bytes) {
    const double begin = now_;
    std::vector<Scattering> left;
    for (std::size_t i = 0; i < scattering_.size(); ++i) {
      if (scattering_[i].group == group || Shards::is_due(i, scattering_.size()))
        finish(scattering_[i]);
      else
        left.push_back(scattering_[i]);
    }
    scattering_ = std::move(left);
    add(sum_.gradients, bytes);
    grown(allocated_, group) = bytes;
    return {begin, now_};
  }

  void finish(const Scattering& one) {
    wait_until(one.end, sum_.exposed);
    add(sum_.gradients, -one.bytes);
  }

  Span synchronize() {
    const double begin = now_;
    for (const Scattering& one : scattering_) finish(one);
    scattering_.clear();
    for (const double lane : {exchange_, up_, down_}) wait_until(lane, sum_.exposed);
    hold_message(-message_bytes_);
    gone_ = 0;
    return {begin, now_};
  }

  Span exchange(const StepCosts::Transfer& what, Purpose purpose, double earliest = 0) {
    count(what, purpose);
    sum_.exchanging += what.seconds;
    return on(exchange_, what.seconds, std::max(now_, earliest));
  }

  void count(const StepCosts::Transfer& what, Purpose purpose) {
    if (what.bytes > 0) sum_.bytes[purpose] += what.bytes;
  }

  static Span on(double& lane, double seconds, double earliest) {
    const double begin = std::max(lane, earliest);
    lane = begin + seconds;
    return {begin, lane};
  }

  Span compute(double seconds) {
    sum_.computing += seconds;
    return pass(seconds);
  }
  Span pass(double seconds) {
    const double begin = now_;
    now_ += seconds;
    return {begin, now_};
  }
  Span wait_until(double time, double& waited) {
    const double begin = now_;
    now_ = std::max(now_, time);
    waited += now_ - begin;
    return {begin, now_};
  }
  Span wait_for(const Span& exchanged) {
    wait_until(exchanged.end, sum_.exposed);
    return exchanged;
  }
  void wait_for_source(const Action& a) {
    if (messages_.source(a)) wait_until(*messages_.arrival(a), sum_.starved);
  }

  void hold_message(std::int64_t bytes) {
    message_bytes_ += bytes;
    add(sum_.activations, bytes);
  }
  void work_with(std::int64_t workspace) {
    add(sum_.activations, workspace);
    add(sum_.activations, -workspace);
  }
  bool is_recomputed(int layer) const {
    return std::size_t(layer) < recomputed_.size() && recomputed_[std::size_t(layer)];
  }
  StepCosts::Transfer message(int boundary) const { return cost_of(costs_.boundaries, boundary); }

  const int rank_;
  const Table& table_;
  const StepCosts& costs_;
  Messages& messages_;
  std::size_t index_ = 0;
  RankCosts sum_;

  double now_ = 0;                                         // time of the computation
  double up_ = 0, down_ = 0, exchange_ = 0, storage_ = 0;  // lanes: when each becomes free
  std::vector<double> fetched_, gathered_;                 // by group: when it is available
  std::vector<Scattering> scattering_;                     // in order
  std::vector<std::int64_t> allocated_;                    // by group: bytes of its gradients
  std::vector<char> recomputed_;                           // by layer
  std::vector<bool> input_came_, gradient_came_;           // by layer and micro-batch
  std::int64_t message_bytes_ = 0;                         // part of the activations
  std::int64_t gone_ = 0;                                  // part of these: certainly sent
  int gradients_sent_ = 0;
};

// A waiting rank waits for exactly one other, so following these waits ends in a circle.
[[noreturn]] void throw_deadlock(const std::vector<Rank>& ranks, const Messages& messages,
                                 int rank) {
  const auto next_rank = [&](int r) { return messages.owner(*ranks[std::size_t(r)].awaited()); };
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Rank& waiting = ranks[std::size_t(rank)];
    const int other = next_rank(rank);
    if (ranks[std::size_t(other)].ended())
      throw InvalidArgument(fmt::format(
          "action {} of rank {}, {}, waits for layer {} of rank {}, which never sends it",
          waiting.index(), rank, to_string(waiting.next()), *waiting.awaited(), other));
    rank = other;
  }
  const int first = rank;
  std::vector<Deadlock::Wait> circle;
  std::string text;
  do {
    const Rank& waiting = ranks[std::size_t(rank)];
    const int other = next_rank(rank);
    circle.push_back({rank, waiting.index(), *waiting.awaited(), other});
    text += fmt::format("{} action {} of rank {}, {}, waits for layer {} of rank {}",
                        rank == first ? "" : ";", waiting.index(), rank, to_string(waiting.next()),
                        circle.back().layer, other);
    rank = other;
  } while (rank != first);
  throw Deadlock("the ranks of the step wait for each other for ever:" + text, std::move(circle));
}

}  // namespace

std::vector<RankCosts> walk(std::span<const Table> tables, const StepCosts& costs,
                            const Visitor& visit) {
  Messages messages(tables);
  std::vector<Rank> ranks;
  for (const Table& table : tables) ranks.emplace_back(int(ranks.size()), table, costs, messages);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < ranks.size(); ++r)
      for (Rank& rank = ranks[r]; !rank.ended() && !rank.awaited(); moved = true) {
        const std::size_t index = rank.index();
        const TimedAction timed = rank.step();
        if (visit) visit(int(r), index, timed, rank.costs());
      }
  }
  std::vector<RankCosts> sums;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].ended()) throw_deadlock(ranks, messages, int(r));
    sums.push_back(ranks[r].costs());
  }
  return sums;
}

RankCosts walk(const Table& table, const StepCosts& costs, const Visitor& visit) {
  return walk(std::span(&table, 1), costs, visit).front();
}

}  // namespace echelon
