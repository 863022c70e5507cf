#include "echelon/nn/generate.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/random.h"

namespace echelon {
namespace {

std::int64_t draw(const at::Tensor& logits, std::int64_t vocab, const GenerateOptions& options,
                  double uniform) {
  const at::Tensor scores =
      logits.narrow(0, 0, std::min(vocab, logits.size(0))).to(at::kCPU, at::kDouble).contiguous();
  const double* score = scores.const_data_ptr<double>();
  std::vector<std::int64_t> order(static_cast<std::size_t>(scores.numel()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return score[a] > score[b]; });
  if (options.temperature <= 0) return order.front();
  if (options.top > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.top)));

  std::vector<double> weights;
  for (const auto i : order)
    weights.push_back(std::exp((score[i] - score[order.front()]) / options.temperature));
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

}  // namespace

std::vector<std::int64_t> generate(Stack& stack, std::int64_t context,
                                   std::span<const std::int64_t> prompt, std::int64_t vocab,
                                   const GenerateOptions& options,
                                   const std::function<bool(std::int64_t)>& show) {
  if (prompt.empty())
    throw InvalidArgument("the prompt is empty; give at least one token to go on from");
  std::vector<std::int64_t> all(prompt.begin(), prompt.end());
  const Key key = derive_key(options.seed, "generate");
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto length = std::min(context, std::ssize(all));
    const at::Tensor tokens = at::empty({1, length}, at::kLong);
    std::copy(all.end() - length, all.end(), tokens.data_ptr<std::int64_t>());
    const at::Tensor logits = stack.infer(tokens.to(stack.device()));
    const auto next = draw(logits.select(0, 0).select(0, length - 1), vocab, options,
                           uniform_at(key, static_cast<std::uint64_t>(i)));
    all.push_back(next);
    if (show && !show(next)) break;
  }
  return {all.begin() + std::ssize(prompt), all.end()};
}

std::string generate(Stack& stack, std::int64_t context, std::string_view prompt,
                     const GenerateOptions& options, const std::function<bool(char)>& show) {
  constexpr std::int64_t bytes = 256;
  if (prompt.empty())
    throw InvalidArgument("the prompt is empty; give at least one byte to go on from");
  std::vector<std::int64_t> tokens;
  for (const char c : prompt) tokens.push_back(static_cast<unsigned char>(c));
  const auto made = generate(stack, context, tokens, bytes, options, [&](std::int64_t token) {
    return !show || show(static_cast<char>(token));
  });
  return {made.begin(), made.end()};
}

}  // namespace echelon
