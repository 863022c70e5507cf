#include "echelon/train/same_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/comm/communicator.h"
#include "echelon/comm/texts.h"
#include "echelon/data/dataset.h"

namespace echelon {
namespace {

using nlohmann::json;

std::uint64_t sum_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const at::Tensor plain = tensor.cpu().contiguous();
  return checksum({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
}

std::uint64_t sum_of(const Dataset& data, std::int64_t index) {
  const Batch sample = data.get(std::vector{index});
  std::vector<std::uint64_t> sums = {sum_of(sample.input), sum_of(sample.target)};
  for (const auto& [name, tensor] : sample.more) sums.push_back(sum_of(tensor));
  return checksum(std::as_bytes(std::span(sums)));
}

}  // namespace

void require_same_dataset(const Dataset& data, Communicator& ranks, bool allowed) {
  std::vector<std::int64_t> places = {0, data.size() / 2, data.size() - 1};
  if (data.in_sequence()) places.resize(1);  // later samples come later
  std::vector<std::uint64_t> sums;
  for (const auto place : places) sums.push_back(sum_of(data, place));
  const bool fixed = sum_of(data, places[0]) == sums[0];
  auto drawn = json::array({data.variants(), data.in_sequence()});
  for (const auto& part : data.parts()) drawn.push_back({part.first, part.samples, part.weight});
  const json words = {{"size", data.size()},
                      {"drawn", drawn},
                      {"sums", sums},
                      {"fixed", fixed},
                      {"allowed", allowed}};
  std::vector<json> all;
  for (const auto& text : gather_texts(ranks, words.dump(), "setup"))
    all.push_back(json::parse(text));
  if (std::any_of(all.begin(), all.end(), [](const json& one) { return bool(one["allowed"]); }))
    return;
  const json& first = all[0];
  for (std::size_t r = 1; r < all.size(); ++r) {
    const json& one = all[r];
    const auto refuse = [&](const std::string& how) {
      throw InvalidArgument(
          fmt::format("ranks have different datasets: {}; give every rank the whole dataset, of "
                      "which the trainer gives it its part of each batch, or set "
                      "TrainOptions::allow_other_data if that is meant",
                      how));
    };
    if (one["size"] != first["size"])
      refuse(fmt::format("rank {} has {} samples and rank 0 has {}", r,
                         one["size"].get<std::int64_t>(), first["size"].get<std::int64_t>()));
    if (one["drawn"] != first["drawn"])
      refuse(
          fmt::format("rank {} draws its samples in another way than rank 0 (their variants, "
                      "parts or weights)",
                      r));
    if (!one["fixed"] || !first["fixed"]) continue;
    for (std::size_t i = 0; i < places.size(); ++i)
      if (one["sums"][i] != first["sums"][i])
        refuse(fmt::format("sample {} of rank {} is not that of rank 0", places[i], r));
  }
}

}  // namespace echelon
