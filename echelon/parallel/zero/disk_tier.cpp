// The file starts with a block that says which rank it belongs to and what it holds. The slices of
// every array follow, group by group, each starting at a block boundary.
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <span>
#include <utility>

#include "echelon/base/block_file.h"
#include "echelon/base/bytes.h"
#include "echelon/base/checksum.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/parallel/zero/tier.h"

namespace echelon {
namespace {

constexpr std::int64_t block = BlockFile::alignment;

// The beginning of the file.
struct Mark {
  char magic[8] = {'E', 'C', 'H', 'T', 'I', 'E', 'R', '1'};
  char boot[40] =
      {};  // identifies the boot: after a crash of the machine, the file cannot be trusted
  std::int64_t rank = 0, ranks = 0;
  std::int64_t updates = 0;
  std::int64_t updating = 0;  // 1: some slices are already after update `updates`, others are not
  std::uint64_t sum = 0;

  std::uint64_t right_sum() const {
    Mark copy = *this;
    copy.sum = 0;
    return checksum(std::as_bytes(std::span(&copy, 1)));
  }
};

void note_boot(Mark& mark) {
  std::string id;
  try {
    id = read_file("/proc/sys/kernel/random/boot_id");
  } catch (const Error&) {
  }
  std::memcpy(mark.boot, id.data(), std::min(id.size(), sizeof mark.boot - 1));
}

class DiskTier final : public Tier {
 public:
  DiskTier(const std::filesystem::path& path, int rank, int ranks, std::vector<Array> arrays,
           std::vector<std::int64_t> numels, ByteMemory memory)
      : Tier(std::move(arrays), std::move(numels)),
        memory_(std::move(memory)),
        file_(path, lay_out()) {
    mark_block_ = aligned_memory(block, false);
    read_mark();
    file_.clear();
    mark_.rank = rank;
    mark_.ranks = ranks;
    note_boot(mark_);
    mark(0, true);
  }

  ~DiskTier() override { file_.remove(); }

  void want(const Run& run) override {
    const auto at = place(run);
    if (held_.contains(at.offset)) return;
    wait_for_writes(at);
    Held held{buffer(run, at.bytes), 0};
    held.ticket = file_.read(at.offset, span_of(held.memory, at.bytes));
    held_.emplace(at.offset, std::move(held));
  }

  at::Tensor take(const Run& run) override {
    const auto start = std::chrono::steady_clock::now();
    want(run);
    Held& held = held_.at(place(run).offset);
    file_.wait(held.ticket);
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return as_run(held.memory, run);
  }

  at::Tensor blank(const Run& run) override {
    const auto at = place(run);
    wait_for_writes(at);
    Held held{buffer(run, at.bytes), 0};
    const at::Tensor memory = held.memory;
    if (!held_.emplace(at.offset, std::move(held)).second)
      throw Error("a slice is to be written anew while it is being read");
    return as_run(memory, run);
  }

  void give_back(const Run& run, bool changed) override {
    const auto at = place(run);
    auto held = held_.extract(at.offset);
    if (held.empty()) throw Error("a slice is given back that was not taken");
    if (held.mapped().ticket != 0) file_.wait(held.mapped().ticket);
    const at::Tensor& memory = held.mapped().memory;
    if (!changed) return keep(memory, run);
    writing_.push_back(
        {at.offset, at.bytes, file_.write(at.offset, span_of(memory, at.bytes)), memory, run});
    writing_bytes_ += std::int64_t(at.bytes);
    while (writing_bytes_ > most_writing && writing_.size() > 1) reclaim();
  }

  void begin_update(std::int64_t updates) override { mark(updates, true); }
  void end_update(std::int64_t updates) override {
    settle();
    mark(updates, false);
  }

  std::string left_behind() const override { return left_behind_; }
  std::string description() const override {
    return fmt::format("{} in {} ({})", human_bytes(bytes()), file_.path().parent_path().string(),
                       file_.engine());
  }

 private:
  struct Held {
    at::Tensor memory;
    BlockFile::Ticket ticket;  // 0: no read in progress
  };
  struct Writing {
    std::uint64_t offset, bytes;
    BlockFile::Ticket ticket;
    at::Tensor memory;
    Run run;
  };
  struct Place {
    std::uint64_t offset, bytes;  // whole blocks
  };

  static std::span<std::byte> span_of(const at::Tensor& memory, std::uint64_t bytes) {
    return {static_cast<std::byte*>(memory.data_ptr()), bytes};
  }

  // Computes where every slice begins. Returns the file's size.
  std::uint64_t lay_out() {
    std::uint64_t at = block;
    for (const auto& array : arrays_) {
      first_.emplace_back();
      for (const auto numel : numels_) {
        first_.back().push_back(at);
        at += BlockFile::aligned(std::uint64_t(numel) * c10::elementSize(array.type));
      }
    }
    return at;
  }

  Place place(const Run& run) const {
    const auto element = c10::elementSize(arrays_[std::size_t(run.array)].type);
    return {
        first_[std::size_t(run.array)][std::size_t(run.group)] + std::uint64_t(run.begin) * element,
        BlockFile::aligned(std::uint64_t(run.numel) * element)};
  }

