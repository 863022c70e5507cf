#include "echelon/train/best_so_far.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {
namespace {

// JSON has no infinite numbers.
nlohmann::ordered_json number(double score) {
  if (std::isfinite(score)) return score;
  return score > 0 ? "inf" : "-inf";
}

}  // namespace

bool BestSoFar::add(std::int64_t step, double score) {
  const bool better =
      !std::isnan(score) &&
      (!best_ || (better_ == Better::more ? score > best_->score : score < best_->score));
  if (better) best_ = {step, score};
  since_ = better ? 0 : since_ + 1;
  return better;
}

std::string BestSoFar::text() const {
  nlohmann::ordered_json all = {{"score", score_}, {"since", since_}};
  if (best_) {
    all["step"] = best_->step;
    all["best"] = number(best_->score);
  }
  return all.dump();
}

void BestSoFar::restore(const std::string& text) {
  if (text.empty()) return;
  try {
    const auto all = nlohmann::json::parse(text);
    if (all.at("score").get<std::string>() != score_) return;
    std::optional<Validation> best;
    if (all.contains("step")) {
      const auto& score = all.at("best");
      best = {all.at("step").get<std::int64_t>(),
              score.is_string() ? (score == "inf" ? INFINITY : -INFINITY) : score.get<double>()};
    }
    since_ = all.at("since").get<std::int64_t>();
    best_ = best;
  } catch (const nlohmann::json::exception&) {
    throw Corrupt("a state's note about its best validation cannot be read: " + text);
  }
}

std::string text_of(const std::string& score, const BestSoFar::Validation& validation) {
  return nlohmann::ordered_json{
      {"score", score}, {"step", validation.step}, {"value", number(validation.score)}}
      .dump();
}

}  // namespace echelon
