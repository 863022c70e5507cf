#include "echelon/data/corpus/count_words.h"

#include <memory>
#include <mutex>
#include <utility>

#include "echelon/data/corpus/ordered_work.h"
#include "echelon/data/tokenizer/pattern.h"

namespace echelon {
namespace {

// Counts that no thread adds to now. Their sum does not depend on who added what.
class CountsPool {
 public:
  std::unique_ptr<WordCounts> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<WordCounts>();
    auto counts = std::move(free_.back());
    free_.pop_back();
    return counts;
  }
  void put_back(std::unique_ptr<WordCounts> counts) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(counts));
  }
  WordCounts sum() {
    WordCounts sum = free_.empty() ? WordCounts() : std::move(*free_.front());
    for (std::size_t i = 1; i < free_.size(); ++i) sum.add(*std::exchange(free_[i], nullptr));
    return sum;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCounts>> free_;  // guarded by mutex_
};

}  // namespace

TextCut cut_for(WordsOf words) { return words == WordsOf::lines ? whole_lines : whole_words; }

WordCounts count_words(TextSource& source, WordsOf words, int threads) {
  const auto pattern = tok::known_pattern(tok::gpt2_expression);
  CountsPool pool;
  OrderedWork<TextBatch> work(
      threads, [&](TextBatch& batch) { return source.next(batch); },
      [&](TextBatch& batch) {
        auto counts = pool.take();
        std::vector<tok::ByteRange> found;
        const auto count = [&](std::string_view text) {
          found.clear();
          pattern->matches(text, found);
          for (const auto [begin, end] : found) counts->add(text.substr(begin, end - begin));
        };
        for (const auto& piece : batch.pieces) {
          std::string_view text = piece.text;
          if (words == WordsOf::lines && !piece.is_record)
            for (auto feed = text.find('\n'); feed != text.npos; feed = text.find('\n')) {
              count(text.substr(0, feed + 1));
              text.remove_prefix(feed + 1);
            }
          count(text);
        }
        pool.put_back(std::move(counts));
      });
  while (work.next()) {
  }
  return pool.sum();
}

}  // namespace echelon
