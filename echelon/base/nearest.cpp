// Edit distance with transpositions (optimal string alignment): row i holds the distances from the
// first i letters of one name to every prefix of the other. Case and the kind of dash are ignored.
#include <algorithm>
#include <cctype>
#include <utility>

#include "echelon/base/options.h"

namespace echelon {

namespace {

std::string folded(std::string_view name) {
  std::string text(name);
  for (char& c : text)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last;
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last = std::exchange(last, row);
  }
  return last[b.size()];
}

}  // namespace

// Near means: at most a third of the letters are wrong, or one letter of a short name.
std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  const auto wanted = folded(name);
  std::string best;
  std::size_t best_distance = 0;
  for (const auto& candidate : known) {
    const auto longer = std::max(wanted.size(), candidate.size());
    const auto shorter = std::min(wanted.size(), candidate.size());
    const auto bound = std::max<std::size_t>(1, longer / 3);
    if (longer - shorter > bound) continue;
    const auto d = distance(wanted, folded(candidate));
    if (d > bound || d >= longer) continue;
    if (best.empty() || d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  }
  return best;
}

}  // namespace echelon
