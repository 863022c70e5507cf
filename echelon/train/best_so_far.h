// The best of a run's validations, and when to stop because none has been better for a while.
//
//   BestSoFar best("f1", Better::more, /*patience=*/3);
//   if (best.add(step, score)) keep_weights();   // better than every validation before
//   if (best.is_exhausted()) stop();             // three in a row were not
//
// It depends on nothing but the scores, so ranks that see the same scores decide the same. A
// resumed run continues the count from text().
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace echelon {

enum class Better { less, more };  // of a score

class BestSoFar {
 public:
  struct Validation {
    std::int64_t step = 0;
    double score = 0;
  };

  // `score`: its name. A patience of 0 never ends.
  BestSoFar(std::string score, Better better, std::int64_t patience)
      : score_(std::move(score)), better_(better), patience_(patience) {}

  // Adds the next validation and returns whether it is the best so far. An equal score is not
  // better, and one that is not a number is worse than any.
  bool add(std::int64_t step, double score);
  bool is_exhausted() const { return patience_ > 0 && since_ >= patience_; }

  const std::string& score_name() const { return score_; }
  const std::optional<Validation>& best() const { return best_; }  // none yet
  std::int64_t since_best() const { return since_; }               // validations

  // All of it, for a state. restore() takes it back; the text of another score is ignored, since
  // its numbers say nothing about this one. Throws Corrupt if it is no such text.
  std::string text() const;
  void restore(const std::string& text);

  // Lets the next validation be the best. The count goes on.
  void forget_best() { best_.reset(); }

 private:
  std::string score_;
  Better better_;
  std::int64_t patience_;
  std::optional<Validation> best_;
  std::int64_t since_ = 0;
};

// A validation as JSON: its score by name, its step. Equal texts are equal validations.
std::string text_of(const std::string& score, const BestSoFar::Validation& validation);

}  // namespace echelon