  // A write must finish before the same place is read or written again: requests in flight are not
  // ordered.
  void wait_for_writes(const Place& at) {
    for (const auto& one : writing_)
      if (one.offset < at.offset + at.bytes && at.offset < one.offset + one.bytes)
        file_.wait(one.ticket);
  }

  at::Tensor as_run(const at::Tensor& memory, const Run& run) const {
    const auto type = arrays_[std::size_t(run.array)].type;
    return memory.narrow(0, 0, run.numel * std::int64_t(c10::elementSize(type))).view(type);
  }

  at::Tensor aligned_memory(std::int64_t bytes, bool travels) const {
    MemoryScope scope(MemoryKind::workspace);
    const at::Tensor all = memory_(bytes + block, travels);
    const auto address = reinterpret_cast<std::uintptr_t>(all.data_ptr());
    return all.narrow(0, (block - std::int64_t(address % std::uintptr_t(block))) % block, bytes);
  }

  bool travels(const Run& run) const { return arrays_[std::size_t(run.array)].travels; }

  at::Tensor buffer(const Run& run, std::uint64_t bytes) {
    while (!writing_.empty() && file_.done(writing_.front().ticket)) reclaim();
    auto& free = free_[travels(run) ? 1 : 0];
    auto best = free.end();
    for (auto it = free.begin(); it != free.end(); ++it)
      if (it->numel() >= std::int64_t(bytes) && (best == free.end() || it->numel() < best->numel()))
        best = it;
    if (best == free.end()) return aligned_memory(std::int64_t(bytes), travels(run));
    const at::Tensor memory = *best;
    free.erase(best);
    return memory;
  }

  // Keeps memory for the next run. Frees the oldest memory beyond twice `most_writing`.
  void keep(const at::Tensor& memory, const Run& run) {
    auto& free = free_[travels(run) ? 1 : 0];
    free.push_back(memory);
    std::int64_t bytes = 0;
    for (const auto& one : free) bytes += one.numel();
    while (bytes > 2 * most_writing && free.size() > 2) {
      bytes -= free.front().numel();
      free.erase(free.begin());
    }
  }

  void reclaim() {
    Writing one = std::move(writing_.front());
    writing_.pop_front();
    writing_bytes_ -= std::int64_t(one.bytes);
    file_.wait(one.ticket);
    keep(one.memory, one.run);
  }

  void settle() {
    const auto start = std::chrono::steady_clock::now();
    while (!writing_.empty()) reclaim();
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void mark(std::int64_t updates, bool updating) {
    mark_.updates = updates;
    mark_.updating = updating ? 1 : 0;
    mark_.sum = mark_.right_sum();
    std::memcpy(mark_block_.data_ptr(), &mark_, sizeof mark_);
    file_.wait(file_.write(0, span_of(mark_block_, block)));
  }

  void read_mark() {
    file_.wait(file_.read(0, span_of(mark_block_, block)));
    Mark before, now;
    std::memcpy(static_cast<void*>(&before), mark_block_.data_ptr(), sizeof before);
    note_boot(now);
    if (std::memcmp(before.magic, now.magic, sizeof before.magic) != 0) return;  // a new file
    const std::string whose =
        fmt::format("{} was left by a process that was killed", file_.path().string());
    if (before.sum != before.right_sum())
      left_behind_ = whose + ", and its first block is damaged: all of it is lost";
    else if (std::memcmp(before.boot, now.boot, sizeof before.boot) != 0)
      left_behind_ = whose + ", and the machine has been restarted since: all of it is lost";
    else if (before.updating != 0)
      left_behind_ = fmt::format(
          "{}, rank {} of {}, on its way from update {} to {}: some slices are from before it and "
          "some from after, so all of it is lost",
          whose, before.rank, before.ranks, before.updates, before.updates + 1);
    else
      left_behind_ = fmt::format(
          "{}, rank {} of {}, after update {}: it was whole, but a run goes on from its saved state "
          "alone",
          whose, before.rank, before.ranks, before.updates);
  }

  std::vector<std::vector<std::uint64_t>> first_;  // by array and group
  ByteMemory memory_;
  std::map<std::uint64_t, Held> held_;
  std::deque<Writing> writing_;
  std::int64_t writing_bytes_ = 0;
  std::array<std::vector<at::Tensor>, 2> free_;  // ordinary memory, and memory that travels
  at::Tensor mark_block_;
  Mark mark_;
  std::string left_behind_;
  BlockFile file_;  // last: it waits for the kernel before the memory is freed
};

}  // namespace

std::unique_ptr<Tier> disk_tier(const std::string& folder, int rank, int ranks,
                                std::vector<Tier::Array> arrays, std::vector<std::int64_t> numels,
                                ByteMemory memory) {
  return std::make_unique<DiskTier>(
      std::filesystem::path(folder) / fmt::format("echelon-rank-{}.slices", rank), rank, ranks,
      std::move(arrays), std::move(numels), std::move(memory));
}

}  // namespace echelon
