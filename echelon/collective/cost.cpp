#include "echelon/collective/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/collective/schedule.h"

namespace echelon {
namespace {

double steps_of(int ranks) { return std::ceil(std::log2(double(ranks))); }

// If ranks are on several hosts, the slow link sets the pace.
LinkFigures pace_of(const Shape& shape, const Figures& figures) {
  return shape.hosts > 1 ? figures.tcp : figures.shared;
}

// `senders` ranks of each host send `bytes` to every other rank, through one network card per host.
double to_every_other(double bytes, double senders, const Shape& shape, const Figures& figures) {
  const double p = shape.ranks, g = shape.local;
  if (shape.hosts == 1) return (p - 1) * bytes * figures.shared.beta;
  return senders * (p - g) * bytes * figures.tcp.beta + (g - 1) * bytes * figures.shared.beta;
}

double all_reduce_cost(Algorithm algorithm, double n, const Shape& shape, const Figures& figures,
                       BufferKind buffers) {
  const double p = shape.ranks, m = shape.hosts, g = shape.local, gamma = figures.gamma;
  const double share = (p - 1) / p;
  const LinkFigures &in = figures.shared, &across = figures.tcp;
  switch (algorithm) {
    case Algorithm::ring:
    case Algorithm::bidirectional_ring: {
      const LinkFigures pace = pace_of(shape, figures);
      return 2 * (p - 1) * pace.alpha + 2 * share * n * pace.beta + share * n * gamma;
    }
    case Algorithm::recursive_doubling: {
      if (m == 1) return steps_of(shape.ranks) * (in.alpha + n * in.beta + n * gamma);
      return steps_of(shape.local) * (in.alpha + n * in.beta + n * gamma) +
             steps_of(shape.hosts) * (across.alpha + g * n * across.beta + n * gamma);
    }
    case Algorithm::rabenseifner: {
      const double lg = steps_of(shape.ranks);
      if (m == 1) return 2 * lg * in.alpha + 2 * share * n * in.beta + share * n * gamma;
      const double out = (m - 1) / m * n, inside = (share - (m - 1) / m) * n;
      return 2 * steps_of(shape.hosts) * across.alpha + 2 * steps_of(shape.local) * in.alpha +
             2 * g * out * across.beta + 2 * inside * in.beta + share * n * gamma;
    }
    case Algorithm::server:
      return 2 * (p - 1) * pace_of(shape, figures).alpha +
             2 * to_every_other(n / p, g, shape, figures) + share * n * gamma;
    case Algorithm::direct:
      return (p - 1) * (pace_of(shape, figures).alpha + n * gamma) +
             to_every_other(n, g, shape, figures);
    case Algorithm::hierarchical:
      return 2 * (g - 1) * in.alpha + 2 * ((g - 1) / g) * n * in.beta + (g - 1) / g * n * gamma +
             2 * (m - 1) * across.alpha + 2 * ((m - 1) / m) * n * across.beta +
             (m - 1) / m * (n / g) * gamma;
    case Algorithm::shared_direct:
      return in.alpha + n * in.beta + (p - 1) * n * (in.beta + gamma);
    case Algorithm::shared: {
      const double staging = buffers == BufferKind::registered ? 0 : 2 * n * in.beta;
      return 2 * in.alpha + staging + share * n * (in.beta + gamma);
    }
    default:
      return std::numeric_limits<double>::infinity();
  }
}

}  // namespace

std::string Shape::text() const {
  return fmt::format("{} rank{} on {} host{}", ranks, ranks == 1 ? "" : "s", hosts,
                     hosts == 1 ? "" : "s");
}

// Direct costs one barrier less but more per byte. The two lines cross where the bytes outweigh the
// barrier.
SharedCrossings shared_crossings(int ranks, const Figures& figures) {
  const double p = ranks, share = (p - 1) / p, alpha = figures.shared.alpha,
               beta = figures.shared.beta, gamma = figures.gamma;
  const auto crossing = [&](double byte) {
    const double saved = beta + (p - 1) * (beta + gamma) - byte;
    const double bytes = saved > 0 ? alpha / saved : 1e18;
    return std::size_t(std::min(bytes, 1e18));
  };
  return {crossing(share * (beta + gamma)), crossing(2 * beta + share * (beta + gamma))};
}

std::string Figures::json() const {
  return nlohmann::ordered_json{{"shared", {{"alpha", shared.alpha}, {"beta", shared.beta}}},
                                {"tcp", {{"alpha", tcp.alpha}, {"beta", tcp.beta}}},
                                {"gamma", gamma},
                                {"single_copy", single_copy},
                                {"measured", measured},
                                {"spread", spread}}
      .dump();
}

double Figures::age() const {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::max(0.0, std::chrono::duration<double>(now).count() - double(measured));
}

Figures Figures::parse(const std::string& json, const std::string& where) {
  return read(JsonReader::parse(json, where));
}

Figures Figures::read(const JsonReader& json) {
  const auto figure = [](const JsonReader& value) { return value.number(0, 1e6); };
  const auto shared = json.at("shared"), tcp = json.at("tcp");
  Figures figures;
  figures.shared = {figure(shared.at("alpha")), figure(shared.at("beta"))};
  figures.tcp = {figure(tcp.at("alpha")), figure(tcp.at("beta"))};
  figures.gamma = figure(json.at("gamma"));
  figures.single_copy = json.at("single_copy").boolean();
  constexpr std::int64_t latest = std::int64_t{1} << 40;
  if (json.has("measured")) figures.measured = json.at("measured").integer(0, latest);
  if (json.has("spread")) figures.spread = figure(json.at("spread"));
  return figures;
}

double cost(Operation operation, Algorithm algorithm, std::size_t bytes, const Shape& shape,
            const Figures& figures, BufferKind buffers) {
  if (shape.ranks == 1) return 0;
  const double n = double(bytes), p = shape.ranks, share = (p - 1) / p;
  const LinkFigures pace = pace_of(shape, figures);
  const double direct = to_every_other(n / p, shape.local, shape, figures);
  const double lg = steps_of(shape.ranks);
  if (operation == Operation::all_reduce)
    return all_reduce_cost(algorithm, n, shape, figures, buffers);
  if (algorithm == Algorithm::shared) {
    const double gamma = operation == Operation::reduce_scatter || operation == Operation::reduce
                             ? figures.gamma
                             : 0;
    return 2 * figures.shared.alpha + share * n * (figures.shared.beta + gamma);
  }
  switch (operation) {
    case Operation::reduce_scatter:
      if (algorithm == Algorithm::direct)
        return (p - 1) * pace.alpha + direct + share * n * figures.gamma;
      return (p - 1) * pace.alpha + share * n * (pace.beta + figures.gamma);
    case Operation::all_gather:
      return (p - 1) * pace.alpha +
             (algorithm == Algorithm::direct ? direct : share * n * pace.beta);
    case Operation::broadcast:
      if (algorithm == Algorithm::tree) return lg * (pace.alpha + n * pace.beta);
      return (lg + p - 1) * pace.alpha + 2 * share * n * pace.beta;
    case Operation::reduce:
      return lg * (pace.alpha + n * (pace.beta + figures.gamma));
    case Operation::barrier:
      return lg * pace.alpha;
    case Operation::gather:
    case Operation::scatter:
      return (p - 1) * pace.alpha + to_every_other(n / p, 1, shape, figures);
    default:
      return (p - 1) * pace.alpha + direct;
  }
}

std::vector<Algorithm> candidates(Operation operation, const Shape& shape) {
  if (shape.hosts == 1)
    return operation == Operation::all_reduce
               ? std::vector{Algorithm::shared_direct, Algorithm::shared}
               : std::vector{Algorithm::shared};
  auto all = message_algorithms(operation);
  if (operation == Operation::all_reduce) all.push_back(Algorithm::server);
  if (operation == Operation::all_reduce && shape.local > 1) all.push_back(Algorithm::hierarchical);
  return all;
}

std::vector<Choice> choose(Operation operation, const Shape& shape, const Figures& figures) {
  constexpr int largest = 40;
  constexpr std::size_t endless = std::numeric_limits<std::size_t>::max();
  const auto all = candidates(operation, shape);
  if (all.size() == 1) return {{endless, all.front()}};
  if (shape.hosts == 1) {  // where SharedGroup changes its path for private buffers
    const std::size_t staged = shared_crossings(shape.ranks, figures).staged;
    if (staged == 0) return {{endless, Algorithm::shared}};
    return {{staged - 1, Algorithm::shared_direct}, {endless, Algorithm::shared}};
  }
  std::vector<Choice> choices;
  for (int power = 0; power <= largest; ++power) {
    // Between two powers of two, the size in the middle (of the logarithm) represents all sizes.
    const auto bytes = std::size_t(std::exp2(power));
    const auto middle = std::size_t(std::exp2(power - 0.5));
    const auto best = *std::min_element(all.begin(), all.end(), [&](Algorithm a, Algorithm b) {
      return cost(operation, a, middle, shape, figures) <
             cost(operation, b, middle, shape, figures);
    });
    if (!choices.empty() && choices.back().algorithm == best)
      choices.back().bytes = bytes;
    else
      choices.push_back({bytes, best});
  }
  choices.back().bytes = endless;
  return choices;
}

}  // namespace echelon
