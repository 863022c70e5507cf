#include "echelon/data/token_texts.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

namespace echelon {

std::span<const std::int32_t> TokenTexts::ids(std::int64_t text) const {
  const auto i = std::size_t(text);
  const auto begin = i == 0 ? 0 : ends_[i - 1];
  return std::span(ids_).subspan(begin, ends_[i] - begin);
}

void TokenTexts::add(std::span<const std::int32_t> ids, std::int64_t second) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ends_.push_back(ids_.size());
  seconds_.push_back(static_cast<std::uint32_t>(second));
  longest_ = std::max(longest_, std::ssize(ids));
}

void TokenTexts::add(const TokenTexts& texts) {
  const auto before = ids_.size();
  ids_.insert(ids_.end(), texts.ids_.begin(), texts.ids_.end());
  for (const auto end : texts.ends_) ends_.push_back(before + end);
  seconds_.insert(seconds_.end(), texts.seconds_.begin(), texts.seconds_.end());
  longest_ = std::max(longest_, texts.longest_);
}

// Threads take blocks in order. A block that was taken is finished, so the first failure in the
// order of the texts is always among those that are seen.
TokenTexts encode_texts(std::int64_t count, int threads,
                        const std::function<void(std::int64_t i, TokenTexts& to)>& encode) {
  constexpr std::int64_t block = 256;
  const auto blocks = std::size_t((count + block - 1) / block);
  std::vector<TokenTexts> encoded(blocks);
  std::vector<std::exception_ptr> failures(blocks);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    while (!failed.load()) {
      const auto mine = next.fetch_add(1);
      if (mine >= blocks) return;
      const auto begin = std::int64_t(mine) * block, end = std::min(count, begin + block);
      try {
        for (auto i = begin; i < end; ++i) encode(i, encoded[mine]);
      } catch (...) {
        failures[mine] = std::current_exception();
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads && std::size_t(i) < blocks; ++i) others.emplace_back(work);
    work();
  }
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
  TokenTexts all;
  for (TokenTexts& part : encoded) {
    all.add(part);
    part = {};
  }
  return all;
}

}  // namespace echelon
