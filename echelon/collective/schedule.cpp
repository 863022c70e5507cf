#include "echelon/collective/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "echelon/base/error.h"

namespace echelon {
namespace {

int wrap(int rank, int size) { return (rank % size + size) % size; }

Piece part(Buffer buffer, const std::vector<std::size_t>& bounds, int index) {
  return {buffer, bounds[std::size_t(index)],
          bounds[std::size_t(index) + 1] - bounds[std::size_t(index)]};
}

Piece shifted(Piece piece, std::size_t begin) {
  piece.begin += begin;
  return piece;
}

// Ring. Reduce-scatter: in step s rank r sends part r-s to its right neighbour and adds part r-s-1
// from its left. After p-1 steps it holds the sum of part r+1. All-gather: the sums go round once
// more. 2(p-1) steps; each rank sends the vector twice, less two parts. `direction` is 1 or -1;
// parts begin at `offset`.
std::vector<Step> ring_all_reduce(std::size_t offset, std::size_t count, int rank, int size,
                                  int direction) {
  const auto bounds = even_parts(count, size);
  const auto chunk = [&](int index) {
    return shifted(part(Buffer::out, bounds, wrap(index, size)), offset);
  };
  const int right = wrap(rank + direction, size), left = wrap(rank - direction, size);
  std::vector<Step> steps;
  for (int s = 0; s < size - 1; ++s) {
    const Piece sent = chunk(rank - direction * s), received = chunk(rank - direction * (s + 1));
    steps.push_back({.to = right,
                     .send = sent,
                     .from = left,
                     .receive = received,
                     .combine = true,
                     .with = received,
                     .received_first = true,
                     .finish = s == size - 2});
  }
  for (int s = 0; s < size - 1; ++s)
    steps.push_back({.to = right,
                     .send = chunk(rank + direction * (1 - s)),
                     .from = left,
                     .receive = chunk(rank - direction * s)});
  return steps;
}

// If p is not a power of two, the first 2(p-q) ranks (q is the power of two below p) fold in pairs:
// the even rank sends its vector to the odd rank, sits out, and receives the result. `numbers` are
// the q remaining ranks.
struct Fold {
  int extra;   // ranks that sit out
  int number;  // of this rank among the remaining ones; -1 if it sits out
  explicit Fold(int rank, int size) : extra(size - int(std::bit_floor(unsigned(size)))) {
    if (rank >= 2 * extra)
      number = rank - extra;
    else
      number = rank % 2 == 1 ? rank / 2 : -1;
  }
  int rank_of(int n) const { return n < extra ? 2 * n + 1 : n + extra; }
};

void fold_in(std::vector<Step>& steps, const Fold& fold, int rank, Piece whole) {
  if (rank >= 2 * fold.extra) return;
  if (fold.number < 0)
    steps.push_back({.to = rank + 1, .send = whole});
  else
    steps.push_back({.from = rank - 1,
                     .receive = whole,
                     .combine = true,
                     .with = whole,
                     .received_first = true});
}

void fold_out(std::vector<Step>& steps, const Fold& fold, int rank, Piece whole) {
  if (rank >= 2 * fold.extra) return;
  if (fold.number < 0)
    steps.push_back({.from = rank + 1, .receive = whole});
  else
    steps.push_back({.to = rank - 1, .send = whole});
}

// Recursive doubling: in step s, rank r exchanges whole vectors with r xor 2^s. lg p steps, n lg p
// bytes. Both sides add the lower rank's part first, so all get the same bits.
std::vector<Step> doubling_all_reduce(std::size_t count, int rank, int size) {
  const Fold fold(rank, size);
  const Piece whole{Buffer::out, 0, count};
  std::vector<Step> steps;
  fold_in(steps, fold, rank, whole);
  if (fold.number >= 0) {
    for (int distance = 1; distance < size - fold.extra; distance *= 2) {
      const int other = fold.rank_of(fold.number ^ distance);
      steps.push_back({.to = other,
                       .send = whole,
                       .from = other,
                       .receive = whole,
                       .combine = true,
                       .with = whole,
                       .received_first = other < rank});
    }
  }
  fold_out(steps, fold, rank, whole);
  return steps;
}

// Rabenseifner: recursive halving leaves rank r with the sum of part r (each step exchanges half of
// what is left with r xor distance), recursive doubling gathers. 2 lg p steps, 2((p-1)/p) n bytes.
std::vector<Step> rabenseifner_all_reduce(std::size_t count, int rank, int size) {
  const Fold fold(rank, size);
  const int left = size - fold.extra;
  const auto bounds = even_parts(count, left);
  const auto range = [&](int begin, int end) {
    return Piece{Buffer::out, bounds[std::size_t(begin)],
                 bounds[std::size_t(end)] - bounds[std::size_t(begin)]};
  };
  const Piece whole{Buffer::out, 0, count};
  std::vector<Step> steps;
  fold_in(steps, fold, rank, whole);
  if (fold.number >= 0) {
    int begin = 0, end = left;
    for (int distance = left / 2; distance > 0; distance /= 2) {
      const int other = fold.rank_of(fold.number ^ distance), middle = (begin + end) / 2;
      const bool upper = fold.number & distance;
      const Piece low = range(begin, middle), high = range(middle, end);
      steps.push_back({.to = other,
                       .send = upper ? low : high,
                       .from = other,
                       .receive = upper ? high : low,
                       .combine = true,
                       .with = upper ? high : low,
                       .received_first = other < rank,
                       .finish = distance == 1});
      (upper ? begin : end) = middle;
    }
    for (int distance = 1; distance < left; distance *= 2) {
      const int other = fold.rank_of(fold.number ^ distance);
      const int first = fold.number & ~(2 * distance - 1);
      const Piece low = range(first, first + distance),
                  high = range(first + distance, first + 2 * distance);
      const bool upper = fold.number & distance;
      steps.push_back(
          {.to = other, .send = upper ? high : low, .from = other, .receive = upper ? low : high});
    }
  }
  fold_out(steps, fold, rank, whole);
  return steps;
}

// Direct: every rank sends its whole vector to every other rank and sums the p vectors in rank
// order. p-1 messages of n bytes. Received vectors are kept in scratch, rank k's at k n.
Schedule direct_all_reduce(std::size_t count, int rank, int size) {
  Schedule schedule;
  schedule.scratch = count * std::size_t(size);
  schedule.sum_scratch = true;
  schedule.own = {Buffer::in, 0, count};
  std::vector<Step> steps;
  for (int s = 1; s < size; ++s) {
    const int to = wrap(rank + s, size), from = wrap(rank - s, size);
    steps.push_back({.to = to,
                     .send = {Buffer::in, 0, count},
                     .from = from,
                     .receive = {Buffer::scratch, count * std::size_t(from), count}});
  }
  schedule.lanes = {steps};
  return schedule;
}

// Ring: in step s, rank r sends the partial sum of part r-s-1 and adds its own part r-s-2. After
// p-1 steps it has part r. Partial sums are kept in scratch.
Schedule ring_reduce_scatter(const std::vector<std::size_t>& bounds, int rank, int size) {
  Schedule schedule;
  schedule.scratch = bounds.back();
  std::vector<Step> steps;
  for (int s = 0; s < size - 1; ++s) {
    const int sent = wrap(rank - s - 1, size), received = wrap(rank - s - 2, size);
    const bool last = s == size - 2;
    const Piece own = part(Buffer::in, bounds, received);
    steps.push_back({.to = wrap(rank + 1, size),
                     .send = part(s == 0 ? Buffer::in : Buffer::scratch, bounds, sent),
                     .from = wrap(rank - 1, size),
                     .receive = last ? Piece{Buffer::out, 0, own.count}
                                     : part(Buffer::scratch, bounds, received),
                     .combine = true,
                     .with = own,
                     .received_first = true,
                     .finish = last});
  }
  schedule.lanes = {steps};
  return schedule;
}

// Direct: each rank sends every other rank its part, then sums the p versions of its own part.
Schedule direct_reduce_scatter(const std::vector<std::size_t>& bounds, int rank, int size) {
  Schedule schedule;
  const Piece own = part(Buffer::in, bounds, rank);
  schedule.scratch = own.count * std::size_t(size);
  schedule.sum_scratch = true;
  schedule.own = own;
  std::vector<Step> steps;
  for (int s = 1; s < size; ++s) {
    const int to = wrap(rank + s, size), from = wrap(rank - s, size);
    steps.push_back({.to = to,
                     .send = part(Buffer::in, bounds, to),
                     .from = from,
                     .receive = {Buffer::scratch, own.count * std::size_t(from), own.count}});
  }
  schedule.lanes = {steps};
  return schedule;
}

// Ring: part r-s goes to the right in step s. p-1 steps, n less one part.
std::vector<Step> ring_all_gather(const std::vector<std::size_t>& bounds, int rank, int size) {
  std::vector<Step> steps;
  for (int s = 0; s < size - 1; ++s)
    steps.push_back({.to = wrap(rank + 1, size),
                     .send = part(Buffer::out, bounds, wrap(rank - s, size)),
                     .from = wrap(rank - 1, size),
                     .receive = part(Buffer::out, bounds, wrap(rank - s - 1, size))});
  return steps;
}

std::vector<Step> direct_all_gather(const std::vector<std::size_t>& bounds, int rank, int size) {
  std::vector<Step> steps;
  for (int s = 1; s < size; ++s) {
    const int to = wrap(rank + s, size), from = wrap(rank - s, size);
    steps.push_back({.to = to,
                     .send = part(Buffer::out, bounds, rank),
                     .from = from,
                     .receive = part(Buffer::out, bounds, from)});
  }
  return steps;
}

// Binomial tree, with ranks counted from the root: v receives from v minus its lowest bit, then
// sends to v + 2^i for every lower i, the farthest first. lg p steps.
std::vector<Step> tree_broadcast(std::size_t count, int root, int rank, int size) {
  const Piece whole{Buffer::out, 0, count};
  const int v = wrap(rank - root, size);
  int low = v == 0 ? int(std::bit_ceil(unsigned(size))) : v & -v;
  std::vector<Step> steps;
  if (v != 0) steps.push_back({.from = wrap(v - low + root, size), .receive = whole});
  for (low /= 2; low > 0; low /= 2)
    if (v + low < size) steps.push_back({.to = wrap(v + low + root, size), .send = whole});
  return steps;
}

// The root sends each rank its part, then a ring all-gathers. The root sends n less its own part
// twice; the others send n less a part.
std::vector<Step> scatter_all_gather_broadcast(std::size_t count, int root, int rank, int size) {
  const auto bounds = even_parts(count, size);
  std::vector<Step> steps;
  if (rank == root) {
    for (int s = 1; s < size; ++s) {
      const int to = wrap(root + s, size);
      steps.push_back({.to = to, .send = part(Buffer::out, bounds, to)});
    }
  } else {
    steps.push_back({.from = root, .receive = part(Buffer::out, bounds, rank)});
  }
  for (const auto& step : ring_all_gather(bounds, rank, size)) steps.push_back(step);
  return steps;
}

// The inverse tree: v adds what v + 2^i sends, with i ascending, then sends the sum to v minus its
// lowest bit.
std::vector<Step> tree_reduce(std::size_t count, int root, int rank, int size) {
  const Piece whole{Buffer::out, 0, count};
  const int v = wrap(rank - root, size);
  std::vector<Step> steps;
  for (int low = 1; low < size; low *= 2) {
    if (v & low) {
      steps.push_back({.to = wrap(v - low + root, size), .send = whole});
      break;
    }
    if (v + low < size)
      steps.push_back(
          {.from = wrap(v + low + root, size), .receive = whole, .combine = true, .with = whole});
  }
  return steps;
}

std::vector<Step> direct_gather(const std::vector<std::size_t>& bounds, int root, int rank,
                                int size) {
  std::vector<Step> steps;
  if (rank != root)
    return {{.to = root, .send = {Buffer::in, 0, part(Buffer::in, bounds, rank).count}}};
  for (int s = 1; s < size; ++s) {
    const int from = wrap(root + s, size);
    steps.push_back({.from = from, .receive = part(Buffer::out, bounds, from)});
  }
  return steps;
}

std::vector<Step> direct_scatter(const std::vector<std::size_t>& bounds, int root, int rank,
                                 int size) {
  std::vector<Step> steps;
  if (rank != root)
    return {{.from = root, .receive = {Buffer::out, 0, part(Buffer::out, bounds, rank).count}}};
  for (int s = 1; s < size; ++s) {
    const int to = wrap(root + s, size);
    steps.push_back({.to = to, .send = part(Buffer::in, bounds, to)});
  }
  return steps;
}

// In step s, rank r sends to r+s and receives from r-s.
std::vector<Step> direct_all_to_all(const Call& call, int rank, int size) {
  const auto there = bounds_of(call.counts), back = bounds_of(call.back);
  std::vector<Step> steps;
  for (int s = 1; s < size; ++s) {
    const int to = wrap(rank + s, size), from = wrap(rank - s, size);
    steps.push_back({.to = to,
                     .send = part(Buffer::in, there, to),
                     .from = from,
                     .receive = part(Buffer::out, back, from)});
  }
  return steps;
}

// Dissemination: in step s, rank r sends a byte to r + 2^s and receives one from r - 2^s. It
// forwards the byte that arrived in the previous step, so it cannot send early. After lg p steps
// every rank has heard from every other.
std::vector<Step> dissemination(int rank, int size) {
  std::vector<Step> steps;
  for (int distance = 1, s = 0; distance < size; distance *= 2, ++s)
    steps.push_back({.to = wrap(rank + distance, size),
                     .send = {Buffer::scratch, std::size_t(s), 1},
                     .from = wrap(rank - distance, size),
                     .receive = {Buffer::scratch, std::size_t(s) + 1, 1}});
  return steps;
}

Schedule in_out(std::vector<Step> steps) {
  Schedule schedule;
  schedule.lanes = {std::move(steps)};
  schedule.starts_in_out = true;
  return schedule;
}

Schedule plain(std::vector<Step> steps) {
  Schedule schedule;
  schedule.lanes = {std::move(steps)};
  return schedule;
}

}  // namespace

std::vector<std::size_t> even_parts(std::size_t count, int parts) {
  const std::size_t per = count / std::size_t(parts), longer = count % std::size_t(parts);
  std::vector<std::size_t> bounds = {0};
  for (std::size_t i = 0; i < std::size_t(parts); ++i)
    bounds.push_back(bounds.back() + per + (i < longer));
  return bounds;
}

std::vector<Algorithm> message_algorithms(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return {Algorithm::ring, Algorithm::bidirectional_ring, Algorithm::recursive_doubling,
              Algorithm::rabenseifner, Algorithm::direct};
    case Operation::reduce_scatter:
    case Operation::all_gather:
      return {Algorithm::ring, Algorithm::direct};
    case Operation::broadcast:
      return {Algorithm::tree, Algorithm::scatter_all_gather};
    case Operation::reduce:
      return {Algorithm::tree};
    default:
      return {Algorithm::direct};
  }
}

