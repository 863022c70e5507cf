// Accelerated gradient descent (Nesterov, 1983) with restarts (O'Donoghue and Candès, 2015). The
// step is 1 / L: the Hessian of a text's loss is at most |counts|^2 / 2 times the identity, and
// with every weight scaled by the root of its word's mean square count, at most half of one more
// than the largest number of distinct words in a text.
#include "echelon/lab/bag_of_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "echelon/base/error.h"

namespace echelon {
namespace {

constexpr int most_labels = 65536, most_steps = 2000;
constexpr double small_gradient = 1e-4;

struct Count {
  int word;
  double count;
};

struct Text {
  std::vector<Count> counts;
  int label;
};

template <class Fn>
void each_word(std::string_view text, Fn fn) {
  std::size_t at = 0;
  while ((at = text.find_first_not_of(' ', at)) != text.npos) {
    const auto end = std::min(text.find(' ', at), text.size());
    fn(text.substr(at, end - at));
    at = end;
  }
}

// Words beyond those of the training texts do not count.
class Vocabulary {
 public:
  std::vector<Text> counted(std::span<const LabelledText> texts, bool grows) {
    std::vector<Text> all;
    for (const auto& [text, label] : texts) {
      if (label < 0 || label >= most_labels)
        throw InvalidArgument(
            fmt::format("label {} of a text is not between 0 and {}", label, most_labels - 1));
      std::unordered_map<int, double> counts;
      each_word(text, [&](std::string_view word) {
        const std::string key(word);
        const auto known =
            grows ? words_.try_emplace(key, int(words_.size())).first : words_.find(key);
        if (known != words_.end()) counts[known->second] += 1;
      });
      Text& one = all.emplace_back();
      one.label = label;
      for (const auto& [word, count] : counts) one.counts.push_back({word, count});
      std::sort(one.counts.begin(), one.counts.end(),
                [](const Count& a, const Count& b) { return a.word < b.word; });
    }
    return all;
  }
  std::size_t size() const { return words_.size(); }

 private:
  std::unordered_map<std::string, int> words_;
};

// A constant and a weight per word, for each label.
class Model {
 public:
  Model(std::size_t words, std::size_t labels) : labels_(labels), all_((words + 1) * labels) {}

  double* of(std::size_t word) { return all_.data() + (word + 1) * labels_; }
  const double* of(std::size_t word) const { return all_.data() + (word + 1) * labels_; }
  double* constant() { return all_.data(); }
  std::vector<double>& all() { return all_; }
  const std::vector<double>& all() const { return all_; }

  void score(const Text& text, std::vector<double>& scores) const {
    std::copy_n(all_.data(), labels_, scores.data());
    for (const auto& [word, count] : text.counts)
      for (std::size_t c = 0; c < labels_; ++c) scores[c] += count * of(std::size_t(word))[c];
  }

 private:
  std::size_t labels_;
  std::vector<double> all_;
};

// Returns the objective.
double gradient_of(const Model& model, std::span<const Text> texts, std::size_t labels,
                   double penalty, Model& gradient) {
  std::vector<double> scores(labels);
  double loss = 0;
  std::fill(gradient.all().begin(), gradient.all().end(), 0.0);
  for (const auto& text : texts) {
    model.score(text, scores);
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double score : scores) sum += std::exp(score - top);
    loss += top + std::log(sum) - scores[std::size_t(text.label)];
    for (std::size_t c = 0; c < labels; ++c) {
      const double slope = std::exp(scores[c] - top) / sum - (int(c) == text.label ? 1.0 : 0.0);
      gradient.constant()[c] += slope;
      for (const auto& [word, count] : text.counts)
        gradient.of(std::size_t(word))[c] += slope * count;
    }
  }
  const double n = static_cast<double>(texts.size());
  double squares = 0;
  for (std::size_t i = 0; i < model.all().size(); ++i) {
    gradient.all()[i] = gradient.all()[i] / n + penalty * model.all()[i];
    squares += model.all()[i] * model.all()[i];
  }
  return loss / n + penalty / 2 * squares;
}

}  // namespace

double BagOfWords::accuracy(std::size_t begin) const {
  const auto from = right.begin() + static_cast<std::ptrdiff_t>(std::min(begin, right.size()));
  const auto texts = right.end() - from;
  return texts > 0 ? double(std::count(from, right.end(), true)) / double(texts) : 0;
}

BagOfWords bag_of_words(std::span<const LabelledText> training,
                        std::span<const LabelledText> validation, double penalty) {
  if (training.empty() || validation.empty())
    throw InvalidArgument("a bag of words needs texts to train on and texts to validate");
  Vocabulary vocabulary;
  const auto texts = vocabulary.counted(training, /*grows=*/true),
             unseen = vocabulary.counted(validation, /*grows=*/false);
  int labels = 2;
  for (const auto* all : {&texts, &unseen})
    for (const auto& text : *all) labels = std::max(labels, text.label + 1);

  // By weight, the inverse of a bound of its curvature.
  std::vector<double> squares(vocabulary.size() + 1, 0.0);
  std::size_t longest = 0;
  for (const auto& text : texts) {
    squares[0] += 1;
    longest = std::max(longest, text.counts.size() + 1);
    for (const auto& [word, count] : text.counts) squares[std::size_t(word) + 1] += count * count;
  }
  std::vector<double> step;
  for (const double square : squares) {
    const double curvature =
        0.5 * static_cast<double>(longest) * square / static_cast<double>(texts.size()) + penalty;
    step.insert(step.end(), std::size_t(labels), 1 / curvature);
  }

  const auto classes = std::size_t(labels);
  Model model(vocabulary.size(), classes), ahead = model, gradient = model;
  BagOfWords result;
  double momentum = 1, before = std::numeric_limits<double>::infinity();
  for (; result.steps < most_steps; ++result.steps) {
    result.objective = gradient_of(ahead, texts, classes, penalty, gradient);
    double norm = 0;
    for (const double g : gradient.all()) norm += g * g;
    result.gradient = std::sqrt(norm);
    result.converged = result.gradient < small_gradient;
    if (result.converged) break;
    if (result.objective > before) momentum = 1;  // it has run past the minimum
    before = result.objective;
    const double next = (1 + std::sqrt(1 + 4 * momentum * momentum)) / 2,
                 carry = (momentum - 1) / next;
    momentum = next;
    for (std::size_t i = 0; i < model.all().size(); ++i) {
      const double moved = ahead.all()[i] - step[i] * gradient.all()[i];
      ahead.all()[i] = moved + carry * (moved - model.all()[i]);
      model.all()[i] = moved;
    }
  }

  std::vector<double> scores(classes);
  for (const auto& text : unseen) {
    ahead.score(text, scores);
    const auto best = std::max_element(scores.begin(), scores.end()) - scores.begin();
    result.right.push_back(best == text.label);
  }
  return result;
}

}  // namespace echelon
