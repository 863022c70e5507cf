// Greedy covering: the first uncovered pair of values is completed to a choice, factor by factor,
// each time with the value that covers the most new pairs with the values chosen so far. If that
// leads to no valid choice, the next best value is tried. Pairs are covered in fp64 where possible,
// because fp64 shows the smallest mistake.
#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "echelon/comm/mesh.h"
#include "echelon/verify/matrix.h"

namespace echelon {
namespace {

using namespace matrix;

// Pairs of values of two factors; the first factor has the smaller number.
class Pairs {
 public:
  using Pair = std::tuple<std::size_t, int, std::size_t, int>;

  Pairs() {
    const auto& all = matrix_factors();
    for (std::size_t f = 0; f < all.size(); ++f)
      for (int v = 0; v < std::ssize(all[f].values); ++v)
        for (std::size_t g = f + 1; g < all.size(); ++g)
          for (int w = 0; w < std::ssize(all[g].values); ++w) left_.insert({f, v, g, w});
  }

  bool empty() const { return left_.empty(); }
  Pair first() const { return *left_.begin(); }
  void drop(const Pair& pair) { left_.erase(pair); }
  void drop_all_of(const MatrixChoice& choice) {
    for (std::size_t f = 0; f < choice.size(); ++f)
      for (std::size_t g = f + 1; g < choice.size(); ++g) left_.erase({f, choice[f], g, choice[g]});
  }
  // The new pairs that a value would cover with the values chosen so far.
  int made_by(const MatrixChoice& choice, std::size_t factor, int value) const {
    int made = 0;
    for (std::size_t g = 0; g < choice.size(); ++g)
      if (g != factor && choice[g] >= 0)
        made += g < factor ? left_.contains({g, choice[g], factor, value})
                           : left_.contains({factor, value, g, choice[g]});
    return made;
  }

 private:
  std::set<Pair> left_;
};

// `used` counts how often each value was taken: of values with equally many new pairs, the rarest
// comes first.
bool complete(MatrixChoice& choice, const Pairs& left, const std::vector<std::vector<int>>& used) {
  if (!can_go_together(choice)) return false;
  const auto open = std::find(choice.begin(), choice.end(), -1);
  if (open == choice.end()) return true;
  const auto factor = std::size_t(open - choice.begin());
  std::vector<int> values(matrix_factors()[factor].values.size());
  std::iota(values.begin(), values.end(), 0);
  std::stable_sort(values.begin(), values.end(), [&](int a, int b) {
    const auto worth = [&](int v) {
      return std::pair(-left.made_by(choice, factor, v), used[factor][std::size_t(v)]);
    };
    return worth(a) < worth(b);
  });
  for (const int v : values) {
    choice[factor] = v;
    if (complete(choice, left, used)) return true;
  }
  choice[factor] = -1;
  return false;
}

}  // namespace

std::vector<MatrixChoice> pairwise_choices() {
  const auto& factors = matrix_factors();
  std::vector<std::vector<int>> used;
  for (const auto& factor : factors) used.emplace_back(factor.values.size(), 0);
  std::vector<MatrixChoice> chosen;
  const auto cover = [&](Pairs left, const MatrixChoice& fixed) {
    for (const auto& choice : chosen) left.drop_all_of(choice);
    while (!left.empty()) {
      const auto pair = left.first();
      const auto [f, v, g, w] = pair;
      MatrixChoice choice = fixed;
      choice[f] = v;
      choice[g] = w;
      left.drop(pair);  // or it is impossible
      if (choice[precision] != fixed[precision] && fixed[precision] >= 0) continue;
      if (!complete(choice, left, used)) continue;
      left.drop_all_of(choice);
      for (std::size_t i = 0; i < choice.size(); ++i) ++used[i][std::size_t(choice[i])];
      chosen.push_back(std::move(choice));
    }
  };
  MatrixChoice fixed(factors.size(), -1);
  fixed[precision] = 0;
  cover({}, fixed);
  fixed[precision] = -1;
  cover({}, fixed);
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto& a, const auto& b) { return a[mesh] < b[mesh]; });
  return chosen;
}

// Takes the choice with the most missing values each time. The world, a mesh of all three
// dimensions, and a tensor group with and without sequence parallelism count as values too: without
// a tensor group there are no rows to split.
std::vector<MatrixChoice> quick_choices() {
  const auto values_of = [](const MatrixChoice& choice) {
    std::set<std::pair<std::size_t, int>> values;
    for (std::size_t f = mesh + 1; f < choice.size(); ++f) values.insert({f, choice[f]});
    const MeshShape shape = shape_of(choice);
    const int p = shape.pipeline, d = shape.data, t = shape.tensor;
    values.insert({mesh, p * d * t});
    if (p > 1 && d > 1 && t > 1) values.insert({mesh, largest_world + 1});
    if (t > 1) values.insert({mesh, largest_world + 2 + choice[sequence]});
    return values;
  };
  std::vector<MatrixChoice> from = pairwise_choices(), chosen;
  std::erase_if(from, [](const MatrixChoice& choice) {
    const int world = world_of(choice);
    return world != 2 && world != 3 && world != 4 && world != 8;
  });
  std::set<std::pair<std::size_t, int>> left;
  for (const auto& choice : from) left.merge(values_of(choice));
  while (!left.empty()) {
    const auto missing = [&](const MatrixChoice& choice) {
      const auto values = values_of(choice);
      return std::count_if(values.begin(), values.end(),
                           [&](const auto& one) { return left.contains(one); });
    };
    const auto best = std::max_element(from.begin(), from.end(), [&](const auto& a, const auto& b) {
      return missing(a) < missing(b);
    });
    for (const auto& one : values_of(*best)) left.erase(one);
    chosen.push_back(*best);
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto& a, const auto& b) { return a[mesh] < b[mesh]; });
  return chosen;
}

}  // namespace echelon