Schedule make_schedule(const Call& call, Algorithm algorithm, int rank, int size) {
  const auto suits = message_algorithms(call.operation);
  if (std::find(suits.begin(), suits.end(), algorithm) == suits.end()) {
    std::string names;
    for (const auto one : suits) names += (names.empty() ? "" : ", ") + std::string(name(one));
    throw InvalidArgument(fmt::format("{} cannot be done by {}; it can be by {}",
                                      name(call.operation), name(algorithm), names));
  }
  switch (call.operation) {
    case Operation::all_reduce: {
      if (algorithm == Algorithm::direct) return direct_all_reduce(call.count, rank, size);
      if (algorithm == Algorithm::ring)
        return in_out(ring_all_reduce(0, call.count, rank, size, 1));
      if (algorithm == Algorithm::bidirectional_ring) {
        const std::size_t half = (call.count + 1) / 2;
        Schedule schedule = in_out(ring_all_reduce(0, half, rank, size, 1));
        schedule.lanes.push_back(ring_all_reduce(half, call.count - half, rank, size, -1));
        return schedule;
      }
      Schedule schedule = in_out(algorithm == Algorithm::rabenseifner
                                     ? rabenseifner_all_reduce(call.count, rank, size)
                                     : doubling_all_reduce(call.count, rank, size));
      schedule.finish_here = algorithm == Algorithm::recursive_doubling;
      return schedule;
    }
    case Operation::reduce_scatter:
      return algorithm == Algorithm::ring
                 ? ring_reduce_scatter(bounds_of(call.counts), rank, size)
                 : direct_reduce_scatter(bounds_of(call.counts), rank, size);
    case Operation::all_gather:
      return plain(algorithm == Algorithm::ring
                       ? ring_all_gather(bounds_of(call.counts), rank, size)
                       : direct_all_gather(bounds_of(call.counts), rank, size));
    case Operation::broadcast:
      return plain(algorithm == Algorithm::tree
                       ? tree_broadcast(call.count, call.root, rank, size)
                       : scatter_all_gather_broadcast(call.count, call.root, rank, size));
    case Operation::reduce: {
      Schedule schedule = in_out(tree_reduce(call.count, call.root, rank, size));
      schedule.finish_here = rank == call.root;
      return schedule;
    }
    case Operation::gather:
      return plain(direct_gather(bounds_of(call.counts), call.root, rank, size));
    case Operation::scatter:
      return plain(direct_scatter(bounds_of(call.counts), call.root, rank, size));
    case Operation::all_to_all:
      return plain(direct_all_to_all(call, rank, size));
    case Operation::barrier: {
      Schedule schedule = plain(dissemination(rank, size));
      schedule.scratch = 64;
      return schedule;
    }
    default:
      break;
  }
  throw InvalidArgument(fmt::format("{} is no operation of a group", name(call.operation)));
}

}  // namespace echelon
