#include "echelon/comm/texts.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "echelon/comm/communicator.h"

namespace echelon {

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine,
                                      const std::string& tag) {
  const auto there = at::TensorOptions(ranks.device());
  const CommCall call{.tag = tag, .blocking = true};
  const at::Tensor length = at::empty({1}, there.dtype(at::kLong)),
                   lengths = at::empty({ranks.size()}, there.dtype(at::kLong));
  length.fill_(static_cast<std::int64_t>(mine.size()));
  ranks.all_gather(lengths, length, call).wait();
  const at::Tensor sizes = lengths.cpu();
  const auto* first = sizes.const_data_ptr<std::int64_t>();
  const std::vector<std::size_t> counts(first, first + ranks.size());

  const at::Tensor text = at::empty({static_cast<std::int64_t>(mine.size())}, at::kByte);
  std::memcpy(text.data_ptr(), mine.data(), mine.size());
  const at::Tensor all = at::empty({sizes.sum().item<std::int64_t>()}, there.dtype(at::kByte));
  ranks.all_gather(all, text.to(ranks.device()), call, counts).wait();
  const at::Tensor seen = all.cpu();
  const char* at = static_cast<const char*>(seen.const_data_ptr());
  std::vector<std::string> texts;
  for (const std::size_t count : counts) {
    texts.emplace_back(at, count);
    at += count;
  }
  return texts;
}

}  // namespace echelon
